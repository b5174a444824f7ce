// SPDX-License-Identifier: Apache-2.0
#include <aie_api/aie.hpp>

extern "C" {

void exp2_of(const float *in, bfloat16 *out, int32_t n) {
  for (int i = 0; i < n; i += 16)
    aie::store_v(out + i, aie::exp2<bfloat16>(aie::load_v<16>(in + i)));
}
void tanh_of(const float *in, bfloat16 *out, int32_t n) {
  for (int i = 0; i < n; i += 32)
    aie::store_v(out + i, aie::tanh<bfloat16>(aie::load_v<32>(in + i)));
}
void inv_of(const bfloat16 *in, bfloat16 *out, int32_t n) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (int i = 0; i < n; i += 32)
    aie::store_v(out + i, aie::inv(aie::load_v<32>(in + i)));
}
void invsqrt_of(const bfloat16 *in, bfloat16 *out, int32_t n) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (int i = 0; i < n; i += 32)
    aie::store_v(out + i, aie::invsqrt(aie::load_v<32>(in + i)));
}
void scalars(const float *in, float *out) {
  const auto x = aie::load_v<4>(in);
  aie::vector<float, 4> y = aie::zeros<float, 4>();
  y[0] = aie::inv(x.get(0));
  y[1] = aie::invsqrt(x.get(1));
  y[2] = aie::sqrt(x.get(2));
  y[3] = aie::inv(x[3]);
  aie::store_v(out, y);
}
}
