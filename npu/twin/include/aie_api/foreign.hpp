// SPDX-License-Identifier: Apache-2.0
//
// What kernels that others wrote may use beyond the strict subset. `scripts/simulate.py` reads this header before such a
// kernel; kernels of this pack are never compiled with it, so they stay within the table of ../README.md.
//
// - Floats pass through an acc32 accumulator as bits (TWIN_FLOATS_THROUGH_ACC32), as the device's headers let them.
// - Registers by their native names, read and written through pointers, with the intrinsics that go with them.
// - Shuffles by mode (foreign_shuffle.hpp), and aie::detail::transpose.
// - The cascade (foreign_cascade.hpp).

#pragma once

#define TWIN_FLOATS_THROUGH_ACC32

#include "aie.hpp"
#include "foreign_shuffle.hpp"

/// A register by its native name; a load or store through a misaligned pointer traps.
template <typename T, unsigned Elems>
struct native_register {
  aie::vector<T, Elems> value;

  native_register() = default;
  native_register(const aie::vector<T, Elems> &v) : value(v) {}
  native_register(const native_register &other) : value(checked(other).value) {}
  native_register &operator=(const native_register &other) {
    checked(*this).value = checked(other).value;
    return *this;
  }
  operator aie::vector<T, Elems>() const { return value; }

 private:
  template <typename R>
  static R &checked(R &r) {
    auto at = reinterpret_cast<uintptr_t>(&r);
    asm("" : "+r"(at));  // the compiler would take the alignment for granted
    constexpr unsigned step = sizeof(T) * Elems < 64 ? sizeof(T) * Elems : 64;
    if (at % step != 0) twin::trap("a register is loaded or stored at %u bytes past alignment", unsigned(at % step));
    return r;
  }
};

using v16int32 = native_register<int32, 16>;
using v32int16 = native_register<int16, 32>;
using v64int8 = native_register<int8, 64>;
using v64uint8 = native_register<uint8, 64>;
using v16float = native_register<float, 16>;

// Blocks of 64 and 128 values. They take 9 bytes for 8 values in memory, at any address.
using v64bfp16ebs8 = aie::block_vector<bfp16ebs8, 64>;
using v128bfp16ebs8 = aie::block_vector<bfp16ebs8, 128>;

namespace aie::detail {

template <typename T, unsigned Elems>
struct transpose {
  static aie::vector<T, Elems> run(const aie::vector<T, Elems> &v, unsigned rows, unsigned columns) {
    return aie::transpose(v, rows, columns);
  }
};

}  // namespace aie::detail

inline v16int32 broadcast_to_v16int32(int32_t value) { return aie::broadcast<int32, 16>(value); }
inline v32int16 broadcast_to_v32int16(int16_t value) { return aie::broadcast<int16, 32>(value); }
inline v32bfloat16 broadcast_to_v32bfloat16(bfloat16 value) { return aie::broadcast<bfloat16, 32>(value); }
inline v32bfloat16 broadcast_zero_bfloat16() { return aie::zeros<bfloat16, 32>(); }
inline v16int32 broadcast_zero_s32() { return aie::zeros<int32, 16>(); }

inline v16int32 add(const v16int32 &a, const v16int32 &b) { return aie::add(a.value, b.value); }
inline v16int32 sub(const v16int32 &a, const v16int32 &b) { return aie::sub(a.value, b.value); }
inline v16int32 shift_bytes(const v16int32 &low, const v16int32 &high, unsigned shift) {
  return shift_bytes(low.value, high.value, shift);
}
inline v32bfloat16 max(const v32bfloat16 &a, const v32bfloat16 &b) { return aie::max(a.value, b.value); }
inline v32bfloat16 min(const v32bfloat16 &a, const v32bfloat16 &b) { return aie::min(a.value, b.value); }
inline v16int32 max(const v16int32 &a, const v16int32 &b) { return aie::max(a.value, b.value); }
inline v16int32 min(const v16int32 &a, const v16int32 &b) { return aie::min(a.value, b.value); }
inline int32_t extract_elem(const v16int32 &v, unsigned index) { return v.value.get(index); }

template <typename T, unsigned Elems>
inline aie::vector<T, Elems> max(const aie::vector<T, Elems> &a, const aie::vector<T, Elems> &b) {
  return aie::max(a, b);
}
template <typename T, unsigned Elems>
inline aie::vector<T, Elems> min(const aie::vector<T, Elems> &a, const aie::vector<T, Elems> &b) {
  return aie::min(a, b);
}

#include "foreign_cascade.hpp"
