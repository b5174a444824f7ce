// SPDX-License-Identifier: Apache-2.0
// What bench_headers.py times: the inner loops of the kernels of a decoder.
#include <aie_api/aie.hpp>

extern "C" {

// c (32 x 32) += a (32 x k) * b (k x 32), blocked 8x8, two by two accumulators.
void gemm(const bfloat16 *a, const bfloat16 *b, float *c, int32_t steps) {
  using Block = aie::mmul<8, 8, 8, bfloat16>;
  for (int m = 0; m < 4; m += 2) {
    for (int n = 0; n < 4; n += 2) {
      Block c00(aie::load_v<64>(c + (m * 4 + n) * 64)), c01(aie::load_v<64>(c + (m * 4 + n + 1) * 64));
      Block c10(aie::load_v<64>(c + (m * 4 + n + 4) * 64)), c11(aie::load_v<64>(c + (m * 4 + n + 5) * 64));
      for (int k = 0; k < steps; ++k) {
        const auto a0 = aie::load_v<64>(a + (m * steps + k) * 64), a1 = aie::load_v<64>(a + ((m + 1) * steps + k) * 64);
        const auto b0 = aie::load_v<64>(b + (k * 4 + n) * 64), b1 = aie::load_v<64>(b + (k * 4 + n + 1) * 64);
        c00.mac(a0, b0);
        c01.mac(a0, b1);
        c10.mac(a1, b0);
        c11.mac(a1, b1);
      }
      aie::store_v(c + (m * 4 + n) * 64, c00.to_vector<float>());
      aie::store_v(c + (m * 4 + n + 1) * 64, c01.to_vector<float>());
      aie::store_v(c + (m * 4 + n + 4) * 64, c10.to_vector<float>());
      aie::store_v(c + (m * 4 + n + 5) * 64, c11.to_vector<float>());
    }
  }
}

void gemv(const bfloat16 *w, const bfloat16 *x, float *y, int32_t rows, int32_t columns) {
  for (int r = 0; r < rows; r += 16) {
    aie::vector<float, 16> sums = aie::zeros<float, 16>();
    for (int lane = 0; lane < 16; ++lane) {
      aie::accum<accfloat, 32> acc = aie::zeros<accfloat, 32>();
      for (int k = 0; k < columns; k += 32)
        acc = aie::mac(acc, aie::load_v<32>(w + (r + lane) * columns + k), aie::load_v<32>(x + k));
      sums.set(aie::reduce_add(acc.to_vector<float>()), lane);
    }
    aie::store_v(y + r, sums);
  }
}

void add(const bfloat16 *a, const bfloat16 *b, bfloat16 *c, int32_t n) {
  for (int i = 0; i < n; i += 32)
    aie::store_v(c + i, aie::add(aie::load_v<32>(a + i), aie::load_v<32>(b + i)));
}

void mul(const bfloat16 *a, const bfloat16 *b, bfloat16 *c, int32_t n) {
  for (int i = 0; i < n; i += 32)
    aie::store_v(c + i, aie::mul(aie::load_v<32>(a + i), aie::load_v<32>(b + i)).to_vector<bfloat16>());
}

void exp2_of(const bfloat16 *a, const bfloat16 *, bfloat16 *c, int32_t n) {
  for (int i = 0; i < n; i += 16)
    aie::store_v(c + i, aie::exp2<bfloat16>(aie::accum<accfloat, 16>(aie::load_v<16>(a + i)).to_vector<float>()));
}

void tanh_of(const bfloat16 *a, const bfloat16 *, bfloat16 *c, int32_t n) {
  for (int i = 0; i < n; i += 16)
    aie::store_v(c + i, aie::tanh<bfloat16>(aie::accum<accfloat, 16>(aie::load_v<16>(a + i)).to_vector<float>()));
}
}
