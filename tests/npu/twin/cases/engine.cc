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

// The renamed kernels of the renaming test.
void zq7(const int32_t *in, int32_t *out, int32_t n) { add_one(in, out, n); }

}  // extern "C"
