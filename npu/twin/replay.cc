// SPDX-License-Identifier: Apache-2.0
//
// The replay tier: runs a schedule's flat operation table. It knows copies and calls, and no kernel by name.
//
// Operations of a side-by-side phase have no hazards between them, so threads take them in any order with one result;
// phases are separated by a barrier. A call runs through its library's twin_call on its core's state, so registers and
// counters belong to the core and not to the thread. Table layouts are those of npu/twin/schedule.py.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <vector>

namespace {

constexpr uint32_t kPoison = 0x7FA57FA5u;
constexpr uint32_t kGuard = 0x7FA97FA9u;
constexpr int64_t kColumns = 9;
constexpr int64_t kImmediate = -1;
constexpr int kSpins = 4000;

using TwinCall = int (*)(void *, void *, const uint64_t *, uint32_t);

struct Plan {
  const int64_t *operations;
  const int64_t *segments;   // (source, dest, bytes)
  const uint64_t *words;     // resolved call arguments
  const int64_t *phases;     // (first, count, side by side)
  int64_t phase_count;
  const int64_t *poison;     // (first byte, end byte) of tile memory
  int64_t poison_count;
  const int32_t *guards;     // word indices of tile memory
  int64_t guard_count;
  uint8_t *const *bases;     // by region
  void *const *functions;
  void *const *callers;
  uint8_t *states;
  int64_t state_stride;
};

struct Fault {
  int64_t kind;       // 0 none, 1 unwritten word, 2 trap, 3 guard
  int64_t operation;  // or guard word
  int64_t detail;     // byte in the source region
};


std::mutex fault_lock;

void report(Fault *fault, int64_t kind, int64_t operation, int64_t detail) {
  std::lock_guard<std::mutex> hold(fault_lock);
  if (fault->kind == 0 || operation < fault->operation) *fault = {kind, operation, detail};
}

inline bool has_poison(const uint8_t *data, int64_t bytes) {
  uint32_t found = 0;
  int64_t words = bytes / 4;
  for (int64_t i = 0; i < words; ++i) {
    uint32_t word;
    std::memcpy(&word, data + 4 * i, 4);
    found |= word == kPoison;
  }
  return found != 0;
}

int64_t find_poison(const uint8_t *data, int64_t bytes) {
  for (int64_t i = 0; i + 4 <= bytes; i += 4)
    if (has_poison(data + i, 4)) return i;
  return -1;
}

/// Copies one segment in pieces that stay in the first-level cache, looking at each piece while it is there.
inline bool copy_checked(uint8_t *dest, const uint8_t *source, int64_t bytes) {
  bool found = false;
  for (int64_t at = 0; at < bytes; at += 8192) {
    int64_t part = bytes - at < 8192 ? bytes - at : 8192;
    found |= has_poison(source + at, part);
    std::memcpy(dest + at, source + at, part);
  }
  return found;
}

template <int N>
bool copy_fixed(uint8_t *dest, const uint8_t *source, const int64_t *segment, int64_t rows, bool check) {
  uint32_t found = 0;
  for (int64_t i = 0; i < rows; ++i, segment += 3) {
    uint32_t words[N / 4];
    std::memcpy(words, source + segment[0], N);
    std::memcpy(dest + segment[1], words, N);
    if (check)
      for (int w = 0; w < N / 4; ++w) found |= words[w] == kPoison;
  }
  return found != 0;
}

bool copy_any(uint8_t *dest, const uint8_t *source, const int64_t *segment, int64_t rows, bool check) {
  bool found = false;
  for (int64_t i = 0; i < rows; ++i, segment += 3) {
    if (segment[0] < 0)
      std::memset(dest + segment[1], 0, segment[2]);
    else if (check)
      found |= copy_checked(dest + segment[1], source + segment[0], segment[2]);
    else
      std::memcpy(dest + segment[1], source + segment[0], segment[2]);
  }
  return found;
}

bool copy(uint8_t *dest, const uint8_t *source, const int64_t *segment, int64_t rows, int64_t length, bool check) {
  switch (length) {
    case 4: return copy_fixed<4>(dest, source, segment, rows, check);
    case 8: return copy_fixed<8>(dest, source, segment, rows, check);
    case 16: return copy_fixed<16>(dest, source, segment, rows, check);
    case 32: return copy_fixed<32>(dest, source, segment, rows, check);
    case 64: return copy_fixed<64>(dest, source, segment, rows, check);
    case 128: return copy_fixed<128>(dest, source, segment, rows, check);
    default: return copy_any(dest, source, segment, rows, check);
  }
}

void run_operation(const Plan &plan, int64_t index, Fault *fault) {
  const int64_t *op = plan.operations + index * kColumns;
  if (op[0] == 0) {
    const int64_t *segment = plan.segments + 3 * op[1];
    const uint8_t *source = plan.bases[op[4]] + op[5];
    if (copy(plan.bases[op[6]] + op[7], source, segment, op[2], op[3], op[8] != 0)) {
      int64_t at = -1;
      for (int64_t i = 0; i < op[2] && at < 0; ++i) {
        if (segment[3 * i] < 0) continue;
        int64_t found = find_poison(source + segment[3 * i], segment[3 * i + 2]);
        if (found >= 0) at = segment[3 * i] + found;
      }
      report(fault, 1, index, op[5] + at);
    }
    return;
  }
  auto call = reinterpret_cast<TwinCall>(plan.callers[op[1]]);
  if (call(plan.states + op[2] * plan.state_stride, plan.functions[op[1]], plan.words + op[3], uint32_t(op[4])) != 0)
    report(fault, 2, index, op[2]);
}

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// The helper threads of this process. A phase is finished when its operations are, whoever did them: a helper that
/// sleeps, or that the machine gave no time, is not waited for. One 64-bit word holds (phase, operations left), so that a
/// late helper cannot claim an operation of a phase that has passed, and who has claimed one sees the phase's fields.
class Pool {
 public:
  explicit Pool(int helpers) : count_(helpers) {
    for (int i = 0; i < helpers; ++i) std::thread([this] { serve(); }).detach();
  }

  int helpers() const { return count_; }

  void run(const Plan &plan, int64_t first, int64_t count, Fault *fault) {
    plan_ = &plan;
    fault_ = fault;
    end_ = first + count;
    done_.store(0, std::memory_order_relaxed);
    ++phase_;
    claim_.store(uint64_t(phase_) << 32 | uint64_t(count), std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) {
      std::lock_guard<std::mutex> hold(lock_);
      wake_.notify_all();
    }
    while (work_once()) {
    }
    for (int spin = 0; done_.load(std::memory_order_acquire) != count; ++spin) {
      pause();
      if (spin > kSpins) std::this_thread::yield();
    }
  }

 private:
  /// Claims and runs one operation of the current phase; false if none is left.
  bool work_once() {
    uint64_t word = claim_.load(std::memory_order_acquire);
    do {
      if (uint32_t(word) == 0) return false;
    } while (!claim_.compare_exchange_weak(word, word - 1, std::memory_order_acq_rel, std::memory_order_acquire));
    run_operation(*plan_, end_ - int64_t(uint32_t(word)), fault_);
    done_.fetch_add(1, std::memory_order_release);
    return true;
  }

  void serve() {
    for (;;) {
      for (int spin = 0; spin < kSpins; ++spin) {
        while (work_once()) spin = 0;
        pause();
      }
      uint64_t seen = claim_.load(std::memory_order_seq_cst);
      std::unique_lock<std::mutex> hold(lock_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(hold, [&] { return claim_.load(std::memory_order_seq_cst) >> 32 != seen >> 32; });
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
  }

  const int count_;
  const Plan *plan_ = nullptr;
  Fault *fault_ = nullptr;
  int64_t end_ = 0;
  uint32_t phase_ = 0;
  std::atomic<uint64_t> claim_{0};
  std::atomic<int64_t> done_{0};
  std::atomic<int> sleepers_{0};
  std::mutex lock_;
  std::condition_variable wake_;
};

std::mutex run_lock;
Pool *pool = nullptr;

/// A forked child has no helper threads: it makes its own when it first needs them.
const int forget_pool_in_children = pthread_atfork(nullptr, nullptr, [] { pool = nullptr; });

void fill(uint32_t *words, int64_t count, uint32_t value) {
  for (int64_t i = 0; i < count; ++i) words[i] = value;
}

}  // namespace

extern "C" {

int64_t twin_plan_size() { return sizeof(Plan); }

/// Runs a whole dispatch: poison, guards, every phase, guards again. `threads` counts the caller.
int twin_replay(const Plan *plan, int threads, Fault *fault) {
  std::lock_guard<std::mutex> hold(run_lock);
  *fault = {0, 0, 0};
  auto *tile_words = reinterpret_cast<uint32_t *>(plan->bases[0]);
  for (int64_t i = 0; i < plan->poison_count; ++i)
    fill(tile_words + plan->poison[2 * i] / 4, (plan->poison[2 * i + 1] - plan->poison[2 * i]) / 4, kPoison);
  for (int64_t i = 0; i < plan->guard_count; ++i) tile_words[plan->guards[i]] = kGuard;
  for (int64_t i = 0; i < plan->phase_count && fault->kind == 0; ++i) {
    const int64_t *phase = plan->phases + 3 * i;
    if (phase[2] != 0 && threads > 1) {
      if (pool == nullptr || pool->helpers() < threads - 1) pool = new Pool(threads - 1);
      pool->run(*plan, phase[0], phase[1], fault);
    } else {
      for (int64_t op = phase[0]; op < phase[0] + phase[1] && fault->kind == 0; ++op) run_operation(*plan, op, fault);
    }
  }
  for (int64_t i = 0; i < plan->guard_count && fault->kind == 0; ++i)
    if (tile_words[plan->guards[i]] != kGuard) *fault = {3, plan->guards[i], 0};
  return fault->kind != 0;
}

}  // extern "C"
