// SPDX-License-Identifier: Apache-2.0
//
// aie::mmul: C (M x N) += A (M x K) * B (K x N), all row-major, in the shapes of AIE2P.
//
// bfloat16, native: products exact, added to the fp32 accumulator one k after the other, each addition rounded to
// nearest even. bfloat16 with AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16 (4x8x8 and 8x8x8): both operands quantised to
// bfp16ebs8 in blocks of eight along K; the eight products of a C element are summed exactly and the sum is added to
// the fp32 accumulator with one rounding. Integers: exact, modulo the accumulator's width.

#pragma once

#include "bfp16.hpp"
#include "multiply.hpp"

namespace aie {

namespace detail {

enum class mmul_kind { none, bf16_native, bf16_blocks, float32, integer, blocks };

struct mmul_mode {
  mmul_kind kind = mmul_kind::none;
  unsigned accum_bits = 0;  // of a C element
  unsigned macs = 0;        // multiply instructions a call
  unsigned others = 0;      // further vector instructions a call: shuffles, conversions
};

constexpr bool is_shape(unsigned m, unsigned k, unsigned n, unsigned m2, unsigned k2, unsigned n2) {
  return m == m2 && k == k2 && n == n2;
}

template <typename A, typename B>
constexpr mmul_mode integer_mode(unsigned m, unsigned k, unsigned n) {
  const auto is = [=](unsigned m2, unsigned k2, unsigned n2) { return is_shape(m, k, n, m2, k2, n2); };
  constexpr unsigned a = sizeof(A), b = sizeof(B);
  constexpr auto kind = mmul_kind::integer;
  if (a == 1 && b == 1 && (is(2, 8, 8) || is(4, 8, 8) || is(8, 8, 8)))
    return {kind, 32, 1, 0};
  if (a == 2 && b == 1 && (is(4, 4, 8) || is(8, 4, 8)))
    return {kind, 32, 1, 0};
  if (a == 2 && b == 1 && (is(4, 8, 8) || is(2, 8, 8)))
    return {kind, 64, 1, 1};
  if (a == 1 && b == 2 && is(8, 2, 8))
    return {kind, 32, 1, 1};
  if (a == 1 && b == 2 && is(4, 4, 8))
    return {kind, 64, 1, 1};
  if (a == 2 && b == 2 && (is(4, 2, 8) || is(8, 2, 8) || is(8, 1, 8)))
    return {kind, 32, 1, k == 1 ? 3u : 0u};
  if (a == 2 && b == 2 && (is(2, 4, 8) || is(4, 4, 8)))
    return {kind, 64, 1, 0};
  if (a == 4 && b == 2 && is(4, 2, 8))
    return {kind, 64, 1, 0};
  if (a == 4 && b == 2 && (is(2, 4, 8) || is(4, 4, 8) || is(4, 1, 8)))
    return {kind, 64, 2, 2};
  if (a == 2 && b == 4 && is(4, 4, 8))
    return {kind, 64, 2, 2};
  if (a == 4 && b == 4 && (is(4, 2, 8) || is(4, 4, 4) || is(4, 4, 8) || is(8, 2, 8) || is(4, 1, 8)))
    return {kind, 64, 4, 4};
  return {};
}

template <typename A, typename B>
constexpr mmul_mode mode_of(unsigned m, unsigned k, unsigned n) {
  const auto is = [=](unsigned m2, unsigned k2, unsigned n2) { return is_shape(m, k, n, m2, k2, n2); };
  if constexpr (std::is_same_v<A, bfloat16> && std::is_same_v<B, bfloat16>) {
#ifdef AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16
    if (is(8, 8, 8) || is(4, 8, 8))
      return {mmul_kind::bf16_blocks, 32, 1, 5};
#else
    if (is(8, 8, 8))
      return {mmul_kind::bf16_native, 32, 16, 50};
    if (is(4, 8, 8))
      return {mmul_kind::bf16_native, 32, 8, 25};
#endif
    if (is(8, 8, 4) || is(4, 8, 4))
      return {mmul_kind::bf16_native, 32, 8, 26};
    if (is(8, 1, 8))
      return {mmul_kind::bf16_native, 32, 1, 4};
    return {};
  } else if constexpr (std::is_same_v<A, float> && std::is_same_v<B, float>) {
    if (is(4, 8, 4) || is(4, 1, 4) || is(4, 1, 8))
      return {mmul_kind::float32, 32, 9 * k, 2 * k};
    return {};
  } else if constexpr (std::is_same_v<B, bfp16ebs8> && is_one_of<A, bfloat16, bfp16ebs8>) {
    if (is(8, 8, 8))
      return {mmul_kind::blocks, 32, 1, std::is_same_v<A, bfloat16> ? 2u : 0u};
    return {};
  } else if constexpr (is_int_element<A> && is_int_element<B>) {
    return integer_mode<A, B>(m, k, n);
  } else {
    return {};
  }
}

/// Whether the tag asked for fits the mode's accumulator.
template <typename Tag>
constexpr bool is_mmul_tag(mmul_mode mode) {
  if (std::is_same_v<Tag, accauto>)
    return true;
  if (mode.kind != mmul_kind::integer)
    return std::is_same_v<Tag, accfloat>;
  return is_accum_tag<Tag> && !is_float_tag<Tag> && (std::is_same_v<Tag, acc32> || mode.accum_bits == 64);
}

template <typename T, unsigned Elems>
struct mmul_operand {
  using type = vector<T, Elems>;
};
template <unsigned Elems>
struct mmul_operand<bfp16ebs8, Elems> {
  using type = block_vector<bfp16ebs8, Elems>;
};

/// c += a * b, row by row; `OneSum`: the products of a C element are summed before they meet c.
template <unsigned M, unsigned K, unsigned N, bool OneSum, typename L>
TWIN_INLINE void matrix_mac(const L *a, const L *b, L *c) {
  constexpr unsigned W = sizeof(L) == 8 ? 4 : twin::lanes<N>;
  using V = twin::simd<L, W>;
#pragma GCC unroll 2
  for (unsigned col = 0; col < N; col += W) {
    V rows[K];
#pragma GCC unroll 16
    for (unsigned k = 0; k < K; ++k)
      rows[k] = twin::load<V>(b + k * N + col);
#pragma GCC unroll 8
    for (unsigned m = 0; m < M; ++m) {
      const V before = twin::load<V>(c + m * N + col);
      V sum = OneSum ? rows[0] * a[m * K] : before + rows[0] * a[m * K];
#pragma GCC unroll 16
      for (unsigned k = 1; k < K; ++k)
        sum = sum + rows[k] * a[m * K + k];
      twin::store(c + m * N + col, OneSum ? before + sum : sum);
    }
  }
}

}  // namespace detail

template <unsigned M, unsigned K, unsigned N, typename TypeA, typename TypeB = TypeA, AccumElemBaseType Tag = accauto>
class mmul {
  static constexpr detail::mmul_mode mode = detail::mode_of<TypeA, TypeB>(M, K, N);
  static_assert(mode.kind != detail::mmul_kind::none,
                "aie::mmul<M, K, N, TypeA, TypeB, Tag>: AIE2P has no such shape for these types");
  static_assert(detail::is_mmul_tag<Tag>(mode),
                "aie::mmul<M, K, N, TypeA, TypeB, Tag>: the accumulator tag does not fit these types and this shape");

 public:
  static constexpr unsigned size_M = M;
  static constexpr unsigned size_K = K;
  static constexpr unsigned size_N = N;
  static constexpr unsigned size_A = M * K;
  static constexpr unsigned size_B = K * N;
  static constexpr unsigned size_C = M * N;

  using vector_A_type = typename detail::mmul_operand<TypeA, size_A>::type;
  using vector_B_type = typename detail::mmul_operand<TypeB, size_B>::type;
  using accum_type = accum<
      std::conditional_t<mode.kind == detail::mmul_kind::integer,
                         std::conditional_t<mode.accum_bits == 64, acc64, acc32>, accfloat>,
      size_C>;

  static constexpr unsigned size() { return size_C; }

  /// C starts from zero.
  TWIN_INLINE mmul() { __builtin_memset(detail::raw(c_), 0, sizeof c_); }
  TWIN_INLINE mmul(const accum_type &acc) : c_(acc) {}
  template <typename T>
  TWIN_INLINE explicit mmul(const vector<T, size_C> &v, int shift = 0) : c_(v, shift) {}

  TWIN_INLINE mmul &operator=(const accum_type &acc) {
    c_ = acc;
    return *this;
  }

  template <typename A, typename B>
  TWIN_INLINE void mac(const A &a, const B &b) {
    static_assert(std::is_same_v<detail::operand_t<A>, vector_A_type> || std::is_same_v<A, vector_A_type>,
                  "aie::mmul::mac: A must be a vector of TypeA with M*K elements");
    static_assert(std::is_same_v<detail::operand_t<B>, vector_B_type> || std::is_same_v<B, vector_B_type>,
                  "aie::mmul::mac: B must be a vector of TypeB with K*N elements");
    accumulate(static_cast<const vector_A_type &>(a), static_cast<const vector_B_type &>(b));
  }

  template <typename A, typename B>
  TWIN_INLINE void mul(const A &a, const B &b) {
    __builtin_memset(detail::raw(c_), 0, sizeof c_);
    mac(a, b);
  }

  template <typename T>
  TWIN_INLINE auto to_vector(int shift = 0) const {
    return c_.template to_vector<T>(shift);
  }
  TWIN_INLINE accum_type to_accum() const { return c_; }
  TWIN_INLINE operator accum_type() const { return c_; }

 private:
  TWIN_INLINE void accumulate(const vector_A_type &a, const vector_B_type &b) {
    using Kind = detail::mmul_kind;
    if constexpr (mode.kind == Kind::integer) {
      using L = std::make_unsigned_t<typename accum_type::lane_type>;
      alignas(64) L x[size_A], y[size_B];
      detail::to_lanes(a, x);
      detail::to_lanes(b, y);
      detail::matrix_mac<M, K, N, false>(x, y, reinterpret_cast<L *>(detail::raw(c_)));
    } else {
      constexpr bool one_sum = mode.kind == Kind::bf16_blocks || mode.kind == Kind::blocks;
      alignas(64) float x[size_A], y[size_B];
      if constexpr (mode.kind == Kind::bf16_blocks) {
        twin::quantise_rows<M>(detail::raw(a), x);
        twin::quantise_columns(detail::raw(b), y);
      } else if constexpr (mode.kind == Kind::blocks) {
        if constexpr (std::is_same_v<TypeA, bfloat16>)
          twin::quantise_rows<M>(detail::raw(a), x);
        else
          detail::block_floats(a, x);
        alignas(64) float columns[size_B];
        detail::block_floats(b, columns);  // B lies transposed: a block is a column
        for (unsigned k = 0; k < K; ++k)
          for (unsigned n = 0; n < N; ++n)
            y[k * N + n] = columns[n * K + k];
      } else {
        detail::to_floats(a, x);
        detail::to_floats(b, y);
      }
      detail::matrix_mac<M, K, N, one_sum>(x, y, detail::raw(c_));
    }
    CoreState &state = twin::core();
    state.matrix_macs += M * K * N;
    state.mac_ops += mode.macs;
    state.vector_ops += mode.macs + mode.others;
  }

  accum_type c_;
};

}  // namespace aie
