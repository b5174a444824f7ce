// SPDX-License-Identifier: Apache-2.0
//
// aie::accum: an accumulator register. accfloat lanes are fp32; integer lanes are 32 or 64 bits.
//
// A float accumulator becomes a vector of bfloat16 or float, an integer one a vector of integers: the two kinds never
// mix without an explicit cast_to.

#pragma once

#include "vector.hpp"

namespace aie {

namespace detail {

/// Whether lanes of element type T and an accumulator of this tag are of one kind.
template <typename Tag, typename T>
inline constexpr bool same_kind = is_float_tag<Tag> == is_float_element<T>;

/// Whether floats may pass through an acc32 accumulator as bits, which the device does and our own kernels must not.
#ifdef TWIN_FLOATS_THROUGH_ACC32
template <typename Tag, typename T>
inline constexpr bool reinterprets = std::is_same_v<Tag, acc32> && std::is_same_v<T, float>;
#else
template <typename Tag, typename T>
inline constexpr bool reinterprets = false;
#endif

template <typename A, typename B>
inline constexpr bool same_accum = std::is_same_v<accum_lane_t<A>, accum_lane_t<B>>;

}  // namespace detail

template <typename Tag, unsigned Elems>
class accum {
  static_assert(detail::is_accum_tag<Tag>,
                "aie::accum<Tag, N>: Tag must be accfloat, acc32, acc40, acc48, acc56 or acc64");
  static_assert(detail::is_accum_width<Tag>(Elems),
                "aie::accum<Tag, N>: AIE2P has 4-64 lanes of accfloat, 8-64 of acc32 and 4-32 of acc64");

 public:
  using value_type = Tag;
  using lane_type = detail::accum_lane_t<Tag>;

  static constexpr unsigned size() { return Elems; }
  static constexpr unsigned value_bits() { return 8 * sizeof(lane_type); }
  static constexpr unsigned bits() { return value_bits() * Elems; }
  static constexpr bool is_floating_point() { return detail::is_float_tag<Tag>; }
  static constexpr bool is_complex() { return false; }
  static constexpr bool is_real() { return true; }

  TWIN_INLINE accum() { twin::poison<sizeof lanes_>(lanes_); }
  TWIN_INLINE accum(const accum &other) { twin::copy<sizeof lanes_>(lanes_, other.lanes_); }
  TWIN_INLINE accum &operator=(const accum &other) {
    twin::copy<sizeof lanes_>(lanes_, other.lanes_);
    return *this;
  }

  /// Tags with one native width are interchangeable.
  template <typename Tag2>
    requires(!std::is_same_v<Tag, Tag2> && detail::same_accum<Tag, Tag2> &&
             detail::is_float_tag<Tag> == detail::is_float_tag<Tag2>)
  accum(const accum<Tag2, Elems> &other) {
    twin::copy<sizeof lanes_>(lanes_, detail::raw(other));
  }

  template <typename T>
  TWIN_INLINE explicit accum(const vector<T, Elems> &v, int shift = 0) {
    from_vector(v, shift);
  }
  template <typename T>
  TWIN_INLINE explicit accum(const block_vector<T, Elems> &v) {
    from_vector(v);
  }

  template <typename T>
  TWIN_INLINE accum &operator=(const vector<T, Elems> &v) {
    from_vector(v);
    return *this;
  }

  /// Lanes of a vector, shifted left by `shift` when they are integers.
  template <typename T>
  TWIN_INLINE void from_vector(const vector<T, Elems> &v, int shift = 0) {
    static_assert(detail::same_kind<Tag, T> || detail::reinterprets<Tag, T>,
                  "aie::accum::from_vector: accfloat takes bfloat16 or float, an integer accumulator takes integers");
    if constexpr (is_floating_point()) {
      detail::to_floats(v, lanes_);
    } else if constexpr (detail::reinterprets<Tag, T>) {
      __builtin_memcpy(lanes_, detail::raw(v), sizeof lanes_);
    } else {
      const T *from = detail::raw(v);
      for (unsigned i = 0; i < Elems; ++i)
        lanes_[i] = static_cast<lane_type>(static_cast<uint64_t>(static_cast<int64_t>(from[i])) << shift);
    }
    twin::count_vector(twin::units(Elems, 32));
  }

  template <typename T>
  void from_vector(const block_vector<T, Elems> &v);

  template <typename T>
  TWIN_INLINE auto to_vector(int shift = 0) const {
    if constexpr (std::is_same_v<T, bfp16ebs8>) {
      static_assert(is_floating_point(), "aie::accum::to_vector<bfp16ebs8>: the accumulator must be accfloat");
      return to_blocks<T>();
    } else {
      static_assert(detail::is_valid_element<T>, "aie::accum::to_vector<T>: T must be an element type of AIE2P");
      static_assert(detail::same_kind<Tag, T> || detail::reinterprets<Tag, T>,
                    "aie::accum::to_vector<T>: accfloat gives bfloat16 or float, an integer accumulator integers");
      twin::count_vector(twin::units(Elems, 32));
      if constexpr (detail::reinterprets<Tag, T>) {
        vector<T, Elems> out;
        __builtin_memcpy(detail::raw(out), lanes_, sizeof lanes_);
        return out;
      } else {
        return convert<T>(shift);
      }
    }
  }

  TWIN_INLINE auto to_vector() const
    requires(detail::is_float_tag<Tag>)
  {
    return to_vector<float>();
  }

  /// A float accumulator of at most 32 lanes is taken where a vector is wanted, rounded by the register.
  template <typename T>
    requires(detail::is_float_tag<Tag> && detail::is_float_element<T> && Elems <= 32)
  TWIN_INLINE operator vector<T, Elems>() const {
    return to_vector<T>();
  }

  /// The same bits under another tag of the same kind or width.
  template <typename Tag2>
  TWIN_INLINE auto cast_to() const {
    static_assert(detail::is_accum_tag<Tag2>, "aie::accum::cast_to<Tag>: Tag must be an accumulator tag of AIE2P");
    accum<Tag2, bits() / (8 * sizeof(detail::accum_lane_t<Tag2>))> out;
    __builtin_memcpy(detail::raw(out), lanes_, sizeof lanes_);
    return out;
  }

  template <unsigned ElemsOut>
  TWIN_INLINE accum<Tag, ElemsOut> extract(unsigned index) const {
    static_assert(ElemsOut <= Elems, "aie::accum::extract<N>: N must not exceed the accumulator's lanes");
    check("extract", index, Elems / ElemsOut);
    accum<Tag, ElemsOut> out;
    twin::copy<sizeof out>(detail::raw(out), lanes_ + index * ElemsOut);
    return out;
  }

  template <unsigned ElemsIn, typename Tag2>
  TWIN_INLINE accum &insert(unsigned index, const accum<Tag2, ElemsIn> &part) {
    static_assert(detail::same_accum<Tag, Tag2>, "aie::accum::insert: the part must have the accumulator's tag");
    static_assert(ElemsIn <= Elems, "aie::accum::insert: the part must not have more lanes than the accumulator");
    check("insert", index, Elems / ElemsIn);
    twin::copy<sizeof part>(lanes_ + index * ElemsIn, detail::raw(part));
    return *this;
  }

  /// A wider accumulator; the lanes above this one's are undefined on the device and poison here.
  template <unsigned ElemsOut>
  TWIN_INLINE accum<Tag, ElemsOut> grow() const {
    static_assert(ElemsOut >= Elems, "aie::accum::grow<N>: N must be at least the accumulator's lanes");
    accum<Tag, ElemsOut> out;
    out.insert(0, *this);
    return out;
  }

 private:
  friend struct detail::lanes_of;

  template <typename T>
  TWIN_INLINE vector<T, Elems> convert(int shift) const {
    if constexpr (is_floating_point()) {
      return detail::from_floats<T, Elems>(lanes_);
    } else {
      if (shift < 0 || shift > 63)
        twin::trap("aie::accum::to_vector: shift %d; expected 0 to 63", shift);
      const uint32_t round = twin::rounding(), saturation = twin::core().saturation;
      vector<T, Elems> out;
      T *to = detail::raw(out);
      if (shift == 0 && saturation == 0) {
        for (unsigned i = 0; i < Elems; ++i)
          to[i] = static_cast<T>(lanes_[i]);
      } else {
        for (unsigned i = 0; i < Elems; ++i)
          to[i] = twin::saturate<T>(twin::shift_round(lanes_[i], shift, round), saturation);
      }
      return out;
    }
  }

  template <typename T>
  block_vector<T, Elems> to_blocks() const;

  static TWIN_INLINE void check(const char *call, unsigned index, unsigned limit) {
    if (__builtin_expect(index >= limit, 0))
      twin::trap("aie::accum::%s: index %u; expected 0 to %u", call, index, limit - 1);
  }

  alignas(detail::register_align(Elems * sizeof(lane_type))) lane_type lanes_[Elems];
};

template <AccumElemBaseType Tag, unsigned Elems>
TWIN_INLINE accum<Tag, Elems> zeros() {
  accum<Tag, Elems> out;
  __builtin_memset(detail::raw(out), 0, sizeof out);
  twin::count_vector(1);
  return out;
}

/// The accumulator of a vector's lanes, shifted left by `shift`.
template <AccumElemBaseType Tag, Vector V>
TWIN_INLINE auto from_vector(const V &v, int shift = 0) {
  return accum<Tag, detail::operand_t<V>::size()>(detail::value_of(v), shift);
}

template <typename T, Accum A>
TWIN_INLINE auto to_vector(const A &acc, int shift = 0) {
  return acc.template to_vector<T>(shift);
}

}  // namespace aie
