// SPDX-License-Identifier: Apache-2.0
//
// Loads, stores and vector iterators.
//
// An aligned access to an address that is not a multiple of the vector's alignment (16, 32 or 64 bytes) silently uses
// another address on the device; here it traps and names the call.

#pragma once

#include <cstddef>
#include <iterator>

#include "vector.hpp"

namespace aie {

template <DecoratedElemBaseType T, unsigned Elems>
inline constexpr unsigned vector_ldst_align_v = detail::register_align(Elems * sizeof(T));

/// The alignment that suits every vector.
inline constexpr unsigned vector_decl_align = 64;

namespace detail {

template <unsigned Align>
TWIN_INLINE void check_aligned(const void *address, const char *call) {
  const auto value = reinterpret_cast<uintptr_t>(address);
  if (__builtin_expect((value & (Align - 1)) != 0, 0))
    twin::trap("%s: address %p is not aligned; expected a multiple of %u bytes (or the unaligned call)", call, address,
               Align);
}

template <unsigned Elems, bool Aligned, typename T>
TWIN_INLINE vector<std::remove_cv_t<T>, Elems> load_lanes(const T *from, const char *call) {
  if constexpr (Aligned)
    check_aligned<register_align(Elems * sizeof(T))>(from, call);
  vector<std::remove_cv_t<T>, Elems> out;
  twin::copy<sizeof out>(raw(out), from);
  twin::core().loads += twin::units(out.bits(), 512);
  return out;
}

template <bool Aligned, typename T, unsigned Elems>
TWIN_INLINE void store_lanes(T *to, const vector<T, Elems> &v, const char *call) {
  if constexpr (Aligned)
    check_aligned<register_align(Elems * sizeof(T))>(to, call);
  twin::copy<sizeof v>(to, raw(v));
  twin::core().stores += twin::units(v.bits(), 512);
}

template <typename T>
TWIN_INLINE void check_aligned_elems(const T *address, unsigned elems, const char *call) {
  const uintptr_t bytes = elems * sizeof(T);
  if (__builtin_expect(bytes == 0 || reinterpret_cast<uintptr_t>(address) % bytes != 0, 0))
    twin::trap("%s: address %p is not aligned to the %u elements that the call promises", call,
               static_cast<const void *>(address), elems);
}

}  // namespace detail

template <unsigned Elems, aie_dm_resource Bank = aie_dm_resource::none, DecoratedElemBaseType T>
TWIN_INLINE auto load_v(const T *from) {
  return detail::load_lanes<Elems, true>(from, "aie::load_v");
}
template <aie_dm_resource Bank = aie_dm_resource::none, DecoratedElemBaseType T>
TWIN_INLINE auto load_v(const T *from) {
  return detail::load_lanes<native_vector_length_v<T>, true>(from, "aie::load_v");
}

template <unsigned Elems, aie_dm_resource Bank = aie_dm_resource::none, DecoratedElemBaseType T>
TWIN_INLINE auto load_unaligned_v(const T *from, unsigned aligned_elems = 1) {
  detail::check_aligned_elems(from, aligned_elems, "aie::load_unaligned_v");
  return detail::load_lanes<Elems, false>(from, "aie::load_unaligned_v");
}

template <aie_dm_resource Bank = aie_dm_resource::none, DecoratedElemBaseType T, typename T2, unsigned Elems>
TWIN_INLINE T *store_v(T *to, const vector<T2, Elems> &v) {
  static_assert(std::is_same_v<T, T2>, "aie::store_v: the pointer's type must be the vector's element type");
  if constexpr (std::is_same_v<T, T2>)
    detail::store_lanes<true>(to, v, "aie::store_v");
  return to;
}

template <aie_dm_resource Bank = aie_dm_resource::none, DecoratedElemBaseType T, typename T2, unsigned Elems>
TWIN_INLINE T *store_unaligned_v(T *to, const vector<T2, Elems> &v, unsigned aligned_elems = 1) {
  static_assert(std::is_same_v<T, T2>, "aie::store_unaligned_v: the pointer's type must be the vector's element type");
  if constexpr (std::is_same_v<T, T2>) {
    detail::check_aligned_elems(to, aligned_elems, "aie::store_unaligned_v");
    detail::store_lanes<false>(to, v, "aie::store_unaligned_v");
  }
  return to;
}

/// A vector in memory: read when used, written when assigned.
template <typename T, unsigned Elems>
class vector_ref {
 public:
  using value_type = std::remove_const_t<T>;
  static constexpr unsigned size() { return Elems; }

  TWIN_INLINE explicit vector_ref(T *at) : at_(at) {}

  TWIN_INLINE operator vector<value_type, Elems>() const {
    return detail::load_lanes<Elems, true>(at_, "aie vector iterator");
  }
  TWIN_INLINE vector_ref &operator=(const vector<value_type, Elems> &v)
    requires(!std::is_const_v<T>)
  {
    detail::store_lanes<true>(at_, v, "aie vector iterator");
    return *this;
  }
  TWIN_INLINE vector_ref &operator=(const vector_ref &other)
    requires(!std::is_const_v<T>)
  {
    return *this = static_cast<vector<value_type, Elems>>(other);
  }
  vector_ref(const vector_ref &) = default;

 private:
  T *at_;
};

/// Walks memory in steps of one vector.
template <typename T, unsigned Elems>
class vector_iterator {
 public:
  using iterator_category = std::random_access_iterator_tag;
  using value_type = vector<std::remove_const_t<T>, Elems>;
  using difference_type = ptrdiff_t;
  using reference = vector_ref<T, Elems>;
  using pointer = T *;

  TWIN_INLINE explicit vector_iterator(T *at) : at_(at) {}

  TWIN_INLINE reference operator*() const { return reference(at_); }
  TWIN_INLINE reference operator[](ptrdiff_t n) const { return reference(at_ + n * step); }
  TWIN_INLINE vector_iterator &operator++() { return *this += 1; }
  TWIN_INLINE vector_iterator &operator--() { return *this -= 1; }
  TWIN_INLINE vector_iterator operator++(int) {
    vector_iterator before = *this;
    at_ += step;
    return before;
  }
  TWIN_INLINE vector_iterator operator--(int) {
    vector_iterator before = *this;
    at_ -= step;
    return before;
  }
  TWIN_INLINE vector_iterator &operator+=(ptrdiff_t n) {
    at_ += n * step;
    return *this;
  }
  TWIN_INLINE vector_iterator &operator-=(ptrdiff_t n) {
    at_ -= n * step;
    return *this;
  }
  TWIN_INLINE vector_iterator operator+(ptrdiff_t n) const { return vector_iterator(at_ + n * step); }
  TWIN_INLINE vector_iterator operator-(ptrdiff_t n) const { return vector_iterator(at_ - n * step); }
  TWIN_INLINE bool operator==(const vector_iterator &other) const { return at_ == other.at_; }
  TWIN_INLINE bool operator!=(const vector_iterator &other) const { return at_ != other.at_; }

 private:
  static constexpr ptrdiff_t step = Elems;
  T *at_;
};

template <unsigned Elems, aie_dm_resource Bank = aie_dm_resource::none, DecoratedElemBaseType T>
TWIN_INLINE auto begin_vector(T *at) {
  return vector_iterator<T, Elems>(at);
}
template <unsigned Elems, aie_dm_resource Bank = aie_dm_resource::none, DecoratedElemBaseType T>
TWIN_INLINE auto cbegin_vector(const T *at) {
  return vector_iterator<const T, Elems>(at);
}
template <unsigned Elems, aie_dm_resource Bank = aie_dm_resource::none, DecoratedElemBaseType T>
TWIN_INLINE auto begin_restrict_vector(T *at) {
  return vector_iterator<T, Elems>(at);
}
template <unsigned Elems, aie_dm_resource Bank = aie_dm_resource::none, DecoratedElemBaseType T>
TWIN_INLINE auto cbegin_restrict_vector(const T *at) {
  return vector_iterator<const T, Elems>(at);
}

}  // namespace aie
