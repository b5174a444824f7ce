// SPDX-License-Identifier: Apache-2.0
//
// aie::vector: a register of 128 to 1024 bits.
//
// A default-constructed vector holds NaNs (integers: a large pattern): on the device it holds what the register held, so
// a kernel that reads it before it wrote it must not pass by luck.

#pragma once

#include <tuple>

#include "simd.hpp"
#include "types.hpp"

namespace aie {

namespace detail {

/// The lanes of a vector, accumulator or mask, for the other headers.
struct lanes_of {
  template <typename R>
  static TWIN_INLINE auto *get(R &r) {
    return r.lanes_;
  }
};

template <typename R>
TWIN_INLINE auto *raw(R &r) {
  return lanes_of::get(r);
}

constexpr unsigned register_align(unsigned bytes) { return bytes < 64 ? bytes : 64; }

}  // namespace detail

/// One lane of a vector, to be read or written.
template <typename T, unsigned Elems>
class vector_elem_ref {
 public:
  TWIN_INLINE explicit vector_elem_ref(T *lane) : lane_(lane) {}
  TWIN_INLINE operator T() const { return *lane_; }
  TWIN_INLINE explicit operator float() const
    requires(!std::is_same_v<T, float>)
  {
    return static_cast<float>(*lane_);
  }
  TWIN_INLINE T get() const { return *lane_; }
  TWIN_INLINE vector_elem_ref &operator=(T value) {
    *lane_ = value;
    return *this;
  }
  TWIN_INLINE vector_elem_ref &operator=(const vector_elem_ref &other) {
    *lane_ = *other.lane_;
    return *this;
  }
  vector_elem_ref(const vector_elem_ref &) = default;

 private:
  T *lane_;
};

template <typename T, unsigned Elems>
class vector {
  static_assert(detail::is_valid_element<T>,
                "aie::vector<T, N>: T must be int8, uint8, int16, uint16, int32, uint32, bfloat16 or float");
  static_assert(detail::is_vector_width<T>(Elems),
                "aie::vector<T, N>: AIE2P has vectors of 128, 256, 512 and 1024 bits (2048 for 32-bit elements)");

 public:
  using value_type = T;

  static constexpr unsigned size() { return Elems; }
  static constexpr unsigned type_bits() { return detail::type_bits_v<T>; }
  static constexpr unsigned bits() { return type_bits() * Elems; }
  static constexpr unsigned bytes() { return bits() / 8; }
  static constexpr bool is_signed() { return std::is_signed_v<T> || detail::is_float_element<T>; }
  static constexpr bool is_integral() { return detail::is_int_element<T>; }
  static constexpr bool is_floating_point() { return detail::is_float_element<T>; }
  static constexpr bool is_complex() { return false; }
  static constexpr bool is_real() { return true; }

  TWIN_INLINE vector() { twin::poison<sizeof lanes_>(lanes_); }
  TWIN_INLINE vector(const vector &other) { twin::copy<sizeof lanes_>(lanes_, other.lanes_); }
  TWIN_INLINE vector &operator=(const vector &other) {
    twin::copy<sizeof lanes_>(lanes_, other.lanes_);
    return *this;
  }

  /// One value a lane.
  template <typename... Values>
    requires(sizeof...(Values) + 1 == Elems)
  explicit vector(T first, Values... rest) : lanes_{first, static_cast<T>(rest)...} {}

  TWIN_INLINE T get(unsigned index) const {
    check("get", index, Elems);
    return lanes_[index];
  }
  TWIN_INLINE void set(T value, unsigned index) {
    check("set", index, Elems);
    lanes_[index] = value;
  }
  TWIN_INLINE T operator[](unsigned index) const {
    check("operator[]", index, Elems);
    return lanes_[index];
  }
  TWIN_INLINE vector_elem_ref<T, Elems> operator[](unsigned index) {
    check("operator[]", index, Elems);
    return vector_elem_ref<T, Elems>(lanes_ + index);
  }

  /// Shifts every lane up by one and puts the value into lane 0.
  vector &push(T value) {
    __builtin_memmove(lanes_ + 1, lanes_, sizeof lanes_ - sizeof(T));
    lanes_[0] = value;
    twin::count_vector(1);
    return *this;
  }

  /// The same bits as elements of another type.
  template <typename To>
  TWIN_INLINE auto cast_to() const {
    static_assert(detail::is_valid_element<To>, "aie::vector::cast_to<T>: T must be an element type of AIE2P");
    vector<To, bytes() / sizeof(To)> out;
    twin::copy<bytes()>(detail::raw(out), lanes_);
    return out;
  }

  /// Part `index` of this vector, in parts of ElemsOut lanes.
  template <unsigned ElemsOut>
  TWIN_INLINE vector<T, ElemsOut> extract(unsigned index) const {
    static_assert(ElemsOut <= Elems, "aie::vector::extract<N>: N must not exceed the vector's lanes");
    check("extract", index, Elems / ElemsOut);
    vector<T, ElemsOut> out;
    twin::copy<sizeof out>(detail::raw(out), lanes_ + index * ElemsOut);
    return out;
  }

  template <unsigned ElemsIn>
  TWIN_INLINE vector &insert(unsigned index, const vector<T, ElemsIn> &part) {
    static_assert(ElemsIn <= Elems, "aie::vector::insert: the part must not have more lanes than the vector");
    check("insert", index, Elems / ElemsIn);
    twin::copy<sizeof part>(lanes_ + index * ElemsIn, detail::raw(part));
    return *this;
  }

  /// A wider vector with this one as part `index`; the other lanes are undefined on the device and poison here.
  template <unsigned ElemsOut>
  TWIN_INLINE vector<T, ElemsOut> grow(unsigned index = 0) const {
    static_assert(ElemsOut >= Elems, "aie::vector::grow<N>: N must be at least the vector's lanes");
    vector<T, ElemsOut> out;
    out.insert(index, *this);
    return out;
  }

  template <unsigned ElemsOut>
  TWIN_INLINE vector<T, ElemsOut> grow_replicate() const {
    static_assert(ElemsOut >= Elems, "aie::vector::grow_replicate<N>: N must be at least the vector's lanes");
    vector<T, ElemsOut> out;
    for (unsigned i = 0; i < ElemsOut / Elems; ++i)
      out.insert(i, *this);
    return out;
  }

  template <unsigned ElemsOut>
  TWIN_INLINE vector<T, ElemsOut> grow_extract(unsigned index) const {
    if constexpr (ElemsOut > Elems)
      return grow<ElemsOut>();
    else
      return extract<ElemsOut>(index);
  }

  /// The parts of ElemsOut lanes, as a tuple.
  template <unsigned ElemsOut>
  auto split() const {
    return [this]<unsigned... I>(std::integer_sequence<unsigned, I...>) {
      return std::make_tuple(extract<ElemsOut>(I)...);
    }(std::make_integer_sequence<unsigned, Elems / ElemsOut>{});
  }

 private:
  friend struct detail::lanes_of;

  static TWIN_INLINE void check(const char *call, unsigned index, unsigned limit) {
    if (__builtin_expect(index >= limit, 0))
      twin::trap("aie::vector::%s: index %u; expected 0 to %u", call, index, limit - 1);
  }

  alignas(detail::register_align(Elems * sizeof(T))) T lanes_[Elems];
};

namespace detail {

template <typename T>
TWIN_INLINE operand_t<T> value_of(const T &operand) {
  return static_cast<operand_t<T>>(operand);
}
template <typename T, unsigned Elems>
TWIN_INLINE const vector<T, Elems> &value_of(const vector<T, Elems> &operand) {
  return operand;
}
template <typename Tag, unsigned Elems>
TWIN_INLINE const accum<Tag, Elems> &value_of(const accum<Tag, Elems> &operand) {
  return operand;
}

/// The lanes as floats: bfloat16 is widened, float is copied.
template <typename T, unsigned Elems>
TWIN_INLINE void to_floats(const vector<T, Elems> &v, float *out) {
  if constexpr (std::is_same_v<T, bfloat16>)
    twin::widen<Elems>(raw(v), out);
  else
    twin::copy<sizeof v>(out, raw(v));
}

/// The inverse: floats become lanes, narrowed by the rounding register when T is bfloat16.
template <typename T, unsigned Elems>
TWIN_INLINE vector<T, Elems> from_floats(const float *from) {
  vector<T, Elems> out;
  if constexpr (std::is_same_v<T, bfloat16>)
    twin::narrow<Elems>(from, raw(out), twin::narrow_rules[twin::rounding()]);
  else
    twin::copy<sizeof out>(raw(out), from);
  return out;
}

}  // namespace detail

/// The same value in every lane.
template <Elem E, unsigned Elems = native_vector_length_v<detail::operand_t<E>>>
TWIN_INLINE vector<detail::operand_t<E>, Elems> broadcast(E value) {
  using T = detail::operand_t<E>;
  vector<T, Elems> out;
  const T lane = value;
  T *to = detail::raw(out);
  for (unsigned i = 0; i < Elems; ++i)
    to[i] = lane;
  twin::count_vector(twin::units(out.bits(), 512));
  return out;
}

template <ElemBaseType T, unsigned Elems = native_vector_length_v<T>>
TWIN_INLINE vector<T, Elems> zeros() {
  vector<T, Elems> out;
  __builtin_memset(detail::raw(out), 0, sizeof out);
  twin::count_vector(twin::units(out.bits(), 512));
  return out;
}

}  // namespace aie
