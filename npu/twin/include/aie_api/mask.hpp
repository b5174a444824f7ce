// SPDX-License-Identifier: Apache-2.0
//
// aie::mask: one bit a lane, made by comparisons and used by select.

#pragma once

#include "vector.hpp"

namespace aie {

template <unsigned Elems>
class mask {
  static_assert(Elems >= 4 && Elems <= 128 && (Elems & (Elems - 1)) == 0,
                "aie::mask<N>: N must be a power of two from 4 to 128");

 public:
  static constexpr unsigned size() { return Elems; }

  TWIN_INLINE explicit mask(bool set = false) { __builtin_memset(lanes_, set ? 0xff : 0, sizeof lanes_); }

  template <typename... Words>
    requires(sizeof...(Words) + 1 == (Elems + 31) / 32)
  static mask from_uint32(uint32_t word, Words... words) {
    const uint32_t all[] = {word, static_cast<uint32_t>(words)...};
    mask out;
    for (unsigned i = 0; i < Elems; ++i)
      out.lanes_[i] = (all[i / 32] >> (i % 32)) & 1 ? 0xff : 0;
    return out;
  }

  template <typename... Words>
    requires(Elems >= 64 && sizeof...(Words) + 1 == Elems / 64)
  static mask from_uint64(uint64_t word, Words... words) {
    const uint64_t all[] = {word, static_cast<uint64_t>(words)...};
    mask out;
    for (unsigned i = 0; i < Elems; ++i)
      out.lanes_[i] = (all[i / 64] >> (i % 64)) & 1 ? 0xff : 0;
    return out;
  }

  uint32_t to_uint32(unsigned word) const {
    check("to_uint32", word, (Elems + 31) / 32);
    uint32_t out = 0;
    for (unsigned i = 0; i < (Elems < 32 ? Elems : 32); ++i)
      out |= static_cast<uint32_t>(lanes_[word * 32 + i] & 1) << i;
    return out;
  }
  uint32_t to_uint32() const
    requires(Elems <= 32)
  {
    return to_uint32(0);
  }
  uint64_t to_uint64(unsigned word) const
    requires(Elems >= 64)
  {
    return to_uint32(2 * word) | (static_cast<uint64_t>(to_uint32(2 * word + 1)) << 32);
  }
  uint64_t to_uint64() const
    requires(Elems == 64)
  {
    return to_uint64(0);
  }

  bool test(unsigned i) const {
    check("test", i, Elems);
    return lanes_[i] != 0;
  }
  void set(unsigned i) {
    check("set", i, Elems);
    lanes_[i] = 0xff;
  }
  void clear(unsigned i) {
    check("clear", i, Elems);
    lanes_[i] = 0;
  }

  unsigned count() const {
    unsigned out = 0;
    for (unsigned i = 0; i < Elems; ++i)
      out += lanes_[i] & 1;
    return out;
  }
  bool empty() const { return count() == 0; }
  bool full() const { return count() == Elems; }

  bool operator==(const mask &other) const { return __builtin_memcmp(lanes_, other.lanes_, Elems) == 0; }
  mask operator~() const { return *this ^ mask(true); }
  mask operator&(const mask &other) const {
    mask out = *this;
    return out &= other;
  }
  mask operator|(const mask &other) const {
    mask out = *this;
    return out |= other;
  }
  mask operator^(const mask &other) const {
    mask out = *this;
    return out ^= other;
  }
  mask &operator&=(const mask &other) {
    for (unsigned i = 0; i < Elems; ++i)
      lanes_[i] &= other.lanes_[i];
    return *this;
  }
  mask &operator|=(const mask &other) {
    for (unsigned i = 0; i < Elems; ++i)
      lanes_[i] |= other.lanes_[i];
    return *this;
  }
  mask &operator^=(const mask &other) {
    for (unsigned i = 0; i < Elems; ++i)
      lanes_[i] ^= other.lanes_[i];
    return *this;
  }
  /// Lane i goes to lane i + n; zeros come in.
  mask operator<<(unsigned n) const {
    mask out;
    for (unsigned i = n; i < Elems; ++i)
      out.lanes_[i] = lanes_[i - n];
    return out;
  }
  mask operator>>(unsigned n) const {
    mask out;
    for (unsigned i = n; i < Elems; ++i)
      out.lanes_[i - n] = lanes_[i];
    return out;
  }

 private:
  friend struct detail::lanes_of;

  static void check(const char *call, unsigned index, unsigned limit) {
    if (index >= limit)
      twin::trap("aie::mask::%s: index %u; expected 0 to %u", call, index, limit - 1);
  }

  uint8_t lanes_[Elems];
};

}  // namespace aie
