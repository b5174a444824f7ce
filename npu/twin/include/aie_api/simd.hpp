// SPDX-License-Identifier: Apache-2.0
//
// Host vectors of a few lanes: the compiler's own vector type, loaded and stored by copying bytes.
//
// All arithmetic is lane by lane IEEE 754 in the order written (-ffp-contract=off), so that results have the same
// bits with every compiler, optimisation level and instruction set.

#pragma once

#include <cstdint>

#include "core_state.hpp"

namespace twin {

template <typename T, unsigned Lanes>
struct simd_type {
  typedef T type __attribute__((vector_size(Lanes * sizeof(T))));
};

/// A host vector of `Lanes` elements.
template <typename T, unsigned Lanes>
using simd = typename simd_type<T, Lanes>::type;

/// Lanes handled at once: eight, a full AVX2 register of floats, or all when there are fewer.
template <unsigned Elems>
inline constexpr unsigned lanes = Elems < 8 ? Elems : 8;

template <typename V>
TWIN_INLINE V load(const void *from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(V));
  return value;
}

template <typename V>
TWIN_INLINE void store(void *to, V value) {
  __builtin_memcpy(to, &value, sizeof(V));
}

/// Copies a register's bytes in whole host vectors. (g++ 12 moves a memcpy of this size through general registers.)
template <unsigned Bytes>
TWIN_INLINE void copy(void *to, const void *from) {
  constexpr unsigned step = Bytes % 32 == 0 ? 32 : Bytes % 16 == 0 ? 16 : 0;
  if constexpr (step == 0) {
    __builtin_memcpy(to, from, Bytes);
  } else {
#pragma GCC unroll 16
    for (unsigned i = 0; i < Bytes; i += step)
      store(static_cast<char *>(to) + i, load<simd<uint64_t, step / 8>>(static_cast<const char *>(from) + i));
  }
}

/// Fills a register that nobody wrote yet: every bfloat16 and float lane is a NaN, every integer lane is far from zero.
template <unsigned Bytes>
TWIN_INLINE void poison(void *to) {
  constexpr unsigned step = Bytes % 32 == 0 ? 32 : 16;
  constexpr uint32_t pattern = 0x7fb5ffb5;
#pragma GCC unroll 16
  for (unsigned i = 0; i < Bytes; i += step)
    store(static_cast<char *>(to) + i, simd<uint32_t, step / 4>{} + pattern);
}

/// `yes` where the mask's lane is all ones, `no` where it is zero.
template <typename M, typename V>
TWIN_INLINE V blend(M mask, V yes, V no) {
  return (V)(((M)yes & mask) | ((M)no & ~mask));
}

template <typename To, typename From>
TWIN_INLINE To bit_cast(const From &from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

}  // namespace twin
