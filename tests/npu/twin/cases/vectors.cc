// SPDX-License-Identifier: Apache-2.0
// Elementwise, reducing and lane-moving calls; also the legal neighbours of what the negative tests refuse.
#include <aie_api/aie.hpp>

using V = aie::vector<bfloat16, 32>;
using F = aie::vector<float, 16>;
using I = aie::vector<int32, 16>;

extern "C" {

void elementwise(const bfloat16 *a, const bfloat16 *b, const float *c, bfloat16 *out, float *fout) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const V x = aie::load_v<32>(a), y = aie::load_v<32>(b);
  const aie::accum<accfloat, 32> acc(aie::load_v<32>(c));
  auto to = aie::begin_restrict_vector<32>(out);
  *to++ = aie::add(x, y);
  *to++ = aie::sub(x, y);
  *to++ = aie::max(x, y);
  *to++ = aie::min(x, y);
  *to++ = aie::neg(x);
  *to++ = aie::abs(x);
  *to++ = aie::mul(x, y);
  *to++ = aie::add(x, x[3]);
  *to++ = aie::select(x, y, aie::lt(x, y));
  *to++ = aie::select(x, bfloat16(0), aie::ge(y, bfloat16(0)));
  auto fto = aie::begin_vector<32>(fout);
  *fto++ = aie::mac(acc, x, y);
  *fto++ = aie::msc(acc, x, y);
  *fto++ = aie::mul(x, y).to_vector<float>();
  *fto++ = aie::negmul(x, y).to_vector<float>();
  *fto++ = aie::mac(acc, x[5], y);
  *fto++ = aie::mac_square(acc, x);
  *fto++ = aie::add(acc, x);
  *fto++ = aie::sub(acc, acc);
  *fto++ = aie::mul_square(x);
  *fto++ = aie::accumulate<32>(acc, x, 1, x, y);
}

void reductions(const bfloat16 *a, const float *c, float *out) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const V x = aie::load_v<32>(a);
  const aie::vector<float, 32> y = aie::load_v<32>(c);
  F sums = aie::zeros<float, 16>();
  sums[0] = aie::reduce_add(x);
  sums[1] = aie::reduce_max(x);
  sums[2] = aie::reduce_min(x);
  sums[3] = aie::reduce_add(y);
  sums[4] = aie::reduce_add(y.extract<16>(0));
  sums[5] = aie::reduce_add(y.extract<4>(1));
  sums[6] = aie::reduce_max(y);
  sums[7] = aie::reduce_add(aie::concat(y, y));
  sums.insert(2, aie::reduce_add_v(y.extract<16>(0), y.extract<16>(1)).extract<4>(0));
  aie::store_v(out, sums);
}

void moves(const int16 *a, const int16 *b, int16 *out) {
  const auto x = aie::load_v<32>(a), y = aie::load_v<32>(b);
  auto to = aie::begin_vector<32>(out);
  *to++ = aie::concat(aie::filter_even(x), aie::filter_odd(x));
  *to++ = aie::concat(aie::filter_even(x, 4), aie::filter_odd(x, 4));
  const auto [low, high] = aie::interleave_zip(x, y, 2);
  *to++ = low;
  *to++ = high;
  const auto [even, odd] = aie::interleave_unzip(low, high, 2);
  *to++ = even;
  *to++ = odd;
  *to++ = aie::transpose(x, 4, 8);
  *to++ = aie::reverse(x);
  *to++ = aie::shuffle_up_fill(x, y, 3);
  *to++ = aie::shuffle_down_rotate(x, 5);
  *to++ = x.grow<64>(1).extract<32>(1);
  *to++ = x.cast_to<int32>().cast_to<int16>();
}

void integers(const int32 *a, const int32 *b, int32 *out, float *fout) {
  const I x = aie::load_v<16>(a), y = aie::load_v<16>(b);
  auto to = aie::begin_vector<16>(out);
  *to++ = aie::add(x, y);
  *to++ = aie::sub(x, 7);
  *to++ = aie::max(x, y);
  *to++ = aie::bit_xor(x, y);
  *to++ = aie::mul(x, y).to_vector<int32>(4);
  *to++ = aie::downshift(x, 3);
  *to++ = aie::unpack(aie::pack(x));
  *to++ = aie::to_fixed<int32>(aie::to_float(x, 8), 8);
  aie::store_v(fout, aie::to_float(x, 4));
}

void masks(const float *a, uint32 *out) {
  const F x = aie::load_v<16>(a);
  const auto below = aie::lt(x, 0.0f);
  const auto equal = aie::eq(x, x);
  aie::vector<uint32, 4> words = aie::zeros<uint32, 4>();
  words[0] = below.to_uint32();
  words[1] = (~below & equal).to_uint32();
  words[2] = below.count();
  words[3] = aie::mask<16>::from_uint32(0x8001).to_uint32();
  aie::store_v(out, words);
}

// Registers and lanes that nobody wrote.
void unwritten(const float *a, float *out) {
  const F x = aie::load_v<16>(a);
  F never;
  aie::accum<accfloat, 16> sum;
  sum = aie::mac(sum, x, x);
  aie::store_v(out, never);
  aie::store_v(out + 16, sum.to_vector<float>());
  aie::store_v(out + 32, x.extract<8>(0).grow<16>());
  aie::store_v(out + 48, aie::reduce_add_v(x, x));
}

// Known numbers of loads, stores and multiplications.
void counted(const bfloat16 *a, bfloat16 *out) {
  aie::accum<accfloat, 32> acc = aie::zeros<accfloat, 32>();
  for (unsigned i = 0; i < 4; ++i)
    acc = aie::mac(acc, aie::load_v<32>(a + 32 * i), aie::load_v<32>(a));
  aie::store_v(out, acc.to_vector<bfloat16>());
}
}
