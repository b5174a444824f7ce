// SPDX-License-Identifier: Apache-2.0
//
// Block floating point bfp16ebs8: eight values share the largest of their exponents.
//
// Value i of a block is mantissa[i] * 2^(exponent - 127) / 64. Quantising, in the order of the device's reference code:
//   1. the 24-bit significand of each value, with its sign applied in two's complement (no hidden bit when the
//      exponent field is 0),
//   2. truncated to 8 bits (an arithmetic shift right by 17),
//   3. shifted right arithmetically by (largest exponent - own exponent).
// So what cannot be represented goes toward minus infinity. Whether the device rounds here by its rounding register
// instead is disputed (mlir-aie pull request 3442 measured a gain from conv_even on Strix): compile with
// TWIN_BFP16_ROUND_BY_REGISTER to let step 2 and 3 round once by the register; a mantissa above 127 is held at 127.
// Under floor both give the same bits. A block that holds a NaN or an infinity becomes NaN throughout.

#pragma once

#include "accum.hpp"

namespace twin {

inline constexpr unsigned block = 8;

/// Exponent fields of float bits.
template <typename U>
TWIN_INLINE U exponents(U bits) {
  return (bits >> 23) & 0xff;
}

/// Mantissas (8 bits, signed, in 32-bit lanes) of float bits under each lane's shared exponent.
template <typename U>
TWIN_INLINE auto mantissas(U bits, U shared) {
  using I = decltype(bits < bits);
  const U own = exponents(bits);
  const I negative = (I)bits >> 31;
  const I magnitude = (I)((bits & 0x7fffff) | (0x800000 & (U)(own != 0)));
  const I significand = (magnitude ^ negative) - negative;
  const U distance = shared - own;
#ifdef TWIN_BFP16_ROUND_BY_REGISTER
  I out = significand;
  for (unsigned i = 0; i < sizeof(U) / 4; ++i) {
    const unsigned shift = 17 + (distance[i] > 40 ? 40 : distance[i]);
    const int64_t rounded = shift_round(significand[i], shift, rounding());
    out[i] = static_cast<int32_t>(rounded > 127 ? 127 : rounded);
  }
  return out;
#else
  const U limited = blend((I)(distance > 31), U{} + 31, distance);
  return (significand >> 17) >> (I)limited;
#endif
}

/// mantissa * 2^(shared - 127) / 64 as a float: exact, or NaN where the shared exponent is that of NaN and infinity.
template <typename I, typename U>
TWIN_INLINE auto block_values(I mantissa, U shared) {
  using F = simd<float, sizeof(U) / 4>;
  // Exponent 0 means 2^-127, a denormal; exponent 255 must not stay an infinity.
  const U special = (U)((shared == 0) | (shared == 255)) & 0x400000;
  const F scale = (F)((shared << 23) | special);
  return (__builtin_convertvector(mantissa, F) * 0.015625f) * scale;
}

/// The largest lane, in every lane.
TWIN_INLINE simd<uint32_t, 8> max_of_lanes(simd<uint32_t, 8> v) {
  using I = simd<int32_t, 8>;
  auto larger = [](I a, I b) { return blend(a > b, a, b); };
  I m = (I)v;
  m = larger(m, __builtin_shufflevector(m, m, 4, 5, 6, 7, 0, 1, 2, 3));
  m = larger(m, __builtin_shufflevector(m, m, 2, 3, 0, 1, 6, 7, 4, 5));
  m = larger(m, __builtin_shufflevector(m, m, 1, 0, 3, 2, 5, 4, 7, 6));
  return (simd<uint32_t, 8>)m;
}

TWIN_INLINE simd<uint32_t, 8> bf16_row_bits(const void *from) {
  return __builtin_convertvector(load<simd<uint16_t, 8>>(from), simd<uint32_t, 8>) << 16;
}

/// Quantises `Rows` rows of eight bfloat16 (a block is a row) and gives the values that they stand for.
template <unsigned Rows>
TWIN_INLINE void quantise_rows(const bfloat16 *from, float *to) {
#pragma GCC unroll 8
  for (unsigned row = 0; row < Rows; ++row) {
    const auto bits = bf16_row_bits(from + 8 * row);
    const auto shared = max_of_lanes(exponents(bits));
    store(to + 8 * row, block_values(mantissas(bits, shared), shared));
  }
}

/// Quantises eight rows of eight bfloat16 where a block is a column.
TWIN_INLINE void quantise_columns(const bfloat16 *from, float *to) {
  using I = simd<int32_t, 8>;
  I shared = {};
#pragma GCC unroll 8
  for (unsigned row = 0; row < 8; ++row) {
    const I own = (I)exponents(bf16_row_bits(from + 8 * row));
    shared = blend(own > shared, own, shared);
  }
#pragma GCC unroll 8
  for (unsigned row = 0; row < 8; ++row) {
    const auto bits = bf16_row_bits(from + 8 * row);
    store(to + 8 * row, block_values(mantissas(bits, (simd<uint32_t, 8>)shared), (simd<uint32_t, 8>)shared));
  }
}

}  // namespace twin

namespace aie {

/// A vector of blocks, as it lies in memory: nine bytes for every eight values.
template <typename T, unsigned Elems>
class block_vector {
  static_assert(std::is_same_v<T, bfp16ebs8>, "aie::block_vector<T, N>: T must be bfp16ebs8");
  static_assert(Elems == 64 || Elems == 128, "aie::block_vector<T, N>: N must be 64 or 128");

 public:
  using value_type = T;
  static constexpr unsigned size() { return Elems; }
  static constexpr unsigned blocks() { return Elems / twin::block; }
  block_vector() = default;

 private:
  friend struct detail::lanes_of;
  T lanes_[Elems / twin::block];
};

namespace detail {

/// The values that a block vector stands for.
template <unsigned Elems>
inline void block_floats(const block_vector<bfp16ebs8, Elems> &v, float *to) {
  for (unsigned i = 0; i < Elems / twin::block; ++i) {
    const bfp16ebs8 &from = raw(v)[i];
    const auto mantissa = __builtin_convertvector(twin::load<twin::simd<int8_t, 8>>(from.mantissa),
                                                  twin::simd<int32_t, 8>);
    const auto shared = twin::simd<uint32_t, 8>{} + from.exponent;
    twin::store(to + i * twin::block, twin::block_values(mantissa, shared));
  }
}

}  // namespace detail

template <typename Tag, unsigned Elems>
template <typename T>
block_vector<T, Elems> accum<Tag, Elems>::to_blocks() const {
  block_vector<T, Elems> out;
  for (unsigned i = 0; i < Elems / twin::block; ++i) {
    const auto bits = twin::load<twin::simd<uint32_t, 8>>(lanes_ + i * twin::block);
    const auto shared = twin::max_of_lanes(twin::exponents(bits));
    bfp16ebs8 &to = detail::raw(out)[i];
    to.exponent = static_cast<uint8_t>(shared[0]);
    const auto mantissa = twin::mantissas(bits, shared);
    twin::store(to.mantissa, __builtin_convertvector(mantissa, twin::simd<int8_t, 8>));
  }
  twin::count_vector(twin::units(Elems, 64));
  return out;
}

template <typename Tag, unsigned Elems>
template <typename T>
void accum<Tag, Elems>::from_vector(const block_vector<T, Elems> &v) {
  static_assert(detail::is_float_tag<Tag>, "aie::accum::from_vector: blocks go to an accfloat accumulator");
  detail::block_floats(v, lanes_);
  twin::count_vector(twin::units(Elems, 64));
}

}  // namespace aie
