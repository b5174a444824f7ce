// SPDX-License-Identifier: Apache-2.0
//
// The scalar bfloat16 and the other scalar names that kernels use without a namespace.
//
// A float becomes a bfloat16 by the core's rounding register, as on the device; in a constant expression, where the
// device's compiler folds the value, it is rounded to nearest even. Arithmetic operators round each result likewise.

#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <limits>

#include "rounding.hpp"

using int8 = int8_t;
using int16 = int16_t;
using int32 = int32_t;
using int64 = int64_t;
using uint8 = uint8_t;
using uint16 = uint16_t;
using uint32 = uint32_t;
using uint64 = uint64_t;

class bfloat16 {
 public:
  bfloat16() = default;

  template <typename T>
    requires std::is_arithmetic_v<T>
  constexpr bfloat16(T value) : bits_(round(static_cast<float>(value))) {}

  constexpr operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits_) << 16); }

  static constexpr bfloat16 from_bits(uint16_t bits) {
    bfloat16 value;
    value.bits_ = bits;
    return value;
  }

  constexpr uint16_t bits() const { return bits_; }

  friend bfloat16 operator-(bfloat16 a) { return from_bits(a.bits_ ^ 0x8000); }

  template <typename T>
  bfloat16 &operator+=(T other) {
    return *this = scalar_result(static_cast<float>(*this) + static_cast<float>(other));
  }
  template <typename T>
  bfloat16 &operator-=(T other) {
    return *this = scalar_result(static_cast<float>(*this) - static_cast<float>(other));
  }
  template <typename T>
  bfloat16 &operator*=(T other) {
    return *this = scalar_result(static_cast<float>(*this) * static_cast<float>(other));
  }
  template <typename T>
  bfloat16 &operator/=(T other) {
    return *this = scalar_result(static_cast<float>(*this) / static_cast<float>(other));
  }

  /// The result of one scalar operation: rounded, and counted.
  static bfloat16 scalar_result(float value) {
    twin::core().mul_adds_scalar += 1;
    return bfloat16(value);
  }

 private:
  static constexpr uint16_t round(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    if (std::is_constant_evaluated() || (bits & 0xffff) == 0)
      return twin::narrow_bits(bits, twin::narrow_rules[12]);
    return twin::narrow_bits(bits, twin::narrow_rules[twin::rounding()]);
  }

  uint16_t bits_;
};

static_assert(sizeof(bfloat16) == 2);

// Templates, so that a mixed bfloat16-float expression is computed in float without an ambiguity.
template <std::same_as<bfloat16> A, std::same_as<bfloat16> B>
inline bfloat16 operator+(A a, B b) {
  return bfloat16::scalar_result(static_cast<float>(a) + static_cast<float>(b));
}
template <std::same_as<bfloat16> A, std::same_as<bfloat16> B>
inline bfloat16 operator-(A a, B b) {
  return bfloat16::scalar_result(static_cast<float>(a) - static_cast<float>(b));
}
template <std::same_as<bfloat16> A, std::same_as<bfloat16> B>
inline bfloat16 operator*(A a, B b) {
  return bfloat16::scalar_result(static_cast<float>(a) * static_cast<float>(b));
}
template <std::same_as<bfloat16> A, std::same_as<bfloat16> B>
inline bfloat16 operator/(A a, B b) {
  return bfloat16::scalar_result(static_cast<float>(a) / static_cast<float>(b));
}

template <>
struct std::numeric_limits<bfloat16> {
  static constexpr bool is_specialized = true;
  static constexpr bool is_signed = true;
  static constexpr bool is_integer = false;
  static constexpr bool is_exact = false;
  static constexpr bool has_infinity = true;
  static constexpr bool has_quiet_NaN = true;
  static constexpr int digits = 8;
  static constexpr bfloat16 min() { return bfloat16::from_bits(0x0080); }
  static constexpr bfloat16 max() { return bfloat16::from_bits(0x7f7f); }
  static constexpr bfloat16 lowest() { return bfloat16::from_bits(0xff7f); }
  static constexpr bfloat16 epsilon() { return bfloat16::from_bits(0x3c00); }
  static constexpr bfloat16 infinity() { return bfloat16::from_bits(0x7f80); }
  static constexpr bfloat16 quiet_NaN() { return bfloat16::from_bits(0x7fc0); }
  static constexpr bfloat16 denorm_min() { return bfloat16::from_bits(0x0001); }
};
