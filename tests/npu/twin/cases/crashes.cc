// SPDX-License-Identifier: Apache-2.0
//
// Kernels that add one, and that break where the first element of a call is 7: out of bounds, by a crash, or for ever.

#include <aie_api/aie.hpp>

namespace {

void add_one(const int32_t *in, int32_t *out, int32_t n) {
  for (int i = 0; i < n; ++i) out[i] = in[i] + 1;
}

volatile int32_t sink, zero = 0;

[[gnu::noinline]] int32_t deeper(int32_t depth) {
  volatile int32_t page[1024];
  page[depth % 1024] = depth;
  return deeper(depth + 1) + page[0];
}

}  // namespace

#define BREAKS(name, ...)                                        \
  void name(const int32_t *in, int32_t *out, int32_t n) {        \
    add_one(in, out, n);                                         \
    if (in[0] == 7) { __VA_ARGS__; }                             \
  }

extern "C" {

BREAKS(stores_far, out[n + 100000] = 1)
BREAKS(reads_far, sink = in[n + 100000])
BREAKS(runs_on, for (int i = n;; ++i) out[i] = i)
BREAKS(reads_on, for (int i = n;; ++i) sink = in[i])
BREAKS(runs_back, for (int i = -1;; --i) out[i] = i)
BREAKS(reads_ahead, sink = in[n + 15])
BREAKS(stores_a_little_before, out[-200] = 1)
BREAKS(stores_nowhere, *reinterpret_cast<volatile int32_t *>(16) = 1)
BREAKS(divides, sink = n / zero)
BREAKS(aborts, std::abort())
BREAKS(gives_up, __builtin_trap())
BREAKS(recurses, sink = deeper(n))
BREAKS(spins, while (zero == 0) {})

}  // extern "C"
