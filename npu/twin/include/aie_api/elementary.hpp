// SPDX-License-Identifier: Apache-2.0
//
// exp2 and tanh (vector of float in, bfloat16 out), inv, invsqrt, sqrt, div.
//
// The device's exp2 and tanh tables are not published. Here each is computed in fp32 by a polynomial without libm, and
// rounded to the nearest bfloat16 (ties to even) whatever the rounding register says: within 1 bfloat16 ulp of the true
// value. inv, invsqrt and sqrt of a float are IEEE divisions and square roots, rounded to nearest. inv and invsqrt of
// bfloat16 vectors follow the device's own instruction sequences, with their roundings by the register.

#pragma once

#include "compare.hpp"
#include "multiply.hpp"

namespace twin {

/// 2^x, about 1e-7 relative. Lanes below -151 give 0, above 128 infinity; NaN stays NaN.
template <typename F>
TWIN_INLINE F exp2_lanes(F x) {
  using I = decltype(x < x);
  using U = simd<uint32_t, sizeof(F) / 4>;
  F in = blend(x > 130.0f, F{} + 130.0f, x);
  in = blend(in < -152.0f, F{} - 152.0f, in);
  // Adding and subtracting 1.5 * 2^23 rounds to an integer.
  const F whole = (in + 12582912.0f) - 12582912.0f;
  const F f = in - whole;
  // The Taylor series of 2^f = exp(f ln 2) to the sixth power, |f| <= 1/2.
  F p = F{} + 1.540353039e-4f;
  p = p * f + 1.333355815e-3f;
  p = p * f + 9.618129108e-3f;
  p = p * f + 5.550410866e-2f;
  p = p * f + 2.402265070e-1f;
  p = p * f + 6.931471806e-1f;
  p = p * f + 1.0f;
  // Two factors, so that results below 2^-126 come out as denormals and above 2^127 as infinity.
  const I n = __builtin_convertvector(blend(x == x, whole, F{}), I);
  const I half = n >> 1;
  const F low = (F)((U)(half + 127) << 23);
  const F high = (F)((U)(n - half + 127) << 23);
  const F y = (p * low) * high;
  return blend(x == x, y, x);
}

/// tanh x, about 1e-6 relative.
template <typename F>
TWIN_INLINE F tanh_lanes(F x) {
  using I = decltype(x < x);
  const I sign = (I)x & INT32_MIN;
  F a = (F)((I)x ^ sign);
  a = blend(a > 20.0f, F{} + 20.0f, a);
  // Below 1: the continued fraction of tanh, to the seventh power. From 1 on: (1 - e) / (1 + e), e = exp(-2x).
  const F s = a * a;
  const F small_over = a * (((s + 378.0f) * s + 17325.0f) * s + 135135.0f);
  const F small_under = ((s * 28.0f + 3150.0f) * s + 62370.0f) * s + 135135.0f;
  const F e = exp2_lanes(a * -2.885390082f);
  const I small = a < 1.0f;
  const F y = blend(small, small_over, 1.0f - e) / blend(small, small_under, 1.0f + e);
  return blend(x == x, (F)((I)y | sign), x);
}

}  // namespace twin

namespace aie {

namespace detail {

/// A function of host vectors over the lanes of a float vector, rounded to the nearest bfloat16.
template <unsigned Elems, typename Function>
TWIN_INLINE vector<bfloat16, Elems> elementary(const vector<float, Elems> &v, Function function) {
  constexpr unsigned W = twin::lanes<Elems>;
  vector<bfloat16, Elems> out;
  for (unsigned i = 0; i < Elems; i += W) {
    const auto y = function(twin::load<twin::simd<float, W>>(raw(v) + i));
    const auto bits = twin::narrow_bits_simd((twin::simd<uint32_t, W>)y, twin::narrow_rules[12]);
    twin::store(raw(out) + i, __builtin_convertvector(bits, twin::simd<uint16_t, W>));
  }
  const unsigned ops = twin::units(Elems, 16);
  twin::count_vector(ops);
  twin::core().elementary_ops += ops;
  return out;
}

template <typename X>
constexpr bool is_elementary_input() {
  if constexpr (Vector<X>)
    return std::is_same_v<typename operand_t<X>::value_type, float> && operand_t<X>::size() >= 8;
  else
    return false;
}

TWIN_INLINE void count_scalar() { twin::core().elementary_ops += 1; }

TWIN_INLINE float scalar_inv(float x) {
  count_scalar();
  return 1.0f / x;
}
TWIN_INLINE float scalar_sqrt(float x) {
  count_scalar();
  return __builtin_sqrtf(x);
}
TWIN_INLINE float scalar_invsqrt(float x) {
  count_scalar();
  return 1.0f / __builtin_sqrtf(x);
}

/// 1/x in bfloat16: a first guess by integer subtraction, two refinements, each step rounded by the register.
template <unsigned Elems>
inline vector<bfloat16, Elems> inv_bf16(const vector<bfloat16, Elems> &v) {
  using V = vector<bfloat16, Elems>;
  constexpr bfloat16 k1 = 1.9395974f;
  V y;
  for (unsigned i = 0; i < Elems; ++i)
    raw(y)[i] = bfloat16::from_bits(static_cast<uint16_t>(0x7eb5 - raw(v)[i].bits()));
  twin::count_vector(1);
  const V step = add(negmul(v, y), 1.436142f).template to_vector<bfloat16>();
  const V scaled = mul(step, y).template to_vector<bfloat16>();
  const V minus_y = negmul(scaled, k1).template to_vector<bfloat16>();
  accum<accfloat, Elems> two;
  for (unsigned i = 0; i < Elems; ++i)
    raw(two)[i] = 2.0f;
  const V rest = mac(two, minus_y, v).template to_vector<bfloat16>();
  return negmul(minus_y, rest).template to_vector<bfloat16>();
}

/// 1/sqrt(x) in bfloat16: a first guess from half the exponent, one refinement, rounded by the register.
template <unsigned Elems>
inline vector<bfloat16, Elems> invsqrt_bf16(const vector<bfloat16, Elems> &v) {
  using V = vector<bfloat16, Elems>;
  constexpr float c2 = 0.703952253f, c3 = 2.38924456f;
  constexpr bfloat16 c2_bf16 = c2;
  const V x2 = mul(v, c2_bf16).template to_vector<bfloat16>();
  accum<accfloat, Elems> guess, c2c3;
  const uint32_t round = twin::rounding();
  for (unsigned i = 0; i < Elems; ++i) {
    const auto bits = static_cast<int32_t>(static_cast<uint32_t>(raw(v)[i].bits()) << 16);
    const auto half = static_cast<int32_t>(twin::shift_round(bits, 1, round));
    raw(guess)[i] = std::bit_cast<float>(0x5F1FFFF9 - half);
    raw(c2c3)[i] = c2 * c3;
  }
  twin::count_vector(4);
  const V y = guess.template to_vector<bfloat16>();
  const V yy = mul(y, y).template to_vector<bfloat16>();
  const V factor = msc(c2c3, x2, yy).template to_vector<bfloat16>();
  return mul(y, factor).template to_vector<bfloat16>();
}

}  // namespace detail

/// 2^v in bfloat16.
template <typename T = bfloat16, Operand V>
TWIN_INLINE auto exp2(const V &v) {
  static_assert(std::is_same_v<T, bfloat16>, "aie::exp2<T>: T must be bfloat16");
  static_assert(detail::is_elementary_input<V>(), "aie::exp2: the operand must be a vector of float (to_vector<float>)");
  if constexpr (detail::is_elementary_input<V>())
    return detail::elementary(detail::value_of(v), [](auto x) { return twin::exp2_lanes(x); });
}

/// tanh v in bfloat16.
template <typename T = bfloat16, Operand V>
TWIN_INLINE auto tanh(const V &v) {
  static_assert(std::is_same_v<T, bfloat16>, "aie::tanh<T>: T must be bfloat16");
  static_assert(detail::is_elementary_input<V>(), "aie::tanh: the operand must be a vector of float (to_vector<float>)");
  if constexpr (detail::is_elementary_input<V>())
    return detail::elementary(detail::value_of(v), [](auto x) { return twin::tanh_lanes(x); });
}

#define TWIN_RECIPROCAL(name)                                                                               \
  template <Operand X>                                                                                      \
    requires(!Accum<X>)                                                                                     \
  TWIN_INLINE auto name(const X &x) {                                                                       \
    static_assert(detail::is_float_element<detail::element_t<X>>, "aie::" #name ": float or bfloat16 only"); \
    if constexpr (Elem<X>) {                                                                                \
      using T = detail::operand_t<X>;                                                                       \
      if constexpr (std::is_same_v<T, float>)                                                               \
        return detail::scalar_##name(detail::value_of(x));                                                  \
      else                                                                                                  \
        return detail::name##_bf16(detail::spread<bfloat16, 32>(detail::value_of(x))).get(0);               \
    } else if constexpr (std::is_same_v<detail::element_t<X>, bfloat16>) {                                  \
      return detail::name##_bf16(detail::value_of(x));                                                      \
    } else {                                                                                                \
      auto out = detail::value_of(x);                                                                       \
      for (unsigned i = 0; i < out.size(); ++i)                                                             \
        detail::raw(out)[i] = detail::scalar_##name(detail::raw(out)[i]);                                   \
      return out;                                                                                           \
    }                                                                                                       \
  }
TWIN_RECIPROCAL(inv)
TWIN_RECIPROCAL(invsqrt)
#undef TWIN_RECIPROCAL

/// The square root of a scalar: AIE2P has no vector form.
template <Operand X>
TWIN_INLINE auto sqrt(const X &x) {
  constexpr bool legal = Elem<X> && detail::is_float_element<detail::operand_t<X>>;
  static_assert(legal, "aie::sqrt: the operand must be a float or bfloat16 scalar");
  if constexpr (legal)
    return static_cast<detail::operand_t<X>>(detail::scalar_sqrt(static_cast<float>(detail::value_of(x))));
}

/// a * inv(b), an accumulator.
template <Operand A, Operand B>
  requires(Vector<A>)
TWIN_INLINE auto div(const A &a, const B &b) {
  return mul(a, inv(b));
}

}  // namespace aie
