// SPDX-License-Identifier: Apache-2.0
// Causal attention of a prefill: query tiles of 8 tokens of one head against key blocks, online softmax in fp32.
//
//   q, out    [8 tokens][HEAD_DIM] bf16, row-major            k, v  [KEY_BLOCK][HEAD_DIM] bf16, row-major
//   queries   [SLOTS][HEAD_DIM/8][8 d][8 tokens] bf16          (transposed for the matrix unit)
//   acc       [SLOTS][HEAD_DIM/8][8 tokens][8 d] fp32
//   max_sum   [SLOTS][2][16] fp32: maximum, then sum, of 8 tokens; lanes 8..15 repeat lanes 0..7
//
// Slot i of core row r is pair p = i * CORE_ROWS + r of (token tile j, head of the group), token-major: j = p / GROUP; its
// tokens are (8 j + col) * 8 .. + 7. A key block that begins after a tile's last token is not computed, and of the block on
// the diagonal only the groups of 8 keys up to it.
//
// Scores are computed transposed, [8 keys][8 tokens], so that maximum and sum over keys are elementwise. The running
// maximum is rounded to an integer exponent of 2: rescaling by 2^(old - new) is then exact, and rarely needed. Scores
// are scaled, masked, and subtracted from in fp32; probabilities are rounded to bf16 (the hardware's exp2 gives bf16), and
// the same rounded values make the sum and the product with v.
#include <aie_api/aie.hpp>
#include <stdint.h>

#if !defined(HEAD_DIM) || !defined(KEY_BLOCK) || !defined(SLOTS) || !defined(GROUP) || !defined(CORE_ROWS) ||         \
    !defined(SCALE_LOG2E)
#error "attention_prefill.cc needs -DHEAD_DIM, -DKEY_BLOCK, -DSLOTS, -DGROUP, -DCORE_ROWS and -DSCALE_LOG2E"
#endif

static_assert(HEAD_DIM % 8 == 0 && KEY_BLOCK % 8 == 0, "the matrix unit multiplies 8x8x8 blocks");

namespace {

constexpr unsigned tile = 64; // elements of an 8x8 block
constexpr unsigned dim_tiles = HEAD_DIM / 8;
constexpr unsigned key_groups = KEY_BLOCK / 8;
constexpr unsigned slot_size = 8 * HEAD_DIM;
constexpr unsigned state_size = 32; // of max_sum, a slot

// Finite stand-ins for minus infinity, in the log2 domain: exp2 of their difference with a score is 0, never NaN.
constexpr float no_maximum = -1048576.0f;
constexpr float masked_score = -16777216.0f;

using Block = aie::mmul<8, 8, 8, bfloat16, bfloat16, accauto>;
using Tile = aie::vector<bfloat16, tile>;
using TileSum = aie::accum<accfloat, tile>;
using TileFloat = aie::vector<float, tile>;
using PerToken = aie::vector<float, 16>; // of 8 tokens, twice

// ---- fp32 products from bf16 terms --------------------------------------------------------------------------------

// An fp32 tile as three bf16 terms: value = high + middle + low to 24 bits.
struct Terms {
  Tile high, middle, low;

  explicit Terms(const TileSum &value) {
    high = value.template to_vector<bfloat16>();
    const TileSum rest = aie::sub(value, high);
    middle = rest.template to_vector<bfloat16>();
    low = aie::sub(rest, middle).template to_vector<bfloat16>();
  }
};

inline TileSum sum_of(const TileFloat &values) {
  TileSum sum;
  sum.from_vector(values);
  return sum;
}

inline TileSum product(const Terms &a, const Terms &b) {
  TileSum sum = aie::mul(a.middle, b.middle);
  sum = aie::mac(sum, a.high, b.low);
  sum = aie::mac(sum, a.low, b.high);
  sum = aie::mac(sum, a.high, b.middle);
  sum = aie::mac(sum, a.middle, b.high);
  return aie::mac(sum, a.high, b.high);
}

inline TileSum product(const Terms &a, const Tile &b) {
  return aie::mac(aie::mac(aie::mul(a.low, b), a.middle, b), a.high, b);
}

// ---- tiles --------------------------------------------------------------------------------------------------------

// An 8x8 block of a row-major matrix with HEAD_DIM columns.
inline Tile load_tile(const bfloat16 *from) {
  Tile out;
  for (unsigned i = 0; i < 8; ++i)
    out.insert(i, aie::load_v<8>(from + i * HEAD_DIM));
  return out;
}

// Element (i, j) is the value of token i / of token j.
inline Tile along_rows(const aie::vector<bfloat16, 8> &per_token) {
  return aie::transpose(per_token.template grow_replicate<tile>(), 8, 8);
}

inline TileFloat along_columns(const PerToken &per_token) { return per_token.template grow_replicate<tile>(); }

inline PerToken swap_halves(const PerToken &v) {
  return aie::concat(v.template extract<8>(1), v.template extract<8>(0));
}

// Maximum and sum over the 8 keys of a [8 keys][8 tokens] tile.
inline PerToken maximum_over_keys(const TileFloat &scores) {
  const aie::vector<float, 32> half = aie::max(scores.template extract<32>(0), scores.template extract<32>(1));
  const PerToken quarter = aie::max(half.template extract<16>(0), half.template extract<16>(1));
  return aie::max(quarter, swap_halves(quarter));
}

inline PerToken sum_over_keys(const TileSum &sums) {
  const aie::accum<accfloat, 32> half = aie::add(sums.template extract<32>(0), sums.template extract<32>(1));
  const PerToken quarter =
      aie::add(half.template extract<16>(0), half.template extract<16>(1)).template to_vector<float>();
  return aie::add(quarter, swap_halves(quarter));
}

// To the nearest integer: fp32 has no fraction bits at 1.5 * 2^23.
inline PerToken round_to_integer(const PerToken &v) {
  const PerToken shift = aie::broadcast<float, 16>(12582912.0f);
  return aie::sub(aie::add(v, shift), shift);
}

// In a [8 keys][8 tokens] tile on the diagonal, the lanes whose key comes after their token.
constexpr uint64_t later_keys() {
  uint64_t bits = 0;
  for (unsigned key = 0; key < 8; ++key)
    for (unsigned token = 0; token < 8; ++token)
      if (key > token)
        bits |= uint64_t(1) << (8 * key + token);
  return bits;
}

// ---- one query tile against one key block ---------------------------------------------------------------------------

// Scaled scores of `count` groups of 8 keys from `first` on; `diagonal` is the group that needs the causal mask.
template <unsigned count>
inline void score_groups(const bfloat16 *queries, const bfloat16 *k, float *scores, unsigned first, unsigned diagonal,
                         const Terms &scale) {
  Block sums[count];
  for (unsigned d = 0; d < dim_tiles; ++d) {
    const Tile query = aie::load_v<tile>(queries + d * tile);
    for (unsigned i = 0; i < count; ++i)
      sums[i].mac(load_tile(k + (first + i) * 8 * HEAD_DIM + d * 8), query);
  }
  for (unsigned i = 0; i < count; ++i) {
    TileFloat score = product(Terms(sums[i].to_accum()), scale).template to_vector<float>();
    if (first + i == diagonal)
      score = aie::select(score, aie::broadcast<float, tile>(masked_score),
                          aie::mask<tile>::from_uint64(later_keys()));
    aie::store_v(scores + (first + i) * tile, score);
  }
}

inline PerToken maximum_of(const float *scores, unsigned groups) {
  TileFloat most = aie::load_v<tile>(scores);
  for (unsigned g = 1; g < groups; ++g)
    most = aie::max(most, aie::load_v<tile>(scores + g * tile));
  return maximum_over_keys(most);
}

// Probabilities 2^(score - maximum) as [8 tokens][8 keys] tiles; returns their sum over keys.
inline PerToken exponentials(const float *scores, bfloat16 *probabilities, unsigned groups, const PerToken &maximum) {
  const TileFloat subtrahend = along_columns(maximum);
  TileSum sum = aie::zeros<accfloat, tile>();
  for (unsigned g = 0; g < groups; ++g) {
    const Tile p = aie::exp2<bfloat16>(aie::sub(aie::load_v<tile>(scores + g * tile), subtrahend));
    sum = aie::add(sum, p);
    aie::store_v(probabilities + g * tile, aie::transpose(p, 8, 8));
  }
  return sum_over_keys(sum);
}

// acc = acc * rescale + probabilities * v; without rescaling when no token's maximum moved.
inline void accumulate(const bfloat16 *probabilities, const bfloat16 *v, float *acc, unsigned groups, bool moved,
                       const Tile &rescale) {
  for (unsigned d = 0; d < dim_tiles; ++d) {
    TileSum before = sum_of(aie::load_v<tile>(acc + d * tile));
    if (moved)
      before = product(Terms(before), rescale);
    Block sum(before);
    for (unsigned g = 0; g < groups; ++g)
      sum.mac(aie::load_v<tile>(probabilities + g * tile), load_tile(v + g * 8 * HEAD_DIM + d * 8));
    aie::store_v(acc + d * tile, sum.template to_vector<float>());
  }
}

inline void attend(const bfloat16 *queries, const bfloat16 *k, const bfloat16 *v, float *acc, float *max_sum,
                   unsigned groups, unsigned diagonal, const Terms &scale) {
  alignas(64) float scores[key_groups * tile];
  alignas(64) bfloat16 probabilities[key_groups * tile];
  unsigned g = 0;
  for (; g + 4 <= groups; g += 4)
    score_groups<4>(queries, k, scores, g, diagonal, scale);
  for (; g < groups; ++g)
    score_groups<1>(queries, k, scores, g, diagonal, scale);

  const PerToken old_maximum = aie::load_v<16>(max_sum);
  const PerToken maximum = aie::max(old_maximum, round_to_integer(maximum_of(scores, groups)));
  const bool moved = !aie::lt(old_maximum, maximum).empty();
  const aie::vector<bfloat16, 16> rescale = aie::exp2<bfloat16>(aie::sub(old_maximum, maximum));

  PerToken sum = aie::load_v<16>(max_sum + 16);
  if (moved) {
    const Tile per_token = rescale.template grow_replicate<tile>();
    sum = product(Terms(sum_of(along_columns(sum))), per_token).template extract<16>(0).template to_vector<float>();
  }
  sum = aie::add(sum, exponentials(scores, probabilities, groups, maximum));
  aie::store_v(max_sum, maximum);
  aie::store_v(max_sum + 16, sum);
  accumulate(probabilities, v, acc, groups, moved, along_rows(rescale.template extract<8>(0)));
}

// 1 / sum, and 0 for a token that saw no key.
inline Terms reciprocal(const PerToken &sum) {
  aie::vector<float, 16> inverse = aie::zeros<float, 16>();
  for (unsigned i = 0; i < 8; ++i) {
    const float value = sum.get(i);
    inverse.set(value > 0.0f ? aie::inv(value) : 0.0f, i);
  }
  Terms terms(sum_of(along_columns(inverse)));
  terms.high = along_rows(terms.high.template extract<8>(0));
  terms.middle = along_rows(terms.middle.template extract<8>(0));
  terms.low = along_rows(terms.low.template extract<8>(0));
  return terms;
}

} // namespace

extern "C" {

// Empties every slot: acc and sums 0, maxima below any score.
void prefill_reset(float *acc, float *max_sum) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const PerToken zero = aie::zeros<float, 16>();
  for (unsigned i = 0; i < SLOTS * slot_size; i += 16)
    aie::store_v(acc + i, zero);
  for (unsigned slot = 0; slot < SLOTS; ++slot) {
    aie::store_v(max_sum + slot * state_size, aie::broadcast<float, 16>(no_maximum));
    aie::store_v(max_sum + slot * state_size + 16, zero);
  }
}

// Takes a query tile into slot `slot`.
void prefill_take_query(const bfloat16 *q, bfloat16 *queries, int32_t slot) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  bfloat16 *to = queries + slot * slot_size;
  for (unsigned d = 0; d < dim_tiles; ++d)
    aie::store_v(to + d * tile, aie::transpose(load_tile(q + d * 8), 8, 8));
}

// Attends to key block `block` from every slot that can see it, on the core in column `col` and row `row`.
void prefill_block(const bfloat16 *queries, const bfloat16 *k, const bfloat16 *v, float *acc, float *max_sum,
                   int32_t block, int32_t col, int32_t row) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const Terms scale(sum_of(aie::broadcast<float, tile>(float(SCALE_LOG2E))));
  for (int32_t slot = 0; slot < SLOTS; ++slot) {
    const int32_t token_tile = (slot * CORE_ROWS + row) / GROUP;
    const int32_t first_token = (token_tile * 8 + col) * 8;
    const int32_t diagonal = (first_token - block * KEY_BLOCK) / 8; // both are multiples of 8
    if (first_token < block * KEY_BLOCK)
      continue;
    const unsigned groups = diagonal + 1 < int32_t(key_groups) ? diagonal + 1 : key_groups;
    attend(queries + slot * slot_size, k, v, acc + slot * slot_size, max_sum + slot * state_size, groups, diagonal,
           scale);
  }
}

// out = acc / sum of slot `slot`, rounded once.
void prefill_finish(const float *acc, const float *max_sum, bfloat16 *out, int32_t slot) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const float *from = acc + slot * slot_size;
  const Terms inverse = reciprocal(aie::load_v<16>(max_sum + slot * state_size + 16));
  for (unsigned d = 0; d < dim_tiles; ++d) {
    const Terms sum(sum_of(aie::load_v<tile>(from + d * tile)));
    const Tile result = product(sum, inverse).template to_vector<bfloat16>();
    for (unsigned i = 0; i < 8; ++i)
      aie::store_v(out + i * HEAD_DIM + d * 8, result.template extract<8>(i));
  }
}

} // extern "C"
