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
#include "../include/rotated_head.hpp"

#if !defined(HEAD_DIM) || !defined(ROTATED_HEADS) || !defined(COPIED_HEADS) || !defined(ROWS)
#error "rope.cc needs -DHEAD_DIM, -DROTATED_HEADS, -DCOPIED_HEADS and -DROWS"
#endif

namespace {

constexpr unsigned heads = ROTATED_HEADS + COPIED_HEADS;
constexpr unsigned lanes = rotation_lanes<HEAD_DIM>;

} // namespace

extern "C" {

void rope_rows(const bfloat16 *x, const bfloat16 *cos_sin, bfloat16 *y) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned row = 0; row < ROWS; ++row) {
    for (unsigned head = 0; head < ROTATED_HEADS; ++head)
      rotate_head<HEAD_DIM>(x + head * HEAD_DIM, cos_sin, y + head * HEAD_DIM);
    for (unsigned i = ROTATED_HEADS * HEAD_DIM; i < heads * HEAD_DIM; i += lanes)
      aie::store_v(y + i, aie::load_v<lanes>(x + i));
    x += heads * HEAD_DIM;
    y += heads * HEAD_DIM;
    cos_sin += HEAD_DIM;
  }
}

} // extern "C"
