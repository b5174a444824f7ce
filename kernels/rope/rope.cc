// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding, half-split: element i of a head turns with element i + HEAD_DIM/2.
//
//   y[i]       = x[i]       * cos[i] - x[i + D/2] * sin[i]
//   y[i + D/2] = x[i + D/2] * cos[i] + x[i]       * sin[i]        i in 0 .. D/2 - 1
//
// x, y     [ROWS][ROTATED_HEADS + COPIED_HEADS][HEAD_DIM] bf16: the first heads are rotated (q and k), the rest are
//          copied bit for bit (v)
// cos_sin  [ROWS][HEAD_DIM] bf16: HEAD_DIM/2 cosines, then HEAD_DIM/2 sines
// Products are exact, their sum is fp32, rounded once.
#include <aie_api/aie.hpp>
#include <stdint.h>

#if !defined(HEAD_DIM) || !defined(ROTATED_HEADS) || !defined(COPIED_HEADS) || !defined(ROWS)
#error "rope.cc needs -DHEAD_DIM, -DROTATED_HEADS, -DCOPIED_HEADS and -DROWS"
#endif

static_assert(HEAD_DIM % 16 == 0, "half a head is whole vectors of 8 bf16 elements");

namespace {

constexpr unsigned half = HEAD_DIM / 2;
constexpr unsigned heads = ROTATED_HEADS + COPIED_HEADS;
constexpr unsigned lanes = half % 32 == 0 ? 32 : half % 16 == 0 ? 16 : 8;

inline void rotate_head(const bfloat16 *__restrict x, const bfloat16 *__restrict cos_sin, bfloat16 *__restrict y) {
  for (unsigned i = 0; i < half; i += lanes) {
    const aie::vector<bfloat16, lanes> low = aie::load_v<lanes>(x + i), high = aie::load_v<lanes>(x + half + i);
    const aie::vector<bfloat16, lanes> cosine = aie::load_v<lanes>(cos_sin + i);
    const aie::vector<bfloat16, lanes> sine = aie::load_v<lanes>(cos_sin + half + i);
    aie::accum<accfloat, lanes> turned_low = aie::mul(low, cosine);
    turned_low = aie::msc(turned_low, high, sine);
    aie::accum<accfloat, lanes> turned_high = aie::mul(high, cosine);
    turned_high = aie::mac(turned_high, low, sine);
    aie::store_v(y + i, turned_low.template to_vector<bfloat16>());
    aie::store_v(y + half + i, turned_high.template to_vector<bfloat16>());
  }
}

} // namespace

extern "C" {

void rope_rows(const bfloat16 *x, const bfloat16 *cos_sin, bfloat16 *y) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned row = 0; row < ROWS; ++row) {
    for (unsigned head = 0; head < ROTATED_HEADS; ++head)
      rotate_head(x + head * HEAD_DIM, cos_sin, y + head * HEAD_DIM);
    for (unsigned i = ROTATED_HEADS * HEAD_DIM; i < heads * HEAD_DIM; i += lanes)
      aie::store_v(y + i, aie::load_v<lanes>(x + i));
    x += heads * HEAD_DIM;
    y += heads * HEAD_DIM;
    cos_sin += HEAD_DIM;
  }
}

} // extern "C"
