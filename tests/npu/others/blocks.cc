// SPDX-License-Identifier: Apache-2.0
//
// Kernels on blocks of bfp16ebs8 and on shuffled registers, written as public ones are.

#include <aie_api/aie.hpp>
#include <aie_api/utils.hpp>

extern "C" {

void pass_blocks(v128bfp16ebs8 *in, v128bfp16ebs8 *out) { *out = *in; }

// c = a * transpose(b), fp32: eight blocks of each.
void multiply_blocks(bfp16ebs8 *a, bfp16ebs8 *b, float *c) {
  aie::block_vector<bfp16ebs8, 64> rows, columns;
  aie::block_vector_input_buffer_stream<bfp16ebs8, 64> from_a(a), from_b(b);
  from_a >> rows;
  from_b >> columns;
  aie::store_v(c, mul_8x8_8x8T(rows, columns).to_vector<float>());
}

// 64 bytes for each mode, in this order.
void shuffle_modes(uint8_t *in, uint8_t *out) {
  const aie::vector<uint8_t, 64> a = aie::load_v<64>(in), b = aie::load_v<64>(in + 64);
  const twin::ShuffleMode modes[] = {
      T8_8x8,       T8_16x4,      T8_4x16,      T16_8x4,      T16_4x8,      T16_16x2,     T16_2x16,     T32_4x4,
      T8_64x2_lo,   T8_64x2_hi,   T8_2x64_lo,   T8_2x64_hi,   T16_32x2_lo,  T16_32x2_hi,  T16_2x32_lo,  T16_2x32_hi,
      T16_16x4_lo,  T16_16x4_hi,  T16_4x16_lo,  T16_4x16_hi,  T32_16x2_lo,  T32_16x2_hi,  T32_2x16_lo,  T32_2x16_hi,
      T32_8x4_lo,   T32_8x4_hi,   T32_4x8_lo,   T32_4x8_hi,   T64_8x2_lo,   T64_8x2_hi,   T64_2x8_lo,   T64_2x8_hi,
      T128_4x2_lo,  T128_4x2_hi,  T128_2x4_lo,  T128_2x4_hi,  T256_2x2_lo,  T256_2x2_hi,  T512_1x2_lo,  T512_1x2_hi,
  };
  for (const auto &mode : modes) {
    aie::store_v(out, shuffle(a, b, mode));
    out += 64;
  }
}

}  // extern "C"
