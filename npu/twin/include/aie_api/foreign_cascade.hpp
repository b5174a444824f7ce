// SPDX-License-Identifier: Apache-2.0
//
// The cascade of a core, 512 bits at a time, for kernels that others wrote. A kernel of 1024-bit registers moves two values.

#pragma once

#include "vector.hpp"

/// One value into the core (put = 0) or out of it. It may take as long as another core does: nobody watches meanwhile.
/// Exported, so that a library which has it is known to use the cascade (npu/twin/cascade.py).
extern "C" __attribute__((noinline)) inline void twin_cascade(int put, void *data) {
  using namespace twin;
  CoreState &state = core();
  if (state.cascade == nullptr)
    trap("the kernel uses the cascade, and no aie.cascade_flow %s its core", put ? "leads out of" : "leads into");
  if (state.watch != nullptr) state.watch(nullptr);
  const int stopped = state.cascade(&state, put, data);
  if (state.watch != nullptr) state.watch(&state);
  if (stopped != 0) trap("the cascade came to no end");
}

namespace twin {

template <typename V>
inline V get_cascade() {
  V v;
  for (unsigned at = 0; at < sizeof(V); at += 64) twin_cascade(0, reinterpret_cast<char *>(&v) + at);
  return v;
}

template <typename V>
inline void put_cascade(const V &v) {
  V copy = v;
  for (unsigned at = 0; at < sizeof(V); at += 64) twin_cascade(1, reinterpret_cast<char *>(&copy) + at);
}

}  // namespace twin

using v32int32 = native_register<int32, 32>;

inline v16int32 undef_v16int32() { return aie::vector<int32, 16>(); }
inline v32int32 undef_v32int32() { return aie::vector<int32, 32>(); }
inline v16int32 get_scd_v16int32() { return twin::get_cascade<aie::vector<int32, 16>>(); }
inline v32int32 get_scd_v32int32() { return twin::get_cascade<aie::vector<int32, 32>>(); }
inline void put_mcd(const v16int32 &v) { twin::put_cascade(v.value); }
inline void put_mcd(const v32int32 &v) { twin::put_cascade(v.value); }

template <typename T, unsigned Elems>
inline native_register<T, Elems> upd_elem(native_register<T, Elems> v, unsigned index, T value) {
  v.value.set(value, index);
  return v;
}
template <typename T, unsigned Elems>
inline T ext_elem(const native_register<T, Elems> &v, unsigned index) {
  return v.value.get(index);
}
