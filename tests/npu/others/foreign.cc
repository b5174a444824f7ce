// SPDX-License-Identifier: Apache-2.0
// Kernels as public AIE2P examples write them: one row or tile a call, registers by native names, sizes as arguments.
#include "aie_kernel_utils.h"
#include <aie_api/aie.hpp>
#include <stdint.h>

#ifndef DIM_M
#define DIM_M 16
#endif
#ifndef DIM_K
#define DIM_K 32
#endif
#ifndef DIM_N
#define DIM_N 16
#endif

using V = aie::vector<bfloat16, 16>;
using F = aie::accum<accfloat, 16>;

static inline V bf(float x) { return aie::broadcast<bfloat16, 16>(bfloat16(x)); }

static inline V exponential(const V &x) {
  F y = aie::mul(x, bf(1.4453125f));
  return aie::exp2<bfloat16>(y.to_vector<float>());
}

// x/2 (1 + tanh(x/2))
static inline V silu_of(const V &x) {
  V half = aie::mul(x, bf(0.5f));
  F wide(half);
  V gate = aie::add(aie::tanh<bfloat16>(wide.to_vector<float>()), bf(1.0f));
  V y = aie::mul(half, gate);
  return y;
}

template <typename TI, typename TO, typename Block>
static inline void multiply(const TI *a, const TI *b, TO *c) {
  constexpr unsigned in = 64, kb = DIM_K / 8, nb = DIM_N / 8;
  for (unsigned m = 0; m < DIM_M / 8; ++m)
    for (unsigned n = 0; n < nb; ++n) {
      Block sum(aie::load_v<in>(c + (m * nb + n) * in));
      for (unsigned k = 0; k < kb; ++k)
        sum.mac(aie::load_v<in>(a + (m * kb + k) * in), aie::load_v<in>(b + (k * nb + n) * in));
      aie::store_v(c + (m * nb + n) * in, sum.template to_vector<TO>());
    }
}

extern "C" {

void pass_bytes(uint8_t *in, uint8_t *out, int32_t size) {
  v64uint8 *from = (v64uint8 *)in;
  v64uint8 *to = (v64uint8 *)out;
  for (int i = 0; i < size; i += 64) *to++ = *from++;
}

void reduce_add_i32(int32_t *in, int32_t *out, int32_t size) {
  v16int32 sum = broadcast_to_v16int32(0);
  for (int i = 0; i < size; i += 16) sum = add(sum, *(v16int32 *)(in + i));
  for (unsigned step = 32; step >= 4; step /= 2) sum = add(sum, shift_bytes(sum, sum, step));
  *out = extract_elem(sum, 0);
}

void reduce_max_bf16(bfloat16 *in, bfloat16 *out, int32_t size) {
  v32bfloat16 most = *(v32bfloat16 *)in;
  for (int i = 32; i < size; i += 32) most = max(most, *(v32bfloat16 *)(in + i));
  *out = aie::reduce_max(most.value);
}

void add_bf16(bfloat16 *a, bfloat16 *b, bfloat16 *c, int32_t size) {
  for (int i = 0; i < size; i += 32)
    aie::store_v(c + i, aie::add(aie::load_v<32>(a + i), aie::load_v<32>(b + i)));
}

void mul_bf16(bfloat16 *a, bfloat16 *b, bfloat16 *c, int32_t size) {
  for (int i = 0; i < size; i += 32) {
    aie::vector<bfloat16, 32> y = aie::mul(aie::load_v<32>(a + i), aie::load_v<32>(b + i));
    aie::store_v(c + i, y);
  }
}

void relu_bf16(bfloat16 *a, bfloat16 *c, int32_t size) {
  for (int i = 0; i < size; i += 32) *(v32bfloat16 *)(c + i) = max(*(v32bfloat16 *)(a + i), broadcast_zero_bfloat16());
}

void silu_bf16(bfloat16 *x, bfloat16 *y, int32_t size) {
  for (int i = 0; i < size; i += 16) aie::store_v(y + i, silu_of(aie::load_v<16>(x + i)));
}

void gelu_bf16(bfloat16 *x, bfloat16 *y, int32_t size) {
  for (int i = 0; i < size; i += 16) {
    V v = aie::load_v<16>(x + i);
    V square = aie::mul(v, v);
    V cube = aie::mul(square, v);
    F inner = aie::mul(aie::add(v, V(aie::mul(cube, bf(0.044715f)))), bf(0.797884561f));
    V gate = aie::add(aie::tanh<bfloat16>(inner.to_vector<float>()), bf(1.0f));
    V half = aie::mul(v, bf(0.5f));
    V out = aie::mul(half, gate);
    aie::store_v(y + i, out);
  }
}

// Weights of the gate, then of the up half: a core has two channels for what comes in.
void swiglu_bf16(bfloat16 *x, bfloat16 *weights, bfloat16 *y, int32_t size) {
  bfloat16 *gate = weights, *up = weights + size;
  for (int i = 0; i < size; i += 16) {
    V v = aie::load_v<16>(x + i);
    V g = aie::mul(v, aie::load_v<16>(gate + i));
    V u = aie::mul(v, aie::load_v<16>(up + i));
    V out = aie::mul(silu_of(g), u);
    aie::store_v(y + i, out);
  }
}

void softmax_bf16(bfloat16 *x, bfloat16 *y, int32_t size) {
  V most = aie::load_v<16>(x);
  for (int i = 16; i < size; i += 16) most = aie::max(most, aie::load_v<16>(x + i));
  V top = aie::broadcast<bfloat16, 16>(aie::reduce_max(most));
  F sum = aie::zeros<accfloat, 16>();
  for (int i = 0; i < size; i += 16) {
    V e = exponential(aie::sub(aie::load_v<16>(x + i), top));
    sum = aie::add(sum, e);
    aie::store_v(y + i, e);
  }
  V scale = bf(aie::inv(aie::reduce_add(sum.to_vector<float>())));
  for (int i = 0; i < size; i += 16) {
    V out = aie::mul(aie::load_v<16>(y + i), scale);
    aie::store_v(y + i, out);
  }
}

// The sum of squares goes through an acc32 accumulator as bits, as a public RMSNorm does.
void rms_norm_bf16(bfloat16 *x, bfloat16 *y, int32_t size) {
  aie::vector<float, 16> squares = aie::zeros<float, 16>();
  aie::accum<acc32, 16> acc = aie::zeros<acc32, 16>();
  for (int i = 0; i < size; i += 16) {
    aie::vector<float, 16> square = aie::mul_square(aie::load_v<16>(x + i));
    acc = aie::add(squares, square);
    squares = acc.to_vector<float>();
  }
  V scale = bf(aie::invsqrt(aie::reduce_add(squares) / size + 1e-5f));
  for (int i = 0; i < size; i += 16) {
    V out = aie::mul(aie::load_v<16>(x + i), scale);
    aie::store_v(y + i, out);
  }
}

void layer_norm_bf16(bfloat16 *x, bfloat16 *y, int32_t size) {
  F sum = aie::zeros<accfloat, 16>(), squares = aie::zeros<accfloat, 16>();
  for (int i = 0; i < size; i += 16) {
    V v = aie::load_v<16>(x + i);
    sum = aie::add(sum, v);
    squares = aie::mac(squares, v, v);
  }
  float mean = aie::reduce_add(sum.to_vector<float>()) / size;
  float variance = aie::reduce_add(squares.to_vector<float>()) / size - mean * mean;
  V shift = bf(mean), scale = bf(aie::invsqrt(variance + 1e-5f));
  for (int i = 0; i < size; i += 16) {
    V out = aie::mul(aie::sub(aie::load_v<16>(x + i), shift), scale);
    aie::store_v(y + i, out);
  }
}

// Pairs of neighbours, and a table of cosine and sine in turn.
void rope_bf16(bfloat16 *x, bfloat16 *table, bfloat16 *y, int32_t size) {
  for (int i = 0; i < size; i += 32) {
    aie::vector<bfloat16, 32> v = aie::load_v<32>(x + i), t = aie::load_v<32>(table + i);
    V even = aie::filter_even(v, 1), odd = aie::filter_odd(v, 1);
    V cosine = aie::filter_even(t, 1), sine = aie::filter_odd(t, 1);
    V first = aie::sub(V(aie::mul(even, cosine)), V(aie::mul(odd, sine)));
    V second = aie::add(V(aie::mul(even, sine)), V(aie::mul(odd, cosine)));
    auto [low, high] = aie::interleave_zip(first, second, 1);
    aie::store_v(y + i, aie::concat(low, high));
  }
}

void zero_f32(float *c) {
  for (int i = 0; i < DIM_M * DIM_N; i += 16) aie::store_v(c + i, aie::zeros<float, 16>());
}
void zero_i32(int32_t *c) {
  for (int i = 0; i < DIM_M * DIM_N; i += 16) aie::store_v(c + i, aie::zeros<int32, 16>());
}
void matmul_bf16(bfloat16 *a, bfloat16 *b, float *c) {
  multiply<bfloat16, float, aie::mmul<8, 8, 8, bfloat16, bfloat16, accauto>>(a, b, c);
}
void matmul_i8(int8_t *a, int8_t *b, int32_t *c) { multiply<int8, int32, aie::mmul<8, 8, 8, int8, int8>>(a, b, c); }

// c[m] += a[m, :] b, with a laid out row by row.
void matvec_bf16(bfloat16 *a, bfloat16 *b, float *c) {
  for (int m = 0; m < DIM_M; ++m) {
    F sum = aie::zeros<accfloat, 16>();
    for (int k = 0; k < DIM_K; k += 16) sum = aie::mac(sum, aie::load_v<16>(a + m * DIM_K + k), aie::load_v<16>(b + k));
    c[m] += aie::reduce_add(sum.to_vector<float>());
  }
}
void zero_vector(float *c) {
  for (int m = 0; m < DIM_M; ++m) c[m] = 0.0f;
}

void add_one(int32_t *in, int32_t *out, int32_t n) {
  for (int i = 0; i < n; ++i) out[i] = in[i] + 1;
}
}
