// SPDX-License-Identifier: Apache-2.0
//
// Tags, traits and concepts: which element types, widths, tags and pairs of operands AIE2P has.

#pragma once

#include <type_traits>

#include "bfloat16.hpp"

// Accumulator tags. An integer tag names the least bits wanted; AIE2P has 32 and 64.
struct acc32 {};
struct acc40 {};
struct acc48 {};
struct acc56 {};
struct acc64 {};
struct accfloat {};
struct accauto {};

/// A block of eight values that share an exponent: one exponent byte and eight signed mantissa bytes.
struct bfp16ebs8 {
  uint8_t exponent;
  int8_t mantissa[8];
};
static_assert(sizeof(bfp16ebs8) == 9);

/// Memory bank annotations are accepted and have no effect here.
enum class aie_dm_resource { none, a, b, c, d, ab, ac, ad, bc, bd, cd, stack };

namespace aie::detail {

template <typename T, typename... Options>
inline constexpr bool is_one_of = (std::is_same_v<T, Options> || ...);

template <typename...>
inline constexpr bool never = false;

template <typename T>
inline constexpr unsigned type_bits_v = sizeof(T) * 8;

template <typename T>
inline constexpr bool is_valid_element = is_one_of<T, int8, uint8, int16, uint16, int32, uint32, bfloat16, float>;

template <typename T>
inline constexpr bool is_float_element = is_one_of<T, bfloat16, float>;

template <typename T>
inline constexpr bool is_int_element = is_valid_element<T> && !is_float_element<T>;

template <typename T>
inline constexpr bool is_accum_tag = is_one_of<T, acc32, acc40, acc48, acc56, acc64, accfloat>;

/// A register is 128 to 1024 bits; 32-bit elements also make the 2048-bit vector that a full accumulator turns into.
template <typename T>
constexpr bool is_vector_width(unsigned elems) {
  const unsigned bits = type_bits_v<T> * elems;
  return bits == 128 || bits == 256 || bits == 512 || bits == 1024 || (bits == 2048 && sizeof(T) == 4);
}

// What an accumulator's tag means: the type of a lane, and its native bits.
template <typename Tag>
struct accum_lane {
  using type = int64_t;
};
template <>
struct accum_lane<acc32> {
  using type = int32_t;
};
template <>
struct accum_lane<accfloat> {
  using type = float;
};
template <typename Tag>
using accum_lane_t = typename accum_lane<Tag>::type;

template <typename Tag>
inline constexpr bool is_float_tag = std::is_same_v<Tag, accfloat>;

/// The registers hold 4 to 64 lanes of 32 bits, or 4 to 32 of 64 bits.
template <typename Tag>
constexpr bool is_accum_width(unsigned elems) {
  const unsigned most = sizeof(accum_lane_t<Tag>) == 4 ? 64 : 32;
  const unsigned least = std::is_same_v<Tag, acc32> ? 8 : 4;
  return elems >= least && elems <= most && (elems & (elems - 1)) == 0;
}

/// Pairs of element types that the multiplier takes.
template <typename A, typename B>
constexpr bool is_mul_pair() {
  if constexpr (is_float_element<A> || is_float_element<B>)
    return std::is_same_v<A, B>;
  else if constexpr (sizeof(B) == 1)
    return sizeof(A) <= 2;
  else if constexpr (sizeof(B) == 2)
    return true;
  else
    return sizeof(A) >= 2;
}

/// The accumulator that a product takes when none is asked for.
template <typename A, typename B>
struct default_tag {
  static constexpr unsigned widest = sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B);
  static constexpr unsigned narrowest = sizeof(A) > sizeof(B) ? sizeof(B) : sizeof(A);
  using type = std::conditional_t<
      is_float_element<A>, accfloat,
      std::conditional_t<widest <= 2, acc32, std::conditional_t<narrowest == 2, acc48, acc64>>>;
};

template <typename Tag, typename A, typename B>
using tag_or_default = std::conditional_t<std::is_same_v<Tag, accauto>, typename default_tag<A, B>::type, Tag>;

/// Whether a product of A and B may go to an accumulator of this tag.
template <typename Tag, typename A, typename B>
constexpr bool is_product_tag() {
  if constexpr (is_float_element<A> || is_float_tag<Tag>)
    return is_float_element<A> && is_float_tag<Tag>;
  else
    return sizeof(accum_lane_t<Tag>) >= sizeof(accum_lane_t<typename default_tag<A, B>::type>);
}

}  // namespace aie::detail

namespace aie {

template <typename T>
concept ElemBaseType = detail::is_valid_element<T>;

template <typename T>
concept DecoratedElemBaseType = detail::is_valid_element<std::remove_cv_t<T>>;

template <typename T>
concept AccumElemBaseType = detail::is_accum_tag<T> || std::is_same_v<T, accauto>;

template <typename T>
inline constexpr unsigned native_vector_length_v = 512 / detail::type_bits_v<T>;

template <typename T, unsigned Elems = native_vector_length_v<T>>
class vector;
template <typename Tag, unsigned Elems>
class accum;
template <unsigned Elems>
class mask;
template <typename T, unsigned Elems>
class vector_elem_ref;
template <typename T, unsigned Elems>
class vector_ref;
template <typename T, unsigned Elems>
class block_vector;

namespace detail {

template <typename T>
struct operand_traits {
  static constexpr int kind = is_valid_element<T> ? 1 : 0;
  using value = T;
};
template <typename T, unsigned Elems>
struct operand_traits<vector_elem_ref<T, Elems>> {
  static constexpr int kind = 1;
  using value = T;
};
template <typename T, unsigned Elems>
struct operand_traits<vector<T, Elems>> {
  static constexpr int kind = 2;
  using value = vector<T, Elems>;
};
template <typename T, unsigned Elems>
struct operand_traits<vector_ref<T, Elems>> {
  static constexpr int kind = 2;
  using value = vector<std::remove_const_t<T>, Elems>;
};
template <typename Tag, unsigned Elems>
struct operand_traits<accum<Tag, Elems>> {
  static constexpr int kind = 3;
  using value = accum<Tag, Elems>;
};
template <unsigned Elems>
struct operand_traits<mask<Elems>> {
  static constexpr int kind = 4;
  using value = mask<Elems>;
};

template <typename T>
inline constexpr int operand_kind = operand_traits<std::remove_cvref_t<T>>::kind;

/// The plain value that an operand stands for: references to memory and lanes are read.
template <typename T>
using operand_t = typename operand_traits<std::remove_cvref_t<T>>::value;

}  // namespace detail

template <typename T>
concept Elem = detail::operand_kind<T> == 1;
template <typename T>
concept Vector = detail::operand_kind<T> == 2;
template <typename T>
concept Accum = detail::operand_kind<T> == 3;
template <typename T>
concept Mask = detail::operand_kind<T> == 4;

/// What the functions of this API take as operands.
template <typename T>
concept Operand = detail::operand_kind<T> >= 1 && detail::operand_kind<T> <= 3;
template <typename T>
concept Register = Vector<T> || Accum<T>;

}  // namespace aie
