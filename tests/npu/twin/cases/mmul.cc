// SPDX-License-Identifier: Apache-2.0
// One matrix product a call: c += a * b over K / k steps of blocks that lie one after the other.
#include <aie_api/aie.hpp>

template <unsigned M, unsigned K, unsigned N, typename A, typename B, typename C>
static void product(const A *a, const B *b, C *c, int32_t steps) {
  using Block = aie::mmul<M, K, N, A, B>;
  Block block(aie::load_v<Block::size_C>(c));
  for (int i = 0; i < steps; ++i)
    block.mac(aie::load_v<Block::size_A>(a + i * Block::size_A), aie::load_v<Block::size_B>(b + i * Block::size_B));
  aie::store_v(c, block.template to_vector<C>());
}

#define CASE(M, K, N, A, B, C) \
  void mmul_##M##_##K##_##N##_##A##_##B(const A *a, const B *b, C *c, int32_t steps) { product<M, K, N>(a, b, c, steps); }

extern "C" {
CASE(8, 8, 8, bfloat16, bfloat16, float)
CASE(4, 8, 8, bfloat16, bfloat16, float)
CASE(8, 8, 4, bfloat16, bfloat16, float)
CASE(4, 8, 4, bfloat16, bfloat16, float)
CASE(8, 1, 8, bfloat16, bfloat16, float)
#ifndef AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16
CASE(2, 8, 8, int8, int8, int32)
CASE(4, 8, 8, int8, int8, int32)
CASE(8, 8, 8, int8, int8, int32)
CASE(8, 8, 8, uint8, int8, int32)
CASE(4, 4, 8, int16, int16, int32)
CASE(8, 2, 8, int16, int16, int32)
CASE(4, 4, 8, int16, int8, int32)
CASE(4, 4, 8, int32, int16, int32)
CASE(4, 4, 8, int32, int32, int32)
#endif

void quantise(const float *in, bfp16ebs8 *out, float *values) {
  const aie::accum<accfloat, 64> acc(aie::load_v<64>(in));
  const auto blocks = acc.to_vector<bfp16ebs8>();
  aie::block_vector_output_buffer_stream<bfp16ebs8, 64> stream(out);
  stream << blocks;
  aie::store_v(values, aie::accum<accfloat, 64>(blocks).to_vector<float>());
}

void block_product(const float *a, const float *b_transposed, float *c) {
  const auto x = aie::accum<accfloat, 64>(aie::load_v<64>(a)).to_vector<bfp16ebs8>();
  const auto y = aie::accum<accfloat, 64>(aie::load_v<64>(b_transposed)).to_vector<bfp16ebs8>();
  const aie::accum<accfloat, 64> acc = mac_8x8_8x8T(x, y, aie::accum<accfloat, 64>(aie::load_v<64>(c)));
  aie::store_v(c, acc.to_vector<float>());
}

void set_rounding(int32_t mode) { aie::set_rounding(static_cast<aie::rounding_mode>(mode)); }
}
