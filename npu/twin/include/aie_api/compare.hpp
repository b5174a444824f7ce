// SPDX-License-Identifier: Apache-2.0
//
// Comparisons, which make masks, select, which uses one, and reductions to a scalar.
//
// A comparison with a NaN is false (neq is true). reduce_add adds in the device's order: parts of 32 lanes one after
// the other, then halves onto halves; bfloat16 is summed in fp32 and rounded once by the register.

#pragma once

#include "arithmetic.hpp"
#include "mask.hpp"

namespace aie {

namespace detail {

struct Less {
  template <typename T>
  static TWIN_INLINE bool run(T a, T b) {
    return a < b;
  }
};
struct LessEqual {
  template <typename T>
  static TWIN_INLINE bool run(T a, T b) {
    return a <= b;
  }
};
struct Greater {
  template <typename T>
  static TWIN_INLINE bool run(T a, T b) {
    return a > b;
  }
};
struct GreaterEqual {
  template <typename T>
  static TWIN_INLINE bool run(T a, T b) {
    return a >= b;
  }
};
struct Equal {
  template <typename T>
  static TWIN_INLINE bool run(T a, T b) {
    return a == b;
  }
};
struct NotEqual {
  template <typename T>
  static TWIN_INLINE bool run(T a, T b) {
    return a != b;
  }
};

template <typename Op, typename T, unsigned Elems>
TWIN_INLINE mask<Elems> compare(const vector<T, Elems> &a, const vector<T, Elems> &b) {
  mask<Elems> out;
  if constexpr (std::is_same_v<T, bfloat16>) {
    alignas(64) float x[Elems], y[Elems];
    to_floats(a, x);
    to_floats(b, y);
    for (unsigned i = 0; i < Elems; ++i)
      raw(out)[i] = Op::run(x[i], y[i]) ? 0xff : 0;
  } else {
    for (unsigned i = 0; i < Elems; ++i)
      raw(out)[i] = Op::run(raw(a)[i], raw(b)[i]) ? 0xff : 0;
  }
  twin::count_vector(twin::units(a.bits(), 512));
  return out;
}

}  // namespace detail

#define TWIN_COMPARISON(name, Op)                                                                                  \
  template <Operand A, Operand B>                                                                                  \
    requires(Vector<A> || Vector<B>)                                                                               \
  TWIN_INLINE auto name(const A &a, const B &b) {                                                                  \
    static_assert(detail::is_same_vector_pair<A, B>(),                                                             \
                  "aie::" #name ": both vectors must have one type and size, a scalar the vector's element type"); \
    if constexpr (detail::is_same_vector_pair<A, B>()) {                                                           \
      using V = detail::vector_of_pair<A, B>;                                                                      \
      return detail::compare<detail::Op>(detail::as_vector<V>(a), detail::as_vector<V>(b));                        \
    }                                                                                                              \
  }
TWIN_COMPARISON(lt, Less)
TWIN_COMPARISON(le, LessEqual)
TWIN_COMPARISON(gt, Greater)
TWIN_COMPARISON(ge, GreaterEqual)
TWIN_COMPARISON(eq, Equal)
TWIN_COMPARISON(neq, NotEqual)
#undef TWIN_COMPARISON

/// b where the mask is set, a elsewhere.
template <Operand A, Operand B, unsigned Elems>
  requires(!Accum<A> && !Accum<B>)
TWIN_INLINE auto select(const A &a, const B &b, const mask<Elems> &m) {
  if constexpr (Elem<A> && Elem<B>) {
    using T = detail::operand_t<A>;
    static_assert(std::is_same_v<T, detail::operand_t<B>>, "aie::select: both scalars must have one type");
    return select(detail::spread<T, Elems>(detail::value_of(a)), detail::value_of(b), m);
  } else {
    using V = detail::vector_of_pair<A, B>;
    constexpr bool legal = detail::is_same_vector_pair<A, B>() && V::size() == Elems;
    static_assert(legal, "aie::select: both operands must have one type and size, and the mask as many lanes");
    if constexpr (legal) {
      const V no = detail::as_vector<V>(a), yes = detail::as_vector<V>(b);
      V out;
      for (unsigned i = 0; i < Elems; ++i)
        detail::raw(out)[i] = detail::raw(m)[i] ? detail::raw(yes)[i] : detail::raw(no)[i];
      twin::count_vector(twin::units(out.bits(), 512));
      return out;
    }
  }
}

template <Vector V>
TWIN_INLINE auto reduce_add(const V &v) {
  using X = detail::operand_t<V>;
  using T = typename X::value_type;
  constexpr unsigned N = X::size();
  const X in = detail::value_of(v);
  if constexpr (detail::is_float_element<T>) {
    alignas(64) float lane[N];
    detail::to_floats(in, lane);
    constexpr unsigned part = N < 32 ? N : 32;
    for (unsigned i = part; i < N; i += part)
      detail::lanewise<detail::Add, float, part>(lane, lane + i, lane);
#pragma GCC unroll 8
    for (unsigned half = part / 2; half > 0; half /= 2)
      for (unsigned i = 0; i < half; ++i)
        lane[i] = lane[i] + lane[i + half];
    twin::count_vector(twin::units(N, 32) + 2 * __builtin_ctz(part));
    return T(lane[0]);
  } else {
    uint64_t sum = 0;
    for (unsigned i = 0; i < N; ++i)
      sum += static_cast<uint64_t>(detail::raw(in)[i]);
    twin::count_vector(twin::units(in.bits(), 512) + 2 * __builtin_ctz(N));
    return static_cast<T>(sum);
  }
}

/// The sums of up to four vectors in the first lanes; the other lanes are undefined on the device and poison here.
template <Vector V, Vector... Vs>
TWIN_INLINE auto reduce_add_v(const V &v, const Vs &...rest) {
  using X = detail::operand_t<V>;
  static_assert((std::is_same_v<X, detail::operand_t<Vs>> && ...), "aie::reduce_add_v: all vectors must have one type");
  static_assert(sizeof...(Vs) < 4, "aie::reduce_add_v: at most four vectors");
  X out;
  unsigned lane = 0;
  detail::raw(out)[lane++] = reduce_add(v);
  ((detail::raw(out)[lane++] = reduce_add(rest)), ...);
  return out;
}

template <Vector V>
TWIN_INLINE auto reduce_max(const V &v) {
  using X = detail::operand_t<V>;
  const X in = detail::value_of(v);
  typename X::value_type best = detail::raw(in)[0];
  for (unsigned i = 1; i < X::size(); ++i)
    best = best < detail::raw(in)[i] ? detail::raw(in)[i] : best;
  twin::count_vector(2 * __builtin_ctz(X::size()));
  return best;
}

template <Vector V>
TWIN_INLINE auto reduce_min(const V &v) {
  using X = detail::operand_t<V>;
  const X in = detail::value_of(v);
  typename X::value_type best = detail::raw(in)[0];
  for (unsigned i = 1; i < X::size(); ++i)
    best = detail::raw(in)[i] < best ? detail::raw(in)[i] : best;
  twin::count_vector(2 * __builtin_ctz(X::size()));
  return best;
}

// Scalar maximum and minimum of floats.
template <typename T>
  requires detail::is_float_element<T>
TWIN_INLINE T max(T a, T b) {
  return a < b ? b : a;
}
template <typename T>
  requires detail::is_float_element<T>
TWIN_INLINE T min(T a, T b) {
  return b < a ? b : a;
}

}  // namespace aie
