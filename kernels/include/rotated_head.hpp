// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding of one head, half-split: element i turns with element i + head_dim/2.
//
//   y[i]       = x[i]       * cos[i] - x[i + D/2] * sin[i]
//   y[i + D/2] = x[i + D/2] * cos[i] + x[i]       * sin[i]        i in 0 .. D/2 - 1
//
// cos_sin  [head_dim] bf16: head_dim/2 cosines, then head_dim/2 sines. Products are exact, their sum is fp32, rounded once.
#pragma once
#include <aie_api/aie.hpp>

// Lanes of the vectors that half a head is made of.
template <unsigned head_dim>
inline constexpr unsigned rotation_lanes = head_dim / 2 % 32 == 0 ? 32 : head_dim / 2 % 16 == 0 ? 16 : 8;

template <unsigned head_dim>
inline void rotate_head(const bfloat16 *__restrict x, const bfloat16 *__restrict cos_sin, bfloat16 *__restrict y) {
  static_assert(head_dim % 16 == 0, "half a head is whole vectors of 8 bf16 elements");
  constexpr unsigned half = head_dim / 2, lanes = rotation_lanes<head_dim>;
  for (unsigned i = 0; i < half; i += lanes) {
    const aie::vector<bfloat16, lanes> low = aie::load_v<lanes>(x + i), high = aie::load_v<lanes>(x + half + i);
    const aie::vector<bfloat16, lanes> cosine = aie::load_v<lanes>(cos_sin + i);
    const aie::vector<bfloat16, lanes> sine = aie::load_v<lanes>(cos_sin + half + i);
    aie::accum<accfloat, lanes> turned_low = aie::mul(low, cosine);
    turned_low = aie::msc(turned_low, high, sine);
    aie::accum<accfloat, lanes> turned_high = aie::mul(high, cosine);
    turned_high = aie::mac(turned_high, low, sine);
    aie::store_v(y + i, turned_low.template to_vector<bfloat16>());
    aie::store_v(y + half + i, turned_high.template to_vector<bfloat16>());
  }
}
