// SPDX-License-Identifier: Apache-2.0
// GEMM tile: C += A * B with bf16 operands and an fp32 accumulator that stays in the core.
//
// Layouts are blocked by the 8x8x8 matrix unit, each block row-major:
//   a   [DIM_M/8][DIM_K/8][8 m][8 k]     b [DIM_K/8][DIM_N/8][8 k][8 n]
//   acc [DIM_M/8][DIM_N/8][8 m][8 n]     c the same as acc
// A core calls gemm_zero once a tile, gemm_accumulate once a K step and gemm_store once at the end, so that a C
// element is rounded once however long K is.
#include <aie_api/aie.hpp>
#include <stdint.h>

#if !defined(DIM_M) || !defined(DIM_K) || !defined(DIM_N)
#error "gemm.cc needs -DDIM_M, -DDIM_K and -DDIM_N"
#endif
#ifndef C_F32
#define C_F32 0
#endif

static_assert(DIM_M % 8 == 0 && DIM_K % 8 == 0 && DIM_N % 8 == 0, "the matrix unit multiplies 8x8x8 blocks");

namespace {

using Block = aie::mmul<8, 8, 8, bfloat16, bfloat16, accauto>;

constexpr unsigned block = 64; // elements of one 8x8 block
constexpr unsigned m_blocks = DIM_M / 8;
constexpr unsigned k_blocks = DIM_K / 8;
constexpr unsigned n_blocks = DIM_N / 8;

// Accumulators held in registers at once: 2x2 loads each operand half as often as 1x1.
constexpr unsigned m_group = m_blocks % 2 == 0 ? 2 : 1;
constexpr unsigned n_group = n_blocks % 2 == 0 ? 2 : 1;

inline void accumulate_2x2(const bfloat16 *__restrict a, const bfloat16 *__restrict b, float *__restrict acc) {
  const bfloat16 *a0 = a;
  const bfloat16 *a1 = a + k_blocks * block;
  float *acc0 = acc;
  float *acc1 = acc + n_blocks * block;
  Block c00(aie::load_v<block>(acc0)), c01(aie::load_v<block>(acc0 + block));
  Block c10(aie::load_v<block>(acc1)), c11(aie::load_v<block>(acc1 + block));
  for (unsigned k = 0; k < k_blocks; ++k) {
    const aie::vector<bfloat16, block> left0 = aie::load_v<block>(a0), left1 = aie::load_v<block>(a1);
    const aie::vector<bfloat16, block> right0 = aie::load_v<block>(b), right1 = aie::load_v<block>(b + block);
    c00.mac(left0, right0);
    c01.mac(left0, right1);
    c10.mac(left1, right0);
    c11.mac(left1, right1);
    a0 += block;
    a1 += block;
    b += n_blocks * block;
  }
  aie::store_v(acc0, c00.template to_vector<float>());
  aie::store_v(acc0 + block, c01.template to_vector<float>());
  aie::store_v(acc1, c10.template to_vector<float>());
  aie::store_v(acc1 + block, c11.template to_vector<float>());
}

inline void accumulate_2x1(const bfloat16 *__restrict a, const bfloat16 *__restrict b, float *__restrict acc) {
  const bfloat16 *a0 = a;
  const bfloat16 *a1 = a + k_blocks * block;
  float *acc1 = acc + n_blocks * block;
  Block c0(aie::load_v<block>(acc)), c1(aie::load_v<block>(acc1));
  for (unsigned k = 0; k < k_blocks; ++k) {
    const aie::vector<bfloat16, block> right = aie::load_v<block>(b);
    c0.mac(aie::load_v<block>(a0), right);
    c1.mac(aie::load_v<block>(a1), right);
    a0 += block;
    a1 += block;
    b += n_blocks * block;
  }
  aie::store_v(acc, c0.template to_vector<float>());
  aie::store_v(acc1, c1.template to_vector<float>());
}

inline void accumulate_1x2(const bfloat16 *__restrict a, const bfloat16 *__restrict b, float *__restrict acc) {
  Block c0(aie::load_v<block>(acc)), c1(aie::load_v<block>(acc + block));
  for (unsigned k = 0; k < k_blocks; ++k) {
    const aie::vector<bfloat16, block> left = aie::load_v<block>(a);
    c0.mac(left, aie::load_v<block>(b));
    c1.mac(left, aie::load_v<block>(b + block));
    a += block;
    b += n_blocks * block;
  }
  aie::store_v(acc, c0.template to_vector<float>());
  aie::store_v(acc + block, c1.template to_vector<float>());
}

inline void accumulate_1x1(const bfloat16 *__restrict a, const bfloat16 *__restrict b, float *__restrict acc) {
  Block c(aie::load_v<block>(acc));
  for (unsigned k = 0; k < k_blocks; ++k) {
    c.mac(aie::load_v<block>(a), aie::load_v<block>(b));
    a += block;
    b += n_blocks * block;
  }
  aie::store_v(acc, c.template to_vector<float>());
}

} // namespace

extern "C" {

// acc = 0.
void gemm_zero(float *acc) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const aie::vector<float, 16> zero = aie::zeros<float, 16>();
  for (unsigned i = 0; i < DIM_M * DIM_N; i += 16)
    aie::store_v(acc + i, zero);
}

// acc += a * b.
void gemm_accumulate(const bfloat16 *a, const bfloat16 *b, float *acc) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned m = 0; m < m_blocks; m += m_group) {
    for (unsigned n = 0; n < n_blocks; n += n_group) {
      const bfloat16 *left = a + m * k_blocks * block;
      const bfloat16 *right = b + n * block;
      float *sum = acc + (m * n_blocks + n) * block;
      if constexpr (m_group == 2 && n_group == 2)
        accumulate_2x2(left, right, sum);
      else if constexpr (m_group == 2)
        accumulate_2x1(left, right, sum);
      else if constexpr (n_group == 2)
        accumulate_1x2(left, right, sum);
      else
        accumulate_1x1(left, right, sum);
    }
  }
}

// c = acc, rounded once to bf16 (to nearest even), or copied as fp32.
#if C_F32
void gemm_store(const float *acc, float *c) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned i = 0; i < DIM_M * DIM_N; i += 16)
    aie::store_v(c + i, aie::load_v<16>(acc + i));
}
#else
void gemm_store(const float *acc, bfloat16 *c) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned i = 0; i < DIM_M * DIM_N; i += 32) {
    aie::accum<accfloat, 32> sum;
    sum.from_vector(aie::load_v<32>(acc + i));
    aie::store_v(c + i, sum.template to_vector<bfloat16>());
  }
}
#endif

} // extern "C"
