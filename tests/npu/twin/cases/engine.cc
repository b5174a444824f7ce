// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the engine's tests: plain integer loops, and some that break a rule on purpose.

#include <aie_api/aie.hpp>

#ifndef BIAS
#define BIAS 1
#endif

extern "C" {

void add_one(const int32_t *in, int32_t *out, int32_t n) {
  for (int i = 0; i < n; ++i) out[i] = in[i] + BIAS;
}

// A copy of add_one that adds 1 more to lane 3 of every element.
void add_one_lane3(const int32_t *in, int32_t *out, int32_t n) {
  for (int i = 0; i < n; ++i) out[i] = in[i] + BIAS + (i == 3);
}

void sum_two(const int32_t *a, const int32_t *b, int32_t *out, int32_t n) {
  for (int i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

void scale_by(const int32_t *in, int32_t *out, int32_t factor, int32_t n) {
  for (int i = 0; i < n; ++i) out[i] = in[i] * factor;
}

void overrun(const int32_t *in, int32_t *out, int32_t n) {
  for (int i = 0; i <= n; ++i) out[i] = in[i < n ? i : 0];
}

void underrun(const int32_t *in, int32_t *out, int32_t n) {
  for (int i = 0; i < n; ++i) out[i] = in[i];
  out[-1] = 7;
}

void half_written(const int32_t *in, int32_t *out, int32_t n) {
  for (int i = 0; i < n / 2; ++i) out[i] = in[i];
}

// Adds to what the output buffer held before: the poison that configure put there is seen.
void accumulate(const int32_t *in, int32_t *out, int32_t n) {
  for (int i = 0; i < n; ++i) out[i] = out[i] + in[i];
}

// Writes the rounding register that the call before it left, then sets it to conv_even.
void sticky_rounding(const int32_t *in, int32_t *out, int32_t n) {
  int32_t mode = static_cast<int32_t>(twin::core().rounding);
  for (int i = 0; i < n; ++i) out[i] = in[i] * 0 + mode;
  aie::set_rounding(aie::rounding_mode::conv_even);
}

// Loads a vector from an address that is no multiple of its size.
void unaligned(const int32_t *in, int32_t *out, int32_t n) {
  aie::store_v(out, aie::load_v<16>(in + 1));
}

// Multiply-adds through the vector unit: 16 lanes a call.
void vector_square(const int32_t *in, int32_t *out, int32_t n) {
  aie::vector<int16, 32> x = aie::load_v<32>(reinterpret_cast<const int16 *>(in));
  aie::store_v(reinterpret_cast<int16 *>(out), aie::mul(x, x).to_vector<int16>(0));
}

// The renamed kernels of the renaming test.
void zq7(const int32_t *in, int32_t *out, int32_t n) { add_one(in, out, n); }

}  // extern "C"
