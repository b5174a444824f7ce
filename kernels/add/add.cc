// SPDX-License-Identifier: Apache-2.0
// Residual addition y = a + b over DIM bf16 elements: the sum is fp32, rounded once.
#include <aie_api/aie.hpp>
#include <stdint.h>

#ifndef DIM
#error "add.cc needs -DDIM"
#endif

static_assert(DIM % 32 == 0, "whole vectors of 32 bf16 elements");

extern "C" {

void add(const bfloat16 *a, const bfloat16 *b, bfloat16 *y) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned i = 0; i < DIM; i += 32) {
    aie::accum<accfloat, 32> left, right;
    left.from_vector(aie::load_v<32>(a + i));
    right.from_vector(aie::load_v<32>(b + i));
    aie::store_v(y + i, aie::add(left, right).template to_vector<bfloat16>());
  }
}

} // extern "C"
