// SPDX-License-Identifier: Apache-2.0
//
// Keeps a kernel's own end from being the program's: a signal that a kernel causes, or a call that does not return, ends
// that call with the reason in its core's state.
//
// A kernel runs between twin_watch(state) and twin_watch(null) on its thread (core_state.hpp calls it). A fault inside
// jumps to the landing of twin_call; one outside goes to whoever handled it before. A thread of its own looks ten times a
// second for calls that are the same as before, and sends their thread a signal when they have lasted too long.

#include <aie_api/core_state.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
#include <pthread.h>
#include <thread>

namespace {

constexpr int kFaults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr auto kTick = std::chrono::milliseconds(100);

/// One thread that runs kernels. Kept for good, and taken over by another thread when its own has ended.
struct Runner {
  std::atomic<CoreState *> state{nullptr};  // of the kernel that runs, null between kernels
  std::atomic<uint64_t> calls{0};           // counts entries and exits
  std::atomic<uint64_t> late{0};            // the value of `calls` that has lasted too long
  std::atomic<bool> taken{true};
  pthread_t thread{};
  Runner *next = nullptr;
  uint64_t seen = 0;  // of the watching thread alone
  int64_t ticks = 0;
  alignas(16) char stack[1 << 16];  // for a handler after the thread's own stack has overflowed
};

std::atomic<Runner *> runners{nullptr};
std::atomic<int64_t> limit_ticks{0};
std::atomic<bool> watching{false};
struct sigaction before[NSIG];

int late_signal() { return SIGRTMIN + 3; }

struct Place {
  Runner *runner = nullptr;
  ~Place() {
    if (runner == nullptr)
      return;
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
    runner->taken.store(false);
  }
};

thread_local Place place;
thread_local Runner *mine = nullptr;

Runner *enlist() {
  Runner *found = runners.load();
  bool free = false;
  for (; found != nullptr; found = found->next)
    if (free = false, found->taken.compare_exchange_strong(free, true))
      break;
  if (found == nullptr) {
    found = new Runner;
    found->next = runners.load();
    while (!runners.compare_exchange_weak(found->next, found)) {
    }
  }
  found->thread = pthread_self();
  stack_t stack = {};
  stack.ss_sp = found->stack;
  stack.ss_size = sizeof found->stack;
  sigaltstack(&stack, nullptr);
  place.runner = found;
  return mine = found;
}

void watch_runners() {
  for (;;) {
    std::this_thread::sleep_for(kTick);
    for (Runner *r = runners.load(); r != nullptr; r = r->next) {
      uint64_t calls = r->calls.load();
      if (calls != r->seen || r->state.load() == nullptr) {
        r->seen = calls;
        r->ticks = 0;
      } else if (++r->ticks > limit_ticks.load()) {
        r->late.store(calls);
        r->ticks = 0;
        pthread_kill(r->thread, late_signal());
      }
    }
  }
}

void start_watching() {
  if (!watching.exchange(true))
    std::thread(watch_runners).detach();
}

/// A forked child has no watching thread: it starts its own with its first kernel.
const int start_anew_in_children = pthread_atfork(nullptr, nullptr, [] { watching.store(false); });

void on_signal(int number, siginfo_t *info, void *context) {
  Runner *runner = mine;
  CoreState *state = runner == nullptr ? nullptr : runner->state.load();
  if (number == late_signal()) {
    if (state == nullptr || runner->late.load() != runner->calls.load())
      return;  // the kernel has returned in the meantime
  } else if (state == nullptr || state->trap_jump == nullptr) {
    sigaction(number, &before[number], nullptr);  // not ours: it happens again, to whoever handled it before
    return;
  }
  state->fault_signal = number == late_signal() ? uint32_t(-1) : uint32_t(number);
  state->fault_address = number == SIGSEGV || number == SIGBUS ? info->si_addr : nullptr;
  state->fault_write = 0;
#if defined(__x86_64__)
  state->fault_write = (static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#endif
  std::longjmp(*static_cast<std::jmp_buf *>(state->trap_jump), 1);
}

void handle(int number) {
  struct sigaction now;
  sigaction(number, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_signal)
    return;
  before[number] = now;
  struct sigaction ours = {};
  ours.sa_sigaction = on_signal;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // the handler is left by a jump, with no signal blocked
  sigemptyset(&ours.sa_mask);
  sigaction(number, &ours, nullptr);
}

}  // namespace

extern "C" {

/// Takes the signals over, unless it has them; `seconds` is from now on how long a kernel call may last in this process.
void twin_guard(double seconds) {
  limit_ticks.store(int64_t(seconds * 10));
  for (int number : kFaults)
    handle(number);
  handle(late_signal());
}

/// The kernel of `state` begins on this thread; null: it has ended.
void twin_watch(CoreState *state) {
  Runner *runner = mine != nullptr ? mine : enlist();
  if (!watching.load(std::memory_order_relaxed))
    start_watching();
  runner->calls.store(runner->calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  runner->state.store(state, std::memory_order_release);
}

}  // extern "C"
