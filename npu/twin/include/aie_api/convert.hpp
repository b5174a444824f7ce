// SPDX-License-Identifier: Apache-2.0
//
// Between integers of different widths (pack, unpack), and between integers and floats (to_float, to_fixed).
//
// to_float: value / 2^shift, rounded to nearest even; a bfloat16 result is rounded again by the register. to_fixed:
// value * 2^shift as an integer, saturated; from float a half goes toward zero, bfloat16 always goes toward minus
// infinity. A NaN becomes 0.

#pragma once

#include "accum.hpp"

namespace aie {

namespace detail {

/// 2^exponent, for exponents that a float holds.
inline float power_of_two(int exponent) {
  if (exponent < -126 || exponent > 127)
    twin::trap("a shift of %d is outside the range of a float; expected -126 to 127", exponent);
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

/// To the nearest integer, a half toward zero (`floor` false), or toward minus infinity.
template <typename T>
inline T fixed_of(float scaled, bool floor) {
  if (scaled != scaled)
    return 0;
  if (scaled >= 4294967296.0f || scaled <= -4294967296.0f)
    return scaled > 0 ? std::numeric_limits<T>::max() : std::numeric_limits<T>::min();
  const double value = scaled;
  int64_t whole = static_cast<int64_t>(value);  // toward zero
  const double rest = value - static_cast<double>(whole);
  if (floor)
    whole -= rest < 0;
  else
    whole += rest > 0.5 ? 1 : rest < -0.5 ? -1 : 0;
  return twin::saturate<T>(whole, 1);
}

}  // namespace detail

/// Integers as floats: v / 2^shift.
template <typename T = float, Vector V>
TWIN_INLINE auto to_float(const V &v, int shift = 0) {
  using X = detail::operand_t<V>;
  static_assert(detail::is_float_element<T>, "aie::to_float<T>: T must be float or bfloat16");
  static_assert(X::is_integral(), "aie::to_float: the vector must hold integers");
  const X in = detail::value_of(v);
  const float scale = detail::power_of_two(-shift);
  alignas(64) float lane[X::size()];
  for (unsigned i = 0; i < X::size(); ++i)
    lane[i] = static_cast<float>(detail::raw(in)[i]) * scale;
  twin::count_vector(3 * twin::units(X::size(), 32));
  return detail::from_floats<T, X::size()>(lane);
}

/// Floats as integers: v * 2^shift, saturated.
template <typename T = int32, Vector V>
TWIN_INLINE auto to_fixed(const V &v, int shift = 0) {
  using X = detail::operand_t<V>;
  static_assert(detail::is_int_element<T>, "aie::to_fixed<T>: T must be an integer element type");
  static_assert(X::is_floating_point(), "aie::to_fixed: the vector must hold float or bfloat16");
  const float scale = detail::power_of_two(shift);
  alignas(64) float lane[X::size()];
  detail::to_floats(detail::value_of(v), lane);
  vector<T, X::size()> out;
  for (unsigned i = 0; i < X::size(); ++i)
    detail::raw(out)[i] = detail::fixed_of<T>(lane[i] * scale, std::is_same_v<typename X::value_type, bfloat16>);
  twin::count_vector(3 * twin::units(X::size(), 32));
  return out;
}

/// Integers in the next wider type, or in T.
template <typename T = void, Vector V>
TWIN_INLINE auto unpack(const V &v) {
  using X = detail::operand_t<V>;
  using E = typename X::value_type;
  static_assert(X::is_integral(), "aie::unpack: the vector must hold integers");
  using Wide = std::conditional_t<sizeof(E) == 1, std::conditional_t<std::is_signed_v<E>, int16, uint16>,
                                  std::conditional_t<std::is_signed_v<E>, int32, uint32>>;
  using To = std::conditional_t<std::is_void_v<T>, Wide, T>;
  static_assert(sizeof(To) > sizeof(E), "aie::unpack: the result must be wider than the vector's elements");
  const X in = detail::value_of(v);
  vector<To, X::size()> out;
  for (unsigned i = 0; i < X::size(); ++i)
    detail::raw(out)[i] = static_cast<To>(detail::raw(in)[i]);
  twin::count_vector(twin::units(out.bits(), 512));
  return out;
}

/// Integers in the next narrower type, or in T, by the saturation register.
template <typename T = void, Vector V>
TWIN_INLINE auto pack(const V &v) {
  using X = detail::operand_t<V>;
  using E = typename X::value_type;
  static_assert(X::is_integral(), "aie::pack: the vector must hold integers");
  using Narrow = std::conditional_t<sizeof(E) == 4, std::conditional_t<std::is_signed_v<E>, int16, uint16>,
                                    std::conditional_t<std::is_signed_v<E>, int8, uint8>>;
  using To = std::conditional_t<std::is_void_v<T>, Narrow, T>;
  static_assert(sizeof(To) < sizeof(E), "aie::pack: the result must be narrower than the vector's elements");
  const X in = detail::value_of(v);
  const uint32_t mode = twin::core().saturation;
  vector<To, X::size()> out;
  for (unsigned i = 0; i < X::size(); ++i)
    detail::raw(out)[i] = twin::saturate<To>(static_cast<int64_t>(detail::raw(in)[i]), mode);
  twin::count_vector(twin::units(in.bits(), 512));
  return out;
}

/// The bits of a vector as elements of another type.
template <typename T, Vector V>
TWIN_INLINE auto vector_cast(const V &v) {
  return detail::value_of(v).template cast_to<T>();
}

}  // namespace aie
