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
// Scores are computed transposed, [8 keys][8 tokens], scaled, masked, and subtracted from in fp32; the softmax is that of
// online_softmax.hpp.
#include "../include/online_softmax.hpp"

#if !defined(HEAD_DIM) || !defined(KEY_BLOCK) || !defined(SLOTS) || !defined(GROUP) || !defined(CORE_ROWS) ||         \
    !defined(SCALE_LOG2E)
#error "attention_prefill.cc needs -DHEAD_DIM, -DKEY_BLOCK, -DSLOTS, -DGROUP, -DCORE_ROWS and -DSCALE_LOG2E"
#endif

static_assert(HEAD_DIM % 8 == 0 && KEY_BLOCK % 8 == 0, "the matrix unit multiplies 8x8x8 blocks");

namespace {

constexpr unsigned dim_tiles = HEAD_DIM / 8;
constexpr unsigned key_groups = KEY_BLOCK / 8;
constexpr unsigned slot_size = 8 * HEAD_DIM;
constexpr unsigned state_size = 32; // of max_sum, a slot

// ---- tiles --------------------------------------------------------------------------------------------------------

// An 8x8 block of a row-major matrix with HEAD_DIM columns.
inline Tile load_tile(const bfloat16 *from) {
  Tile out;
  for (unsigned i = 0; i < 8; ++i)
    out.insert(i, aie::load_v<8>(from + i * HEAD_DIM));
  return out;
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
                         const TileTerms &scale) {
  Block sums[count];
  for (unsigned d = 0; d < dim_tiles; ++d) {
    const Tile query = aie::load_v<tile>(queries + d * tile);
    for (unsigned i = 0; i < count; ++i)
      sums[i].mac(load_tile(k + (first + i) * 8 * HEAD_DIM + d * 8), query);
  }
  for (unsigned i = 0; i < count; ++i) {
    TileFloat score = product(TileTerms(sums[i].to_accum()), scale).template to_vector<float>();
    if (first + i == diagonal)
      score = aie::select(score, aie::broadcast<float, tile>(masked_score),
                          aie::mask<tile>::from_uint64(later_keys()));
    aie::store_v(scores + (first + i) * tile, score);
  }
}

// acc = acc * rescale + probabilities * v; without rescaling when no token's maximum moved.
inline void accumulate(const bfloat16 *probabilities, const bfloat16 *v, float *acc, unsigned groups, bool moved,
                       const Tile &rescale) {
  for (unsigned d = 0; d < dim_tiles; ++d) {
    TileSum before = sum_of(aie::load_v<tile>(acc + d * tile));
    if (moved)
      before = product(TileTerms(before), rescale);
    Block sum(before);
    for (unsigned g = 0; g < groups; ++g)
      sum.mac(aie::load_v<tile>(probabilities + g * tile), load_tile(v + g * 8 * HEAD_DIM + d * 8));
    aie::store_v(acc + d * tile, sum.template to_vector<float>());
  }
}

inline void attend(const bfloat16 *queries, const bfloat16 *k, const bfloat16 *v, float *acc, float *max_sum,
                   unsigned groups, unsigned diagonal, const TileTerms &scale) {
  alignas(64) float scores[key_groups * tile];
  alignas(64) bfloat16 probabilities[key_groups * tile];
  unsigned g = 0;
  for (; g + 4 <= groups; g += 4)
    score_groups<4>(queries, k, scores, g, diagonal, scale);
  for (; g < groups; ++g)
    score_groups<1>(queries, k, scores, g, diagonal, scale);

  const PerColumn old_maximum = aie::load_v<16>(max_sum);
  const PerColumn maximum = aie::max(old_maximum, round_to_integer(maximum_of(scores, groups)));
  const bool moved = !aie::lt(old_maximum, maximum).empty();
  const aie::vector<bfloat16, 16> rescale = aie::exp2<bfloat16>(aie::sub(old_maximum, maximum));

  PerColumn sum = aie::load_v<16>(max_sum + 16);
  if (moved) {
    const Tile per_token = rescale.template grow_replicate<tile>();
    sum = product(TileTerms(sum_of(along_columns(sum))), per_token).template extract<16>(0).template to_vector<float>();
  }
  sum = aie::add(sum, exponentials(scores, probabilities, groups, maximum));
  aie::store_v(max_sum, maximum);
  aie::store_v(max_sum + 16, sum);
  accumulate(probabilities, v, acc, groups, moved, along_rows(rescale.template extract<8>(0)));
}

} // namespace

extern "C" {

// Empties every slot: acc and sums 0, maxima below any score.
void prefill_reset(float *acc, float *max_sum) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const PerColumn zero = aie::zeros<float, 16>();
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
  const TileTerms scale(constant<tile>(float(SCALE_LOG2E)));
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
  const TileTerms inverse = reciprocal(aie::load_v<16>(max_sum + slot * state_size + 16), 8);
  for (unsigned d = 0; d < dim_tiles; ++d) {
    const TileTerms sum(sum_of(aie::load_v<tile>(from + d * tile)));
    const Tile result = product(sum, inverse).template to_vector<bfloat16>();
    for (unsigned i = 0; i < 8; ++i)
      aie::store_v(out + i * HEAD_DIM + d * 8, result.template extract<8>(i));
  }
}

} // extern "C"
