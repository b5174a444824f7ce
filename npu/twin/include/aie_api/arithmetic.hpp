// SPDX-License-Identifier: Apache-2.0
//
// Elementwise add, sub, neg, abs, max, min, clamp and bit operations on vectors, and add, sub, neg on accumulators.
//
// bfloat16 is widened, computed in fp32 and rounded back once by the rounding register. Integers wrap.
// max and min return the second operand where the comparison with the first holds, so a NaN in either keeps the first.

#pragma once

#include "accum.hpp"

namespace aie {

namespace detail {

struct Add {
  template <typename V>
  static TWIN_INLINE V run(V a, V b) {
    return a + b;
  }
};
struct Sub {
  template <typename V>
  static TWIN_INLINE V run(V a, V b) {
    return a - b;
  }
};
struct Max {
  template <typename V>
  static TWIN_INLINE V run(V a, V b) {
    return twin::blend(a < b, b, a);
  }
};
struct Min {
  template <typename V>
  static TWIN_INLINE V run(V a, V b) {
    return twin::blend(b < a, b, a);
  }
};
struct BitAnd {
  template <typename V>
  static TWIN_INLINE V run(V a, V b) {
    return a & b;
  }
};
struct BitOr {
  template <typename V>
  static TWIN_INLINE V run(V a, V b) {
    return a | b;
  }
};
struct BitXor {
  template <typename V>
  static TWIN_INLINE V run(V a, V b) {
    return a ^ b;
  }
};

template <typename Op, typename T, unsigned Elems>
TWIN_INLINE void lanewise(const T *a, const T *b, T *out) {
  constexpr unsigned W = sizeof(T) == 1 ? (Elems < 32 ? Elems : 32) : sizeof(T) == 2 ? (Elems < 16 ? Elems : 16)
                                                                                    : twin::lanes<Elems>;
  using V = twin::simd<T, W>;
#pragma GCC unroll 16
  for (unsigned i = 0; i < Elems; i += W)
    twin::store(out + i, Op::run(twin::load<V>(a + i), twin::load<V>(b + i)));
}

/// Op on two vectors. `Wraps`: integers are computed unsigned. bfloat16 goes through fp32 and is rounded, unless the
/// result is always one of the operands (`Selects`).
template <typename Op, bool Wraps, bool Selects, typename T, unsigned Elems>
TWIN_INLINE vector<T, Elems> vector_op(const vector<T, Elems> &a, const vector<T, Elems> &b) {
  vector<T, Elems> out;
  if constexpr (std::is_same_v<T, bfloat16>) {
    alignas(64) float x[Elems], y[Elems], z[Elems];
    to_floats(a, x);
    to_floats(b, y);
    lanewise<Op, float, Elems>(x, y, z);
    twin::narrow<Elems>(z, raw(out), twin::narrow_rules[Selects ? 0 : twin::rounding()]);
    twin::count_vector(Selects ? twin::units(Elems, 32) : 4 * twin::units(Elems, 32));
  } else if constexpr (std::is_same_v<T, float>) {
    lanewise<Op, float, Elems>(raw(a), raw(b), raw(out));
    twin::count_vector(twin::units(Elems, Selects ? 16 : 32));
  } else if constexpr (Wraps) {
    using U = std::make_unsigned_t<T>;
    lanewise<Op, U, Elems>(reinterpret_cast<const U *>(raw(a)), reinterpret_cast<const U *>(raw(b)),
                           reinterpret_cast<U *>(raw(out)));
    twin::count_vector(twin::units(out.bits(), 512));
  } else {
    lanewise<Op, T, Elems>(raw(a), raw(b), raw(out));
    twin::count_vector(twin::units(out.bits(), 512));
  }
  return out;
}

/// A scalar operand as a vector of all its lanes, made without counting an instruction.
template <typename T, unsigned Elems>
TWIN_INLINE vector<T, Elems> spread(T value) {
  vector<T, Elems> out;
  T *to = raw(out);
  for (unsigned i = 0; i < Elems; ++i)
    to[i] = value;
  return out;
}

/// Operand `x` as the vector type V: V itself, or a scalar of V's element type.
template <typename V, typename X>
TWIN_INLINE V as_vector(const X &x) {
  if constexpr (Elem<X>)
    return spread<typename V::value_type, V::size()>(value_of(x));
  else
    return value_of(x);
}

template <typename A, typename B>
constexpr bool is_same_vector_pair() {
  if constexpr (Vector<A> && Vector<B>)
    return std::is_same_v<operand_t<A>, operand_t<B>>;
  else if constexpr (Vector<A> && Elem<B>)
    return std::is_same_v<typename operand_t<A>::value_type, operand_t<B>>;
  else if constexpr (Elem<A> && Vector<B>)
    return std::is_same_v<operand_t<A>, typename operand_t<B>::value_type>;
  else
    return false;
}

template <typename A, typename B>
using vector_of_pair = std::conditional_t<Vector<A>, operand_t<A>, operand_t<B>>;

/// Accumulator plus or minus an accumulator, vector or scalar.
template <typename Op, typename Tag, unsigned Elems>
TWIN_INLINE accum<Tag, Elems> accum_op(const accum<Tag, Elems> &a, const accum<Tag, Elems> &b) {
  accum<Tag, Elems> out;
  using L = accum_lane_t<Tag>;
  if constexpr (is_float_tag<Tag>) {
    lanewise<Op, L, Elems>(raw(a), raw(b), raw(out));
  } else {
    using U = std::make_unsigned_t<L>;
    lanewise<Op, U, Elems>(reinterpret_cast<const U *>(raw(a)), reinterpret_cast<const U *>(raw(b)),
                           reinterpret_cast<U *>(raw(out)));
  }
  twin::count_vector(twin::units(out.bits(), 1024));
  return out;
}

template <typename A, typename B>
constexpr bool is_accum_pair() {
  if constexpr (Accum<A> && Accum<B>)
    return same_accum<typename A::value_type, typename B::value_type> && A::size() == B::size();
  else if constexpr (Accum<A> && Vector<B>)
    return same_kind<typename A::value_type, typename operand_t<B>::value_type> && A::size() == operand_t<B>::size();
  else if constexpr (Accum<A> && Elem<B>)
    return same_kind<typename A::value_type, operand_t<B>>;
  else
    return false;
}

/// The second operand of an accumulator operation as an accumulator of the first one's type.
template <typename A, typename B>
TWIN_INLINE A as_accum(const B &b) {
  if constexpr (Accum<B>) {
    return b;
  } else if constexpr (Vector<B>) {
    return A(value_of(b));
  } else {
    A out;
    for (unsigned i = 0; i < A::size(); ++i)
      raw(out)[i] = static_cast<typename A::lane_type>(value_of(b));
    return out;
  }
}

}  // namespace detail

template <Operand A, Operand B>
  requires(Register<A> || Register<B>)
TWIN_INLINE auto add(const A &a, const B &b) {
  if constexpr (Accum<A> || Accum<B>) {
    static_assert(detail::is_accum_pair<A, B>(),
                  "aie::add: an accumulator adds an accumulator of its own tag and size, or a vector of its kind");
    if constexpr (detail::is_accum_pair<A, B>())
      return detail::accum_op<detail::Add>(a, detail::as_accum<A>(b));
  } else {
    static_assert(detail::is_same_vector_pair<A, B>(),
                  "aie::add: both vectors must have one type and size, a scalar the vector's element type");
    if constexpr (detail::is_same_vector_pair<A, B>()) {
      using V = detail::vector_of_pair<A, B>;
      return detail::vector_op<detail::Add, true, false>(detail::as_vector<V>(a), detail::as_vector<V>(b));
    }
  }
}

template <Operand A, Operand B>
  requires(Register<A> || Register<B>)
TWIN_INLINE auto sub(const A &a, const B &b) {
  if constexpr (Accum<A> || Accum<B>) {
    static_assert(detail::is_accum_pair<A, B>(),
                  "aie::sub: an accumulator subtracts an accumulator of its own tag and size, or a vector of its kind");
    if constexpr (detail::is_accum_pair<A, B>())
      return detail::accum_op<detail::Sub>(a, detail::as_accum<A>(b));
  } else {
    static_assert(detail::is_same_vector_pair<A, B>(),
                  "aie::sub: both vectors must have one type and size, a scalar the vector's element type");
    if constexpr (detail::is_same_vector_pair<A, B>()) {
      using V = detail::vector_of_pair<A, B>;
      return detail::vector_op<detail::Sub, true, false>(detail::as_vector<V>(a), detail::as_vector<V>(b));
    }
  }
}

template <Operand A, Operand B>
  requires(Vector<A> || Vector<B>)
TWIN_INLINE auto max(const A &a, const B &b) {
  static_assert(detail::is_same_vector_pair<A, B>(),
                "aie::max: both vectors must have one type and size, a scalar the vector's element type");
  if constexpr (detail::is_same_vector_pair<A, B>()) {
    using V = detail::vector_of_pair<A, B>;
    return detail::vector_op<detail::Max, false, true>(detail::as_vector<V>(a), detail::as_vector<V>(b));
  }
}

template <Operand A, Operand B>
  requires(Vector<A> || Vector<B>)
TWIN_INLINE auto min(const A &a, const B &b) {
  static_assert(detail::is_same_vector_pair<A, B>(),
                "aie::min: both vectors must have one type and size, a scalar the vector's element type");
  if constexpr (detail::is_same_vector_pair<A, B>()) {
    using V = detail::vector_of_pair<A, B>;
    return detail::vector_op<detail::Min, false, true>(detail::as_vector<V>(a), detail::as_vector<V>(b));
  }
}

/// Every lane held between lo and hi (vectors of v's type, or scalars of its element type).
template <Vector V, Operand L, Operand H>
TWIN_INLINE auto clamp(const V &v, const L &lo, const H &hi) {
  return min(max(v, lo), hi);
}

/// The sign turned round: of a vector, a scalar or an accumulator.
template <Operand A>
TWIN_INLINE auto neg(const A &a) {
  using X = detail::operand_t<A>;
  if constexpr (Elem<A>) {
    return static_cast<X>(-detail::value_of(a));
  } else {
    X out = detail::value_of(a);
    auto *lane = detail::raw(out);
    for (unsigned i = 0; i < X::size(); ++i) {
      if constexpr (detail::is_float_tag<typename X::value_type> || detail::is_float_element<typename X::value_type>)
        lane[i] = -lane[i];
      else
        lane[i] = static_cast<std::remove_reference_t<decltype(lane[i])>>(uint64_t{0} - static_cast<uint64_t>(lane[i]));
    }
    twin::count_vector(twin::units(out.bits(), Accum<A> ? 1024 : 512));
    return out;
  }
}

template <Operand A>
  requires(!Accum<A>)
TWIN_INLINE auto abs(const A &a) {
  using X = detail::operand_t<A>;
  if constexpr (Elem<A>) {
    const X value = detail::value_of(a);
    return value < X(0) ? neg(value) : value;
  } else {
    using T = typename X::value_type;
    X out = detail::value_of(a);
    T *lane = detail::raw(out);
    for (unsigned i = 0; i < X::size(); ++i) {
      if constexpr (std::is_same_v<T, bfloat16>)
        lane[i] = bfloat16::from_bits(lane[i].bits() & 0x7fff);
      else if constexpr (std::is_same_v<T, float>)
        lane[i] = __builtin_fabsf(lane[i]);
      else if constexpr (std::is_signed_v<T>)
        lane[i] = static_cast<T>(lane[i] < 0 ? uint64_t{0} - static_cast<uint64_t>(lane[i]) : lane[i]);
    }
    twin::count_vector(twin::units(out.bits(), 512));
    return out;
  }
}

#define TWIN_BIT_OPERATION(name, Op)                                                                              \
  template <Operand A, Operand B>                                                                                 \
    requires(Vector<A> || Vector<B>)                                                                              \
  TWIN_INLINE auto name(const A &a, const B &b) {                                                                 \
    using V = detail::vector_of_pair<A, B>;                                                                       \
    constexpr bool legal = detail::is_same_vector_pair<A, B>() && detail::is_int_element<typename V::value_type>; \
    static_assert(legal, "aie::" #name ": both operands must be integers of one type and size");                  \
    if constexpr (legal)                                                                                          \
      return detail::vector_op<detail::Op, true, false>(detail::as_vector<V>(a), detail::as_vector<V>(b));        \
  }
TWIN_BIT_OPERATION(bit_and, BitAnd)
TWIN_BIT_OPERATION(bit_or, BitOr)
TWIN_BIT_OPERATION(bit_xor, BitXor)
#undef TWIN_BIT_OPERATION

template <Vector V>
TWIN_INLINE auto bit_not(const V &v) {
  using X = detail::operand_t<V>;
  static_assert(X::is_integral(), "aie::bit_not: the vector must hold integers");
  return bit_xor(v, static_cast<typename X::value_type>(-1));
}

/// Integer lanes shifted left; the bits that leave are lost.
template <Vector V>
TWIN_INLINE auto upshift(const V &v, unsigned shift) {
  using X = detail::operand_t<V>;
  static_assert(X::is_integral(), "aie::upshift: the vector must hold integers");
  X out = detail::value_of(v);
  auto *lane = detail::raw(out);
  for (unsigned i = 0; i < X::size(); ++i)
    lane[i] = static_cast<typename X::value_type>(static_cast<uint64_t>(lane[i]) << shift);
  twin::count_vector(twin::units(out.bits(), 512));
  return out;
}

/// Integer lanes shifted right, the sign kept, toward minus infinity.
template <Vector V>
TWIN_INLINE auto downshift(const V &v, unsigned shift) {
  using X = detail::operand_t<V>;
  static_assert(X::is_integral(), "aie::downshift: the vector must hold integers");
  X out = detail::value_of(v);
  auto *lane = detail::raw(out);
  for (unsigned i = 0; i < X::size(); ++i)
    lane[i] = static_cast<typename X::value_type>(static_cast<int64_t>(lane[i]) >> shift);
  twin::count_vector(twin::units(out.bits(), 512));
  return out;
}

}  // namespace aie
