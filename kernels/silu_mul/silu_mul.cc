// SPDX-License-Identifier: Apache-2.0
// SwiGLU's pointwise half: y = silu(gate) * up over DIM bf16 elements, fp32 inside, rounded once.
//
// silu(g) = g / (1 + 2^(-g log2 e)). exp2 is the hardware's, with a bf16 result (relative error 2^-9); the bf16
// reciprocal r of the denominator d gets one Newton step, g r (2 - d r), with d r summed exactly in fp32. The tanh form
// g/2 (1 + tanh(g/2)) is not used: 1 + tanh cancels for negative gates, where a bf16 tanh leaves no correct bit.
#include <aie_api/aie.hpp>
#include <stdint.h>

#ifndef DIM
#error "silu_mul.cc needs -DDIM"
#endif

static_assert(DIM % 32 == 0, "whole vectors of 32 bf16 elements");

namespace {

constexpr unsigned lanes = 32;

using Vector = aie::vector<bfloat16, lanes>;
using Sum = aie::accum<accfloat, lanes>;

inline Sum constant(float value) {
  Sum out;
  out.from_vector(aie::broadcast<float, lanes>(value));
  return out;
}

// 2^(-g log2 e), with log2 e as three bf16 terms.
inline Vector exponential_of_minus(const Vector &g) {
  constexpr float log2e = 1.44269504088896f;
  constexpr float high = 1.4453125f, middle = -0.00262451171875f, low = log2e - high - middle;
  Sum exponent = aie::mul(g, aie::broadcast<bfloat16, lanes>(bfloat16(-low)));
  exponent = aie::mac(exponent, g, aie::broadcast<bfloat16, lanes>(bfloat16(-middle)));
  exponent = aie::mac(exponent, g, aie::broadcast<bfloat16, lanes>(bfloat16(-high)));
  return aie::exp2<bfloat16>(exponent.template to_vector<float>());
}

inline Vector silu_mul_vector(const Vector &gate, const Vector &u, const Vector &one) {
  // silu(-64) = -1e-26 stands for every smaller gate, and 2^92 for every larger denominator: nothing overflows.
  const Vector g = aie::max(gate, aie::broadcast<bfloat16, lanes>(bfloat16(-64.0f)));
  const Vector e = exponential_of_minus(g);
  const Vector r = aie::inv(aie::add(constant(1.0f), e).template to_vector<bfloat16>());
  Sum error = aie::msc(constant(1.0f), r, one); // 1 - d r, with d = 1 + e
  error = aie::msc(error, r, e);
  Sum silu = aie::mul(g, r);
  silu = aie::mac(silu, silu.template to_vector<bfloat16>(), error.template to_vector<bfloat16>());
  const Vector high = silu.template to_vector<bfloat16>();
  const Sum rest = aie::sub(silu, high);
  const Vector middle = rest.template to_vector<bfloat16>();
  const Vector low = aie::sub(rest, middle).template to_vector<bfloat16>();
  Sum y = aie::mul(low, u);
  y = aie::mac(y, middle, u);
  y = aie::mac(y, high, u);
  return y.template to_vector<bfloat16>();
}

} // namespace

extern "C" {

void silu_mul(const bfloat16 *gate, const bfloat16 *up, bfloat16 *y) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const Vector one = aie::broadcast<bfloat16, lanes>(bfloat16(1.0f));
  for (unsigned i = 0; i < DIM; i += lanes)
    aie::store_v(y + i, silu_mul_vector(aie::load_v<lanes>(gate + i), aie::load_v<lanes>(up + i), one));
}

} // extern "C"
