// SPDX-License-Identifier: Apache-2.0
// RMSNorm of ROWS rows: y = x * gamma / sqrt(mean(x^2) + EPSILON).
//
// x, y   [ROWS][DIM] bf16; the true row is DIM_VALID long, what follows is padding: never read into a result, and
//        written as zero
// gamma  [DIM] bf16
// Sum of squares, mean and scale are fp32. The scale multiplies as three bf16 terms (8 + 8 + 8 bits of its 24-bit
// significand), since AIE2P multiplies bf16 exactly and has no fp32 vector multiplier; y is rounded once.
#include "../include/normalised_row.hpp"

#if !defined(DIM) || !defined(DIM_VALID) || !defined(EPSILON) || !defined(ROWS)
#error "rmsnorm.cc needs -DDIM, -DDIM_VALID, -DEPSILON and -DROWS"
#endif

extern "C" {

void rmsnorm_rows(const bfloat16 *x, const bfloat16 *gamma, bfloat16 *y) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned row = 0; row < ROWS; ++row)
    NormalisedRow<DIM, DIM_VALID>::store(x + row * DIM, gamma, y + row * DIM, float(EPSILON));
}

} // extern "C"
