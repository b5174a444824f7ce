// SPDX-License-Identifier: Apache-2.0
//
// The few intrinsics, outside namespace aie, that public AIE2P kernels mix with the API: register types of bfloat16,
// elementwise multiplication of 32 and 64 lanes, and byte shifts.

#pragma once

#include "multiply.hpp"
#include "shuffle.hpp"

/// A register by its native name; it converts to the aie::vector of the same lanes and back.
template <typename T, unsigned Elems>
struct native_vector {
  aie::vector<T, Elems> value;
  native_vector() = default;
  native_vector(const aie::vector<T, Elems> &v) : value(v) {}
  operator aie::vector<T, Elems>() const { return value; }
};

using v16bfloat16 = native_vector<bfloat16, 16>;
using v32bfloat16 = native_vector<bfloat16, 32>;
using v64bfloat16 = native_vector<bfloat16, 64>;

inline v32bfloat16 broadcast_one_to_v32bfloat16() {
  return aie::broadcast<bfloat16, 32>(bfloat16::from_bits(0x3f80));
}

inline v64bfloat16 concat(const v32bfloat16 &low, const v32bfloat16 &high) {
  return aie::concat(low.value, high.value);
}

inline aie::accum<accfloat, 32> mul_elem_32(const v32bfloat16 &a, const v32bfloat16 &b) {
  return aie::mul(a.value, b.value);
}
inline aie::accum<accfloat, 64> mul_elem_64(const v64bfloat16 &a, const v64bfloat16 &b) {
  return aie::mul(a.value, b.value);
}
inline aie::accum<accfloat, 32> mac_elem_32(const v32bfloat16 &a, const v32bfloat16 &b,
                                            const aie::accum<accfloat, 32> &acc) {
  return aie::mac(acc, a.value, b.value);
}
inline aie::accum<accfloat, 64> mac_elem_64(const v64bfloat16 &a, const v64bfloat16 &b,
                                            const aie::accum<accfloat, 64> &acc) {
  return aie::mac(acc, a.value, b.value);
}

/// Bytes `shift` to `shift + 63` of low and high laid one after the other (registers of 512 bits).
template <typename T, unsigned Elems>
inline aie::vector<T, Elems> shift_bytes(const aie::vector<T, Elems> &low, const aie::vector<T, Elems> &high,
                                         unsigned shift) {
  static_assert(sizeof(T) * Elems == 64, "shift_bytes: the vectors must have 512 bits");
  if (shift > 64 || shift % sizeof(T) != 0)
    twin::trap("shift_bytes: %u bytes; expected whole elements, at most 64 bytes", shift);
  return aie::shuffle_down_fill(low, high, shift / sizeof(T));
}
