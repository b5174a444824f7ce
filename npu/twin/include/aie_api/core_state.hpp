// SPDX-License-Identifier: Apache-2.0
//
// The state of the one simulated core that runs a kernel: control registers, counters, and where a trap goes.
//
// Every compiled kernel library holds one thread-local pointer to a CoreState. The twin sets it through twin_set_core
// (or runs a function through twin_call) before it calls a kernel; a kernel that runs without one traps.
// npu/twin/hostcc.py mirrors this layout and compares its size with twin_core_size().

#pragma once

#include <csetjmp>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" {

struct CoreState {
  uint32_t rounding;         // control register 6: floor (0) after reset, sticky over kernel calls
  uint32_t saturation;       // control register 9: none (0) after reset, sticky over kernel calls
  uint64_t mul_adds_vector;  // multiply-adds done by mul, mac, msc and their relatives: one a lane
  uint64_t matrix_macs;      // multiply-adds done by mmul: M*K*N a call
  uint64_t mul_adds_scalar;  // multiply-adds done one at a time with bfloat16 operators
  uint64_t vector_ops;       // native vector instructions (README.md: the weights)
  uint64_t mac_ops;          // those of vector_ops that are multiply or multiply-accumulate instructions
  uint64_t elementary_ops;   // exp2, tanh (16 lanes each), scalar inv, invsqrt, sqrt
  uint64_t loads;            // 512-bit vector loads (shorter ones count as one)
  uint64_t stores;           // 512-bit vector stores (shorter ones count as one)
  void *trap_jump;           // jmp_buf of the running twin_call, or null: then a trap aborts the process
  void (*watch)(CoreState *);  // told when a kernel begins and (with null) ends; null where nobody watches
  int (*cascade)(CoreState *, int put, void *data);  // moves 64 bytes; null where no cascade meets the core
  void *fault_address;       // what the memory fault was about
  uint32_t fault_signal;     // the signal that ended the kernel, 0 for none, -1 for a call that did not return
  uint32_t fault_write;      // whether the memory fault was a store
  char trap_message[240];    // why the core trapped; empty when it did not
};

}  // extern "C"

#define TWIN_INLINE inline __attribute__((always_inline))
#define TWIN_EXPORT extern "C" __attribute__((used, visibility("default"))) inline

namespace twin {

inline constinit thread_local CoreState *current_core __attribute__((visibility("hidden"))) = nullptr;

/// Stops the kernel: what a real core would do wrongly or in silence is an error here.
[[noreturn, gnu::cold, gnu::noinline, gnu::format(printf, 1, 2)]] inline void trap(const char *format, ...) {
  char message[sizeof(CoreState::trap_message)];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  if (current_core != nullptr && current_core->trap_jump != nullptr) {
    __builtin_memcpy(current_core->trap_message, message, sizeof message);
    std::longjmp(*static_cast<std::jmp_buf *>(current_core->trap_jump), 1);
  }
  std::fprintf(stderr, "core trap: %s\n", message);
  std::abort();
}

TWIN_INLINE CoreState &core() {
  if (__builtin_expect(current_core == nullptr, 0))
    trap("no core state is set; expected twin_set_core(state) before a kernel is called");
  return *current_core;
}

/// The host's floating-point mode while kernels run: rounding to nearest, denormals kept. Some Python packages turn
/// denormals off for the whole process.
class HostFloatMode {
 public:
#if defined(__x86_64__)
  HostFloatMode() : before_(__builtin_ia32_stmxcsr()) {
    if ((before_ & control) != standard)
      __builtin_ia32_ldmxcsr(standard);
  }
  void restore() const {
    if ((before_ & control) != standard)
      __builtin_ia32_ldmxcsr(before_);
  }

 private:
  static constexpr uint32_t control = 0xffc0, standard = 0x1f80;
  uint32_t before_;
#else
  void restore() const {}
#endif
};

TWIN_INLINE constexpr unsigned units(unsigned amount, unsigned native) { return (amount + native - 1) / native; }

TWIN_INLINE void count_vector(unsigned ops) { core().vector_ops += ops; }

TWIN_INLINE void count_macs(unsigned ops, unsigned multiply_adds) {
  CoreState &state = core();
  state.vector_ops += ops;
  state.mac_ops += ops;
  state.mul_adds_vector += multiply_adds;
}

}  // namespace twin

TWIN_EXPORT void twin_set_core(CoreState *state) { twin::current_core = state; }

TWIN_EXPORT uint32_t twin_core_size() { return sizeof(CoreState); }

/// Calls `function` (at most 16 pointer or integer arguments, one 64-bit word each) on the core `state`.
/// Returns 0, or 1 when the kernel trapped: then state->trap_message says why, or state->fault_signal. Words beyond the callee's
/// parameters are ignored by the System V calling convention.
TWIN_EXPORT int twin_call(CoreState *state, void *function, const uint64_t *arguments, uint32_t count) {
  using Kernel = void (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                          uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
  std::jmp_buf landing;
  CoreState *volatile running = state;
  const twin::HostFloatMode mode;
  uint64_t a[16] = {};
  if (state == nullptr || count > 16)
    return 2;
  for (uint32_t i = 0; i < count; ++i)
    a[i] = arguments[i];
  state->trap_message[0] = 0;
  state->fault_signal = 0;
  state->trap_jump = &landing;
  twin::current_core = state;
  if (setjmp(landing) != 0) {
    if (running->watch != nullptr)
      running->watch(nullptr);
    running->trap_jump = nullptr;
    mode.restore();
    return 1;
  }
  if (state->watch != nullptr)
    state->watch(state);
  reinterpret_cast<Kernel>(function)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12],
                                     a[13], a[14], a[15]);
  if (running->watch != nullptr)
    running->watch(nullptr);
  running->trap_jump = nullptr;
  mode.restore();
  return 0;
}
