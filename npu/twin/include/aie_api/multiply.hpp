// SPDX-License-Identifier: Apache-2.0
//
// Elementwise mul, mac, msc, negmul, their squares, and accumulate.
//
// A product of two bfloat16 values is exact in fp32; mac adds it to the accumulator with one fp32 rounding to nearest
// even. float x float is one fp32 multiplication here; the device builds it from bfloat16 products.

#pragma once

#include "arithmetic.hpp"

namespace aie {

namespace detail {

enum class Product { mul, negmul, mac, msc };

/// out = (acc) +- a*b over lanes of fp32 or integers.
template <Product P, typename L, unsigned Elems>
TWIN_INLINE void products(const L *acc, const L *a, const L *b, L *out) {
  constexpr unsigned W = sizeof(L) == 8 ? (Elems < 4 ? Elems : 4) : twin::lanes<Elems>;
  using V = twin::simd<L, W>;
#pragma GCC unroll 16
  for (unsigned i = 0; i < Elems; i += W) {
    const V product = twin::load<V>(a + i) * twin::load<V>(b + i);
    V result;
    if constexpr (P == Product::mul)
      result = product;
    else if constexpr (P == Product::negmul)
      result = -product;
    else if constexpr (P == Product::mac)
      result = twin::load<V>(acc + i) + product;
    else
      result = twin::load<V>(acc + i) - product;
    twin::store(out + i, result);
  }
}

/// Lanes of a vector in the accumulator's arithmetic (unsigned for integers: wrapping is defined).
template <typename L, typename T, unsigned Elems>
TWIN_INLINE void to_lanes(const vector<T, Elems> &v, L *out) {
  if constexpr (is_float_element<T>) {
    to_floats(v, out);
  } else {
    const T *from = raw(v);
    for (unsigned i = 0; i < Elems; ++i)
      out[i] = static_cast<L>(static_cast<int64_t>(from[i]));
  }
}

/// Native multiply instructions: 64 lanes of bfloat16 when there are more than 32, 32 otherwise; others by lane width.
template <typename A, typename B, unsigned Elems>
constexpr unsigned multiply_ops() {
  if constexpr (std::is_same_v<A, bfloat16>)
    return Elems <= 32 ? 1 : Elems / 64;
  else if constexpr (std::is_same_v<A, float>)
    return 9 * twin::units(Elems, 32);
  else
    return twin::units(Elems, sizeof(A) == 4 || sizeof(B) == 4 ? 16 : 32);
}

template <Product P, typename Tag, typename A, typename B, unsigned Elems>
TWIN_INLINE accum<Tag, Elems> multiply(const accum<Tag, Elems> *acc, const vector<A, Elems> &a,
                                       const vector<B, Elems> &b) {
  using L = accum_lane_t<Tag>;
  using U = typename std::conditional_t<is_float_tag<Tag>, std::type_identity<L>, std::make_unsigned<L>>::type;
  alignas(64) U x[Elems], y[Elems];
  accum<Tag, Elems> out;
  to_lanes(a, x);
  to_lanes(b, y);
  const U *from = acc == nullptr ? nullptr : reinterpret_cast<const U *>(raw(*acc));
  products<P, U, Elems>(from, x, y, reinterpret_cast<U *>(raw(out)));
  twin::count_macs(multiply_ops<A, B, Elems>(), Elems);
  return out;
}

/// The element type of an operand: of a vector, or of the scalar itself.
template <typename X, bool IsVector = Vector<X>>
struct element {
  using type = operand_t<X>;
};
template <typename X>
struct element<X, true> {
  using type = typename operand_t<X>::value_type;
};
template <typename X>
using element_t = typename element<X>::type;

template <typename A, typename B>
constexpr unsigned pair_size() {
  if constexpr (Vector<A>)
    return operand_t<A>::size();
  else
    return operand_t<B>::size();
}

template <typename A, typename B>
constexpr bool is_legal_pair() {
  if constexpr (Accum<A> || Accum<B>) {
    return false;
  } else {
    if constexpr (Vector<A> && Vector<B>)
      if (operand_t<A>::size() != operand_t<B>::size())
        return false;
    return is_mul_pair<element_t<A>, element_t<B>>();
  }
}

template <typename X, unsigned Elems>
TWIN_INLINE vector<element_t<X>, Elems> multiplicand(const X &x) {
  return as_vector<vector<element_t<X>, Elems>>(x);
}

template <Product P, typename Tag, typename A, typename B>
TWIN_INLINE auto product(const A &a, const B &b) {
  constexpr unsigned N = pair_size<A, B>();
  using Out = tag_or_default<Tag, element_t<A>, element_t<B>>;
  return multiply<P, Out>(static_cast<const accum<Out, N> *>(nullptr), multiplicand<A, N>(a), multiplicand<B, N>(b));
}

template <Product P, typename Acc, typename A, typename B>
TWIN_INLINE Acc accumulate_product(const Acc &acc, const A &a, const B &b) {
  constexpr unsigned N = Acc::size();
  return multiply<P, typename Acc::value_type>(&acc, multiplicand<A, N>(a), multiplicand<B, N>(b));
}

template <typename Tag, typename A, typename B>
constexpr bool is_legal_mul() {
  if constexpr (is_legal_pair<A, B>())
    return is_product_tag<tag_or_default<Tag, element_t<A>, element_t<B>>, element_t<A>, element_t<B>>();
  else
    return false;
}

template <typename Acc, typename A, typename B>
constexpr bool is_legal_mac() {
  if constexpr (Accum<Acc> && is_legal_pair<A, B>())
    return Acc::size() == pair_size<A, B>() && is_product_tag<typename Acc::value_type, element_t<A>, element_t<B>>();
  else
    return false;
}

}  // namespace detail

#define TWIN_PRODUCT_RULE                                                                                   \
  ": operands must be vectors of one size (or one a scalar) of a pair AIE2P multiplies (bfloat16 with "     \
  "bfloat16, float with float, integers of at most a factor 2 in width), into an accumulator of that kind " \
  "and enough bits"

#define TWIN_PRODUCT(name, kind)                                                            \
  template <AccumElemBaseType Tag = accauto, Operand A, Operand B>                          \
    requires(Register<A> || Register<B>)                                                    \
  TWIN_INLINE auto name(const A &a, const B &b) {                                           \
    static_assert(detail::is_legal_mul<Tag, A, B>(), "aie::" #name TWIN_PRODUCT_RULE);      \
    if constexpr (detail::is_legal_mul<Tag, A, B>())                                        \
      return detail::product<detail::Product::kind, Tag>(a, b);                             \
  }

#define TWIN_ACCUMULATION(name, kind)                                                       \
  template <Operand Acc, Operand A, Operand B>                                              \
    requires(Register<Acc>)                                                                 \
  TWIN_INLINE auto name(const Acc &acc, const A &a, const B &b) {                           \
    static_assert(detail::is_legal_mac<Acc, A, B>(), "aie::" #name TWIN_PRODUCT_RULE);      \
    if constexpr (detail::is_legal_mac<Acc, A, B>())                                        \
      return detail::accumulate_product<detail::Product::kind>(acc, a, b);                  \
  }

TWIN_PRODUCT(mul, mul)
TWIN_PRODUCT(negmul, negmul)
TWIN_ACCUMULATION(mac, mac)
TWIN_ACCUMULATION(msc, msc)

template <AccumElemBaseType Tag = accauto, Vector V>
TWIN_INLINE auto mul_square(const V &v) {
  static_assert(detail::is_legal_mul<Tag, V, V>(), "aie::mul_square" TWIN_PRODUCT_RULE);
  if constexpr (detail::is_legal_mul<Tag, V, V>())
    return detail::product<detail::Product::mul, Tag>(v, v);
}
template <Accum Acc, Vector V>
TWIN_INLINE auto mac_square(const Acc &acc, const V &v) {
  static_assert(detail::is_legal_mac<Acc, V, V>(), "aie::mac_square" TWIN_PRODUCT_RULE);
  if constexpr (detail::is_legal_mac<Acc, V, V>())
    return detail::accumulate_product<detail::Product::mac>(acc, v, v);
}
template <Accum Acc, Vector V>
TWIN_INLINE auto msc_square(const Acc &acc, const V &v) {
  static_assert(detail::is_legal_mac<Acc, V, V>(), "aie::msc_square" TWIN_PRODUCT_RULE);
  if constexpr (detail::is_legal_mac<Acc, V, V>())
    return detail::accumulate_product<detail::Product::msc>(acc, v, v);
}

#undef TWIN_PRODUCT
#undef TWIN_ACCUMULATION

/// acc + coeff[start] * data0 + coeff[start + 1] * data1 + ..., in that order.
template <unsigned Lanes, Accum Acc, Vector C, Vector D, Vector... Ds>
TWIN_INLINE auto accumulate(const Acc &acc, const C &coeff, unsigned start, const D &data, const Ds &...rest) {
  static_assert(Acc::size() == Lanes, "aie::accumulate<Lanes>: the accumulator must have Lanes lanes");
  static_assert((std::is_same_v<detail::operand_t<D>, detail::operand_t<Ds>> && ...),
                "aie::accumulate: all data vectors must have one type and size");
  const auto next = mac(acc, detail::value_of(coeff).get(start), data);
  if constexpr (sizeof...(rest) > 0)
    return accumulate<Lanes>(next, coeff, start + 1, rest...);
  else
    return next;
}

template <unsigned Lanes, AccumElemBaseType Tag = accauto, Vector C, Vector D, Vector... Ds>
TWIN_INLINE auto accumulate(const C &coeff, unsigned start, const D &data, const Ds &...rest) {
  const auto first = mul<Tag>(detail::value_of(coeff).get(start), data);
  if constexpr (sizeof...(rest) > 0)
    return accumulate<Lanes>(first, coeff, start + 1, rest...);
  else
    return first;
}

}  // namespace aie
