// SPDX-License-Identifier: Apache-2.0
//
// The sticky rounding and saturation registers, and what they do.
//
// Two users: narrowing an fp32 value to bfloat16, and shift-round-saturate (SRS) of an integer accumulator.
// Both follow the register of the core that runs. A float is rounded by its value: floor is toward minus infinity.
// Denormals are rounded like any other value, never flushed; a NaN stays a (quiet) NaN of the same sign.

#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "core_state.hpp"
#include "simd.hpp"

namespace aie {

/// The values are those of control register 6.
enum class rounding_mode : unsigned {
  floor = 0,            // toward minus infinity
  ceil = 1,             // toward plus infinity
  symmetric_floor = 2,  // toward zero
  symmetric_ceil = 3,   // away from zero
  negative_inf = 8,     // to nearest, a tie toward minus infinity
  positive_inf = 9,     // to nearest, a tie toward plus infinity
  symmetric_zero = 10,  // to nearest, a tie toward zero
  symmetric_inf = 11,   // to nearest, a tie away from zero
  conv_even = 12,       // to nearest, a tie to even
  conv_odd = 13,        // to nearest, a tie to odd
};

/// The values are those of control register 9.
enum class saturation_mode : unsigned { none = 0, saturate = 1, symmetric = 3 };

}  // namespace aie

namespace twin {

/// What is added to the bits of a float before its low 16 bits are dropped:
/// base + (negative ? sign : 0) + (bit 16 set ? odd : 0), modulo 2^32.
struct NarrowRule {
  uint32_t base, sign, odd;
};

inline constexpr NarrowRule narrow_rules[16] = {
    {0x0000, 0xffff, 0},    // floor: a negative value with a rest grows in magnitude
    {0xffff, -0xffffu, 0},  // ceil
    {0x0000, 0, 0},         // symmetric_floor
    {0xffff, 0, 0},         // symmetric_ceil
    {0, 0, 0},
    {0, 0, 0},
    {0, 0, 0},
    {0, 0, 0},
    {0x7fff, 1, 0},    // negative_inf
    {0x8000, -1u, 0},  // positive_inf
    {0x7fff, 0, 0},    // symmetric_zero
    {0x8000, 0, 0},    // symmetric_inf
    {0x7fff, 0, 1},    // conv_even
    {0x8000, 0, -1u},  // conv_odd
    {0, 0, 0},
    {0, 0, 0},
};

constexpr bool is_rounding_mode(uint32_t mode) { return mode <= 3 || (mode >= 8 && mode <= 13); }

TWIN_INLINE uint32_t rounding() { return core().rounding & 15; }

/// The bfloat16 bits of one float's bits under a rule.
constexpr uint16_t narrow_bits(uint32_t bits, const NarrowRule &rule) {
  if ((bits & 0x7fffffff) > 0x7f800000)
    return static_cast<uint16_t>((bits >> 16) | 0x40);
  const uint32_t add = rule.base + ((bits >> 31) ? rule.sign : 0) + (((bits >> 16) & 1) ? rule.odd : 0);
  return static_cast<uint16_t>((bits + add) >> 16);
}

/// The same for a host vector of float bits; the result's lanes stay 32 bits wide.
template <typename U>
TWIN_INLINE U narrow_bits_simd(U bits, const NarrowRule &rule) {
  using I = decltype(bits < bits);
  const U high = bits >> 16;
  const U negative = (U)((I)bits >> 31);
  const U odd = -(high & 1);
  const U rounded = (bits + (rule.base + (negative & rule.sign) + (odd & rule.odd))) >> 16;
  const I nan = (I)(bits & 0x7fffffff) > 0x7f800000;
  return blend(nan, high | 0x40, rounded);
}

/// Narrows `Elems` floats to bfloat16 bits by the core's rounding register.
template <unsigned Elems>
TWIN_INLINE void narrow(const float *from, void *to, const NarrowRule &rule) {
  constexpr unsigned W = lanes<Elems>;
#pragma GCC unroll 16
  for (unsigned i = 0; i < Elems; i += W) {
    const auto bits = narrow_bits_simd(load<simd<uint32_t, W>>(from + i), rule);
    store(static_cast<char *>(to) + 2 * i, __builtin_convertvector(bits, simd<uint16_t, W>));
  }
}

/// Widens `Elems` bfloat16 bit patterns to floats, exactly.
template <unsigned Elems>
TWIN_INLINE void widen(const void *from, float *to) {
  constexpr unsigned W = lanes<Elems>;
#pragma GCC unroll 16
  for (unsigned i = 0; i < Elems; i += W) {
    const auto bits = load<simd<uint16_t, W>>(static_cast<const char *>(from) + 2 * i);
    store(to + i, __builtin_convertvector(bits, simd<uint32_t, W>) << 16);
  }
}

/// value / 2^shift as an integer, by a rounding mode. `shift` is 0 to 63.
TWIN_INLINE int64_t shift_round(int64_t value, unsigned shift, uint32_t mode) {
  if (shift == 0)
    return value;
  const int64_t quotient = value >> shift;
  const uint64_t rest = static_cast<uint64_t>(value) & ((uint64_t{1} << shift) - 1);
  const uint64_t half = uint64_t{1} << (shift - 1);
  const bool negative = value < 0;
  bool up = false;
  switch (mode) {
    case 0: up = false; break;
    case 1: up = rest != 0; break;
    case 2: up = negative && rest != 0; break;
    case 3: up = !negative && rest != 0; break;
    case 8: up = rest > half; break;
    case 9: up = rest >= half; break;
    case 10: up = rest > half || (rest == half && negative); break;
    case 11: up = rest > half || (rest == half && !negative); break;
    case 12: up = rest > half || (rest == half && (quotient & 1)); break;
    case 13: up = rest > half || (rest == half && !(quotient & 1)); break;
    default: trap("rounding register holds %u; expected 0-3 or 8-13", mode);
  }
  return quotient + up;
}

/// Fits an integer into T by a saturation mode; none wraps.
template <typename T>
TWIN_INLINE T saturate(int64_t value, uint32_t mode) {
  if (mode == 0)
    return static_cast<T>(value);
  const int64_t high = static_cast<int64_t>(std::numeric_limits<T>::max());
  int64_t low = static_cast<int64_t>(std::numeric_limits<T>::min());
  if (mode == 3 && std::is_signed_v<T>)
    low = -high;
  return static_cast<T>(value > high ? high : value < low ? low : value);
}

}  // namespace twin

namespace aie {

inline void set_rounding(rounding_mode mode) {
  if (!twin::is_rounding_mode(static_cast<uint32_t>(mode)))
    twin::trap("aie::set_rounding(%u): expected a mode 0-3 or 8-13", static_cast<unsigned>(mode));
  twin::core().rounding = static_cast<uint32_t>(mode);
}

[[nodiscard]] inline rounding_mode get_rounding() { return static_cast<rounding_mode>(twin::core().rounding); }

inline void set_saturation(saturation_mode mode) {
  const auto value = static_cast<uint32_t>(mode);
  if (value != 0 && value != 1 && value != 3)
    twin::trap("aie::set_saturation(%u): expected a mode 0, 1 or 3", value);
  twin::core().saturation = value;
}

[[nodiscard]] inline saturation_mode get_saturation() {
  return static_cast<saturation_mode>(twin::core().saturation);
}

/// Sets the mode and returns the one that was set before.
[[nodiscard]] inline rounding_mode swap_rounding(rounding_mode mode) {
  const rounding_mode before = get_rounding();
  set_rounding(mode);
  return before;
}

[[nodiscard]] inline saturation_mode swap_saturation(saturation_mode mode) {
  const saturation_mode before = get_saturation();
  set_saturation(mode);
  return before;
}

}  // namespace aie
