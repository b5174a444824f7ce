// SPDX-License-Identifier: Apache-2.0
//
// Moving lanes: concat, filter, interleave, transpose, reverse, shuffles up and down.

#pragma once

#include <utility>

#include "accum.hpp"

namespace aie {

namespace detail {

inline void check_chunk(const char *call, unsigned chunk, unsigned most) {
  if (chunk == 0 || chunk > most || (chunk & (chunk - 1)) != 0)
    twin::trap("aie::%s: chunk size %u; expected a power of two from 1 to %u", call, chunk, most);
}

template <typename V>
TWIN_INLINE void count_moves() {
  twin::count_vector(twin::units(V::bits(), 512));
}

/// Every second chunk of v, from the first (`odd` 0) or the second (`odd` 1).
template <typename T, unsigned Elems>
TWIN_INLINE vector<T, Elems / 2> filter(const vector<T, Elems> &v, unsigned chunk, unsigned odd) {
  vector<T, Elems / 2> out;
  const T *from = raw(v);
  T *to = raw(out);
  if (chunk == 1) {
    for (unsigned i = 0; i < Elems / 2; ++i)
      to[i] = from[2 * i + odd];
  } else {
    for (unsigned i = 0; i < Elems / 2; ++i)
      to[i] = from[(i / chunk) * 2 * chunk + odd * chunk + i % chunk];
  }
  count_moves<vector<T, Elems>>();
  return out;
}

}  // namespace detail

template <Vector V, Vector... Vs>
TWIN_INLINE auto concat(const V &v, const Vs &...rest) {
  using X = detail::operand_t<V>;
  static_assert((std::is_same_v<X, detail::operand_t<Vs>> && ...), "aie::concat: all vectors must have one type");
  vector<typename X::value_type, X::size() * (1 + sizeof...(Vs))> out;
  unsigned part = 0;
  out.insert(part++, detail::value_of(v));
  (out.insert(part++, detail::value_of(rest)), ...);
  return out;
}

template <Accum A, Accum... As>
TWIN_INLINE auto concat(const A &acc, const As &...rest) {
  static_assert((std::is_same_v<A, As> && ...), "aie::concat: all accumulators must have one type");
  accum<typename A::value_type, A::size() * (1 + sizeof...(As))> out;
  unsigned part = 0;
  out.insert(part++, acc);
  (out.insert(part++, rest), ...);
  return out;
}

/// Chunks 0, 2, 4, ... of v.
template <Vector V>
TWIN_INLINE auto filter_even(const V &v, unsigned chunk = 1) {
  detail::check_chunk("filter_even", chunk, detail::operand_t<V>::size() / 2);
  return detail::filter(detail::value_of(v), chunk, 0);
}

/// Chunks 1, 3, 5, ... of v.
template <Vector V>
TWIN_INLINE auto filter_odd(const V &v, unsigned chunk = 1) {
  detail::check_chunk("filter_odd", chunk, detail::operand_t<V>::size() / 2);
  return detail::filter(detail::value_of(v), chunk, 1);
}

/// Chunks of v and w in turn; the pair is the low and the high half of the result.
template <Vector V, Vector W>
TWIN_INLINE auto interleave_zip(const V &v, const W &w, unsigned chunk) {
  using X = detail::operand_t<V>;
  static_assert(std::is_same_v<X, detail::operand_t<W>>, "aie::interleave_zip: both vectors must have one type");
  constexpr unsigned N = X::size();
  detail::check_chunk("interleave_zip", chunk, N);
  const X a = detail::value_of(v), b = detail::value_of(w);
  std::pair<X, X> out;
  typename X::value_type both[2 * N];
  if (chunk == 1) {
    for (unsigned i = 0; i < N; ++i) {
      both[2 * i] = detail::raw(a)[i];
      both[2 * i + 1] = detail::raw(b)[i];
    }
  } else {
    for (unsigned i = 0; i < N; ++i) {
      both[(i / chunk) * 2 * chunk + i % chunk] = detail::raw(a)[i];
      both[(i / chunk) * 2 * chunk + chunk + i % chunk] = detail::raw(b)[i];
    }
  }
  __builtin_memcpy(detail::raw(out.first), both, sizeof(X));
  __builtin_memcpy(detail::raw(out.second), both + N, sizeof(X));
  twin::count_vector(2 * twin::units(X::bits(), 512));
  return out;
}

/// The inverse of interleave_zip: the even chunks of (v, w), and the odd ones.
template <Vector V, Vector W>
TWIN_INLINE auto interleave_unzip(const V &v, const W &w, unsigned chunk) {
  using X = detail::operand_t<V>;
  static_assert(std::is_same_v<X, detail::operand_t<W>>, "aie::interleave_unzip: both vectors must have one type");
  constexpr unsigned N = X::size();
  detail::check_chunk("interleave_unzip", chunk, N);
  typename X::value_type both[2 * N];
  const X a = detail::value_of(v), b = detail::value_of(w);
  __builtin_memcpy(both, detail::raw(a), sizeof(X));
  __builtin_memcpy(both + N, detail::raw(b), sizeof(X));
  std::pair<X, X> out;
  for (unsigned i = 0; i < N; ++i) {
    detail::raw(out.first)[i] = both[(i / chunk) * 2 * chunk + i % chunk];
    detail::raw(out.second)[i] = both[(i / chunk) * 2 * chunk + chunk + i % chunk];
  }
  twin::count_vector(2 * twin::units(X::bits(), 512));
  return out;
}

/// v seen as a row-major matrix of `rows` x `columns`, transposed.
template <Vector V>
TWIN_INLINE auto transpose(const V &v, unsigned rows, unsigned columns) {
  using X = detail::operand_t<V>;
  if (rows * columns != X::size())
    twin::trap("aie::transpose: %u x %u does not make the vector's %u elements", rows, columns, X::size());
  const X in = detail::value_of(v);
  X out;
  for (unsigned c = 0; c < columns; ++c)
    for (unsigned r = 0; r < rows; ++r)
      detail::raw(out)[c * rows + r] = detail::raw(in)[r * columns + c];
  twin::count_vector(2 * twin::units(X::bits(), 512));
  return out;
}

template <Vector V>
TWIN_INLINE auto reverse(const V &v) {
  using X = detail::operand_t<V>;
  const X in = detail::value_of(v);
  X out;
  for (unsigned i = 0; i < X::size(); ++i)
    detail::raw(out)[i] = detail::raw(in)[X::size() - 1 - i];
  detail::count_moves<X>();
  return out;
}

namespace detail {

/// Lane i of the result is lane i - n of `v`, or of `fill` (its upper lanes) where that is negative.
template <typename X>
TWIN_INLINE X shift_lanes_up(const char *call, const X &v, const X &fill, unsigned n) {
  if (n > X::size())
    twin::trap("aie::%s: by %u lanes; expected at most %u", call, n, X::size());
  X out;
  for (unsigned i = 0; i < X::size(); ++i)
    raw(out)[i] = i < n ? raw(fill)[X::size() - n + i] : raw(v)[i - n];
  count_moves<X>();
  return out;
}

template <typename X>
TWIN_INLINE X shift_lanes_down(const char *call, const X &v, const X &fill, unsigned n) {
  if (n > X::size())
    twin::trap("aie::%s: by %u lanes; expected at most %u", call, n, X::size());
  X out;
  for (unsigned i = 0; i < X::size(); ++i)
    raw(out)[i] = i + n < X::size() ? raw(v)[i + n] : raw(fill)[i + n - X::size()];
  count_moves<X>();
  return out;
}

}  // namespace detail

/// Lanes move up by n; the lowest n are undefined on the device and poison here.
template <Vector V>
TWIN_INLINE auto shuffle_up(const V &v, unsigned n) {
  return detail::shift_lanes_up("shuffle_up", detail::operand_t<V>(detail::value_of(v)), detail::operand_t<V>(), n);
}
template <Vector V>
TWIN_INLINE auto shuffle_up_rotate(const V &v, unsigned n) {
  const auto in = detail::value_of(v);
  return detail::shift_lanes_up("shuffle_up_rotate", in, in, n);
}
template <Vector V>
TWIN_INLINE auto shuffle_up_fill(const V &v, const V &fill, unsigned n) {
  return detail::shift_lanes_up("shuffle_up_fill", detail::value_of(v), detail::value_of(fill), n);
}
template <Vector V>
TWIN_INLINE auto shuffle_down(const V &v, unsigned n) {
  return detail::shift_lanes_down("shuffle_down", detail::operand_t<V>(detail::value_of(v)), detail::operand_t<V>(), n);
}
template <Vector V>
TWIN_INLINE auto shuffle_down_rotate(const V &v, unsigned n) {
  const auto in = detail::value_of(v);
  return detail::shift_lanes_down("shuffle_down_rotate", in, in, n);
}
template <Vector V>
TWIN_INLINE auto shuffle_down_fill(const V &v, const V &fill, unsigned n) {
  return detail::shift_lanes_down("shuffle_down_fill", detail::value_of(v), detail::value_of(fill), n);
}

}  // namespace aie
