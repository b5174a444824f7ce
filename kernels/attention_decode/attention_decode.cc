// SPDX-License-Identifier: Apache-2.0
// Attention of one decode step: every query head of one token against blocks of cached keys, and against the token itself.
//
//   header   [32 bf16 words of params: int32 word 0 = pos, the number of keys in the cache = the token's index]
//            [cos HEAD_DIM/2][sin HEAD_DIM/2][q HEADS][k KV_HEADS][v KV_HEADS], heads of HEAD_DIM, q and k not yet rotated
//   queries  [HEADS][HEAD_DIM] bf16, rotated
//   k, v     [KEY_BLOCK][HEAD_DIM] bf16, rotated keys and values of one KV head from the cache
//   state    acc [KV_HEADS][HEAD_DIM/8][GROUP][8] fp32, then maximum [KV_HEADS][8], then sum [KV_HEADS][8]
//   out      [HEADS attention][KV_HEADS rotated k][KV_HEADS v], heads of HEAD_DIM, bf16
//
// The GROUP query heads of a KV head are the rows of the matrix unit, padded to 8 in registers alone. Keys at or beyond pos
// are masked, and their values replaced by zero, so that a cache may hold anything there; blocks wholly beyond it
// return at once. States of different cores merge by maximum, sum and accumulator.
//
// Scores are computed transposed, [8 keys][8 heads], scaled, masked, and subtracted from in fp32; the softmax is that of
// online_softmax.hpp.
#include "../include/online_softmax.hpp"
#include "../include/rotated_head.hpp"

#if !defined(HEADS) || !defined(KV_HEADS) || !defined(HEAD_DIM) || !defined(KEY_BLOCK) || !defined(SCALE_LOG2E)
#error "attention_decode.cc needs -DHEADS, -DKV_HEADS, -DHEAD_DIM, -DKEY_BLOCK and -DSCALE_LOG2E"
#endif

static_assert(HEAD_DIM % 16 == 0 && KEY_BLOCK % 8 == 0, "half a head is whole vectors, keys come in groups of 8");
static_assert(HEADS % KV_HEADS == 0 && HEADS / KV_HEADS <= 8, "at most 8 query heads a KV head");

namespace {

constexpr unsigned group = HEADS / KV_HEADS;
constexpr unsigned dim_tiles = HEAD_DIM / 8;
constexpr unsigned key_groups = KEY_BLOCK / 8;

// Parts of the header, in bf16 elements.
constexpr unsigned cosines = 32;
constexpr unsigned header_q = cosines + HEAD_DIM;
constexpr unsigned header_k = header_q + HEADS * HEAD_DIM;
constexpr unsigned header_v = header_k + KV_HEADS * HEAD_DIM;
// Parts of the output.
constexpr unsigned out_k = HEADS * HEAD_DIM;
constexpr unsigned out_v = out_k + KV_HEADS * HEAD_DIM;
// Parts of the state, in fp32 elements.
constexpr unsigned head_acc = group * HEAD_DIM; // accumulators of one KV head
constexpr unsigned state_max = HEADS * HEAD_DIM;
constexpr unsigned state_sum = state_max + KV_HEADS * 8;
constexpr unsigned state_size = state_sum + KV_HEADS * 8;

// ---- tiles and rows -------------------------------------------------------------------------------------------------

// The first `rows` rows of an 8x8 block of a row-major matrix with HEAD_DIM columns; zero below.
template <unsigned rows>
inline Tile load_tile(const bfloat16 *from) {
  Tile out = aie::zeros<bfloat16, tile>();
  for (unsigned i = 0; i < rows; ++i)
    out.insert(i, aie::load_v<8>(from + i * HEAD_DIM));
  return out;
}

// The GROUP rows of an accumulator block; zero below.
inline TileFloat load_rows(const float *from) {
  TileFloat out = aie::zeros<float, tile>();
  for (unsigned i = 0; i < group; ++i)
    out.insert(i, aie::load_v<8>(from + i * 8));
  return out;
}

inline void store_rows(float *to, const TileFloat &rows) {
  for (unsigned i = 0; i < group; ++i)
    aie::store_v(to + i * 8, rows.template extract<8>(i));
}

inline PerColumn load_per_head(const float *from) { return aie::load_v<8>(from).template grow_replicate<16>(); }

inline void store_per_head(float *to, const PerColumn &v) { aie::store_v(to, v.template extract<8>(0)); }

inline Tile along_rows(const aie::vector<bfloat16, 16> &per_head) { return along_rows(per_head.template extract<8>(0)); }

inline PerColumn scaled(const PerColumn &values, const aie::vector<bfloat16, 16> &by) {
  return product(TileTerms(sum_of(along_columns(values))), by.template grow_replicate<tile>())
      .template extract<16>(0)
      .template to_vector<float>();
}

// The rows (keys) of a tile from `valid` on.
inline aie::mask<tile> rows_from(unsigned valid) {
  return aie::mask<tile>::from_uint64(valid >= 8 ? uint64_t(0) : ~uint64_t(0) << (8 * valid));
}

// ---- one KV head's queries against keys -----------------------------------------------------------------------------

// A block of the cache: `count` valid keys of KEY_BLOCK.
struct CachedKeys {
  const bfloat16 *k, *v;
  unsigned count;

  unsigned valid_in(unsigned g) const { return count - 8 * g; } // of group g; 8 or more: all
  Tile key(unsigned g, unsigned d) const { return load_tile<8>(k + g * 8 * HEAD_DIM + d * 8); }
  Tile value(unsigned g, unsigned d) const {
    const Tile all = load_tile<8>(v + g * 8 * HEAD_DIM + d * 8);
    return valid_in(g) >= 8 ? all : aie::select(all, aie::zeros<bfloat16, tile>(), rows_from(valid_in(g)));
  }
};

// The token's own key and value.
struct CurrentKey {
  const bfloat16 *k, *v;

  unsigned valid_in(unsigned) const { return 1; }
  Tile key(unsigned, unsigned d) const { return load_tile<1>(k + d * 8); }
  Tile value(unsigned, unsigned d) const { return load_tile<1>(v + d * 8); }
};

// Scaled and masked scores of `count` groups of 8 keys from `first` on.
template <unsigned count, typename Keys>
inline void score_groups(const bfloat16 *queries, const Keys &keys, float *scores, unsigned first, const TileTerms &scale) {
  Block sums[count];
  for (unsigned d = 0; d < dim_tiles; ++d) {
    const Tile query = aie::transpose(load_tile<group>(queries + d * 8), 8, 8);
    for (unsigned i = 0; i < count; ++i)
      sums[i].mac(keys.key(first + i, d), query);
  }
  for (unsigned i = 0; i < count; ++i) {
    const TileFloat score = product(TileTerms(sums[i].to_accum()), scale).template to_vector<float>();
    aie::store_v(scores + (first + i) * tile, aie::select(score, aie::broadcast<float, tile>(masked_score),
                                                          rows_from(keys.valid_in(first + i))));
  }
}

// acc = acc * rescale + probabilities * v; without rescaling when no head's maximum moved.
template <typename Keys>
inline void accumulate(const bfloat16 *probabilities, const Keys &keys, float *acc, unsigned groups, bool moved,
                       const Tile &rescale) {
  for (unsigned d = 0; d < dim_tiles; ++d) {
    float *rows = acc + d * group * 8;
    TileSum before = sum_of(load_rows(rows));
    if (moved)
      before = product(TileTerms(before), rescale);
    Block sum(before);
    for (unsigned g = 0; g < groups; ++g)
      sum.mac(aie::load_v<tile>(probabilities + g * tile), keys.value(g, d));
    store_rows(rows, sum.template to_vector<float>());
  }
}

template <unsigned most_groups, typename Keys>
inline void attend(const bfloat16 *queries, const Keys &keys, unsigned groups, float *state, unsigned kv_head) {
  alignas(64) float scores[most_groups * tile];
  alignas(64) bfloat16 probabilities[most_groups * tile];
  const TileTerms scale(constant<tile>(float(SCALE_LOG2E)));
  unsigned g = 0;
  if constexpr (most_groups >= 4)
    for (; g + 4 <= groups; g += 4)
      score_groups<4>(queries, keys, scores, g, scale);
  for (; g < groups; ++g)
    score_groups<1>(queries, keys, scores, g, scale);

  float *maxima = state + state_max + kv_head * 8;
  float *sums = state + state_sum + kv_head * 8;
  const PerColumn old_maximum = load_per_head(maxima);
  const PerColumn maximum = aie::max(old_maximum, round_to_integer(maximum_of(scores, groups)));
  const bool moved = !aie::lt(old_maximum, maximum).empty();
  const aie::vector<bfloat16, 16> rescale = aie::exp2<bfloat16>(aie::sub(old_maximum, maximum));

  PerColumn sum = load_per_head(sums);
  if (moved)
    sum = scaled(sum, rescale);
  sum = aie::add(sum, exponentials(scores, probabilities, groups, maximum));
  store_per_head(maxima, maximum);
  store_per_head(sums, sum);
  accumulate(probabilities, keys, state + kv_head * head_acc, groups, moved, along_rows(rescale));
}

inline int32_t position(const bfloat16 *header) {
  int32_t pos;
  __builtin_memcpy(&pos, static_cast<const void *>(header), sizeof pos);
  return pos;
}

} // namespace

extern "C" {

// Rotates the queries and empties the state.
void decode_prepare(const bfloat16 *header, bfloat16 *queries, float *state) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned head = 0; head < HEADS; ++head)
    rotate_head<HEAD_DIM>(header + header_q + head * HEAD_DIM, header + cosines, queries + head * HEAD_DIM);
  for (unsigned i = 0; i < state_max; i += 8)
    aie::store_v(state + i, aie::zeros<float, 8>());
  for (unsigned head = 0; head < KV_HEADS; ++head) {
    aie::store_v(state + state_max + head * 8, aie::broadcast<float, 8>(no_maximum));
    aie::store_v(state + state_sum + head * 8, aie::zeros<float, 8>());
  }
}

// Attends to one block of the cache from the queries of KV head `kv_head`; `first_key` is the block's first key.
void decode_block(const bfloat16 *header, const bfloat16 *queries, const bfloat16 *k, const bfloat16 *v, float *state,
                  int32_t kv_head, int32_t first_key) {
  const int32_t seen = position(header) - first_key;
  if (seen <= 0)
    return;
  aie::set_rounding(aie::rounding_mode::conv_even);
  const unsigned count = seen < KEY_BLOCK ? seen : KEY_BLOCK;
  attend<key_groups>(queries + kv_head * head_acc, CachedKeys{k, v, count}, (count + 7) / 8, state, kv_head);
}

// Attends to the token itself, and writes its rotated keys and its values to their place in out.
void decode_current(const bfloat16 *header, const bfloat16 *queries, float *state, bfloat16 *out) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned head = 0; head < KV_HEADS; ++head) {
    bfloat16 *key = out + out_k + head * HEAD_DIM;
    bfloat16 *value = out + out_v + head * HEAD_DIM;
    const bfloat16 *new_value = header + header_v + head * HEAD_DIM;
    rotate_head<HEAD_DIM>(header + header_k + head * HEAD_DIM, header + cosines, key);
    for (unsigned i = 0; i < HEAD_DIM; i += 8)
      aie::store_v(value + i, aie::load_v<8>(new_value + i));
    attend<1>(queries + head * head_acc, CurrentKey{key, new_value}, 1, state, head);
  }
}

// Merges another core's state into this one.
void decode_merge(const float *incoming, float *state) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned head = 0; head < KV_HEADS; ++head) {
    const unsigned at_max = state_max + head * 8, at_sum = state_sum + head * 8;
    const PerColumn theirs = load_per_head(incoming + at_max), ours = load_per_head(state + at_max);
    const PerColumn maximum = aie::max(theirs, ours);
    const aie::vector<bfloat16, 16> their_scale = aie::exp2<bfloat16>(aie::sub(theirs, maximum));
    const aie::vector<bfloat16, 16> our_scale = aie::exp2<bfloat16>(aie::sub(ours, maximum));
    const PerColumn their_sum = scaled(load_per_head(incoming + at_sum), their_scale);
    const PerColumn our_sum = scaled(load_per_head(state + at_sum), our_scale);
    store_per_head(state + at_max, maximum);
    store_per_head(state + at_sum, aie::add(their_sum, our_sum));
    const Tile their_rows = along_rows(their_scale), our_rows = along_rows(our_scale);
    for (unsigned d = 0; d < dim_tiles; ++d) {
      const unsigned at = head * head_acc + d * group * 8;
      const TileSum from_them = product(TileTerms(sum_of(load_rows(incoming + at))), their_rows);
      const TileSum from_us = product(TileTerms(sum_of(load_rows(state + at))), our_rows);
      store_rows(state + at, aie::add(from_them, from_us).template to_vector<float>());
    }
  }
}

// Copies the state to where the next core reads it.
void decode_pass(const float *state, float *outgoing) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned i = 0; i < state_size; i += 8)
    aie::store_v(outgoing + i, aie::load_v<8>(state + i));
}

// out = acc / sum, rounded once; 0 for a head that saw no key.
void decode_finish(const float *state, bfloat16 *out) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned head = 0; head < KV_HEADS; ++head) {
    const TileTerms by = reciprocal(load_per_head(state + state_sum + head * 8), group);
    for (unsigned d = 0; d < dim_tiles; ++d) {
      const TileTerms sum(sum_of(load_rows(state + head * head_acc + d * group * 8)));
      const Tile result = product(sum, by).template to_vector<bfloat16>();
      for (unsigned i = 0; i < group; ++i)
        aie::store_v(out + (head * group + i) * HEAD_DIM + d * 8, result.template extract<8>(i));
    }
  }
}

} // extern "C"
