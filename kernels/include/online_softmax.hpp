// SPDX-License-Identifier: Apache-2.0
// Softmax over keys that come in blocks: scores in [8 keys][8 columns] tiles, a column being a token or a head.
//
// Scores are transposed, so that maximum and sum over keys are elementwise. They are in the log2 domain; the running
// maximum is rounded to an integer exponent of 2: rescaling by 2^(old - new) is then exact, and rarely needed.
// Probabilities are rounded to bf16 (the hardware's exp2 gives bf16), and the same rounded values make the sum and the
// product with v.
#pragma once
#include "fp32_terms.hpp"
#include <stdint.h>

constexpr unsigned tile = 64; // elements of an 8x8 block

// Finite stand-ins for minus infinity, in the log2 domain: exp2 of their difference with a score is 0, never NaN.
constexpr float no_maximum = -1048576.0f;
constexpr float masked_score = -16777216.0f;

using Block = aie::mmul<8, 8, 8, bfloat16, bfloat16, accauto>;
using Tile = aie::vector<bfloat16, tile>;
using TileSum = aie::accum<accfloat, tile>;
using TileFloat = aie::vector<float, tile>;
using TileTerms = Terms<tile>;
using PerColumn = aie::vector<float, 16>; // a value of each of 8 columns, twice

// Element (i, j) is the value of column i / of column j.
inline Tile along_rows(const aie::vector<bfloat16, 8> &per_column) {
  return aie::transpose(per_column.template grow_replicate<tile>(), 8, 8);
}

inline TileFloat along_columns(const PerColumn &per_column) { return per_column.template grow_replicate<tile>(); }

inline PerColumn swap_halves(const PerColumn &v) {
  return aie::concat(v.template extract<8>(1), v.template extract<8>(0));
}

inline PerColumn maximum_over_keys(const TileFloat &scores) {
  const aie::vector<float, 32> half = aie::max(scores.template extract<32>(0), scores.template extract<32>(1));
  const PerColumn quarter = aie::max(half.template extract<16>(0), half.template extract<16>(1));
  return aie::max(quarter, swap_halves(quarter));
}

inline PerColumn sum_over_keys(const TileSum &sums) {
  const aie::accum<accfloat, 32> half = aie::add(sums.template extract<32>(0), sums.template extract<32>(1));
  const PerColumn quarter =
      aie::add(half.template extract<16>(0), half.template extract<16>(1)).template to_vector<float>();
  return aie::add(quarter, swap_halves(quarter));
}

// To the nearest integer: fp32 has no fraction bits at 1.5 * 2^23.
inline PerColumn round_to_integer(const PerColumn &v) {
  const PerColumn shift = aie::broadcast<float, 16>(12582912.0f);
  return aie::sub(aie::add(v, shift), shift);
}

// Over all keys of `groups` tiles.
inline PerColumn maximum_of(const float *scores, unsigned groups) {
  TileFloat most = aie::load_v<tile>(scores);
  for (unsigned g = 1; g < groups; ++g)
    most = aie::max(most, aie::load_v<tile>(scores + g * tile));
  return maximum_over_keys(most);
}

// Probabilities 2^(score - maximum) as [8 columns][8 keys] tiles; returns their sum over keys.
inline PerColumn exponentials(const float *scores, bfloat16 *probabilities, unsigned groups, const PerColumn &maximum) {
  const TileFloat subtrahend = along_columns(maximum);
  TileSum sum = aie::zeros<accfloat, tile>();
  for (unsigned g = 0; g < groups; ++g) {
    const Tile p = aie::exp2<bfloat16>(aie::sub(aie::load_v<tile>(scores + g * tile), subtrahend));
    sum = aie::add(sum, p);
    aie::store_v(probabilities + g * tile, aie::transpose(p, 8, 8));
  }
  return sum_over_keys(sum);
}

// 1 / sum of the first `columns` columns along the rows, and 0 for a column that saw no key.
inline TileTerms reciprocal(const PerColumn &sums, unsigned columns) {
  PerColumn inverse = aie::zeros<float, 16>();
  for (unsigned i = 0; i < columns; ++i) {
    const float sum = sums.get(i);
    inverse.set(sum > 0.0f ? aie::inv(sum) : 0.0f, i);
  }
  TileTerms terms(sum_of(along_columns(inverse)));
  terms.high = along_rows(terms.high.template extract<8>(0));
  terms.middle = along_rows(terms.middle.template extract<8>(0));
  terms.low = along_rows(terms.low.template extract<8>(0));
  return terms;
}
