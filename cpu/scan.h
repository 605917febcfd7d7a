// The scan driver: the adaptive chained scan with look-back (de Kluijver 2024, 2.2) in the orders of scan_order.h.
//
// A row is cut into blocks. What a block needs is its prefix, the combination of all elements before it; what it offers is its
// aggregate, the combination of its own. A descriptor for each block says what is there already:
//   kNothing    the block is not claimed, or its thread has nothing to offer yet
//   kAggregate  the aggregate
//   kPrefix     the prefix of the next block: prefix ⊕ aggregate
// The thread that claims block b looks back from b - 1 over aggregates to the nearest prefix. If it gets there without waiting,
// it scans the block directly, in one pass over memory, and then publishes the next prefix. If not, it makes itself useful:
// reduces the block, publishes the aggregate, looks back again, now waiting, publishes the next prefix, and scans the block,
// which is still in its cache.
//
// The same bits always. A prefix is the left fold of the aggregates before it, in their order, and an aggregate is computed
// without any prefix, by Scan with the same bits as by Reduce. Look-back walks back to a prefix and then folds forward, so it
// computes the same left fold, wherever it stopped. So neither the order, nor the number of threads, nor timing changes a bit.
// A restart in a block cuts off what came before: its aggregate is the next prefix, whatever its own prefix is.
//
// No deadlock. A thread waits in look-back alone, for an earlier block of its row to be published. That block was claimed before
// (scan_order.h), by a thread that is at work on it: a helper that has not come yet has claimed nothing. And a claimed block is
// published without waiting: between claim and status are one look that does not wait and one scan or reduction. (The last block
// of a row skips the reduction and waits at once: nobody waits for it.) So what is waited for is published whatever any other
// thread does, on any pool, whatever helpers come. tests/cpp/scan_order_test.cc tries all interleavings of a model of this.
//
// Memory order. The aggregate and the prefix are plain memory, written before the status is stored with release, and read after
// it is loaded with acquire; each is written once, before the status that announces it, and never again. The work index hands out
// numbers alone. Descriptors are cleared before helpers are put on the pool, whose queue synchronises. Results are read by the
// caller after WorkAssist returned; a task that used non-temporal stores ends with a fence.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "numbers.h"
#include "ordered_call.h"
#include "ordered_kernel.h"
#include "ordered_row.h"
#include "scan_order.h"
#include "scan_plan.h"
#include "work_assist.h"
#include "workspace.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace jaxprims {

// Non-temporal stores are not ordered by a release: this goes before others are told of them.
inline void StreamFence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

inline ScanProblem DescribeScan(const OrderedShape& shape, const OrderedCall& call) {
  ScanProblem p;
  p.n = call.n, p.rows = call.rows(), p.lanes = call.lanes;
  p.in_bytes = Sum(shape.array_bytes);
  p.leaf_bytes = shape.leaf_bytes;
  p.slots = static_cast<int64_t>(shape.slot_bytes.size());
  p.across = shape.across, p.work = shape.work, p.large = !shape.parts.empty(), p.map = shape.map;
  p.together = shape.together;
  p.reverse = shape.reverse;
  for (const Operand& out : call.outs) {
    p.aligned = p.aligned && reinterpret_cast<uintptr_t>(out.data) % kCacheLine == 0;
    for (const Operand& array : call.arrays) p.in_place = p.in_place || (array.data != nullptr && array.data == out.data);
  }
  auto contiguous = [&](const Operand& operand, int64_t row_bytes) {
    for (size_t axis = call.batch.size(); axis-- > 0; row_bytes *= call.batch[axis]) {
      if (operand.strides[axis] != row_bytes && call.batch[axis] > 1) return false;
    }
    return true;
  };
  p.contiguous = !shape.across && call.init.empty();
  for (size_t k = 0; k < call.arrays.size(); ++k) {
    p.contiguous = p.contiguous && contiguous(call.arrays[k], call.n * shape.array_bytes[k]);
  }
  if (shape.restarts) p.contiguous = p.contiguous && contiguous(call.flags, call.n);
  for (const Operand& uniform : call.uniforms) p.contiguous = p.contiguous && contiguous(uniform, 0);
  return p;
}

namespace internal {

// What all threads of a call share.
struct ScanRun {
  const OrderedShape& shape;
  const OrderedCall& call;
  const OrderedKernel& kernel;
  const ScanPlan& plan;
};

// One thread's pointers and two states, all of it allocated beforehand: nothing can fail inside a task.
class ScanWorker {
 public:
  ScanWorker(const ScanRun& run, char* memory)
      : run_(run), row_(run.call), state_{memory, memory + StateBytes(run.shape, run.plan.strip)} {
    range_.n = run.call.n;
    range_.lanes = run.call.lanes;
  }

  // Lanes [strip * plan.strip, ...) of a row.
  void Select(int64_t row, int64_t strip) {
    row_.Select(row);
    range_.lane_lo = strip * run_.plan.strip;
    range_.lane_hi = std::min(range_.lanes, range_.lane_lo + run_.plan.strip);
  }

  // The row after the selected one.
  void Next() { row_.Next(); }

  // The selected row from end to end, without descriptors.
  void WholeRow() {
    char *prefix = nullptr, *aggregate = state_[0], *spare = state_[1];
    int64_t progress = InitInto(aggregate);
    for (int64_t lo = 0; lo < range_.n; lo += run_.plan.block) {
      const int64_t hi = std::min(range_.n, lo + run_.plan.block);
      const bool first = prefix == nullptr;
      progress = Scan(lo, hi, prefix, hi == range_.n && !first ? Unwanted(aggregate) : aggregate, progress);
      if (hi == range_.n) return;
      if (first) {
        prefix = aggregate, aggregate = spare;
      } else if ((progress & kRestarted) != 0) {
        std::swap(prefix, aggregate);
      } else {
        Combine(prefix, aggregate, prefix);
      }
      progress = 0;
    }
  }

  // Short rows [first, last), one behind the other in every operand, as one.
  void ScanPeriodic(int64_t first, int64_t last) {
    const int64_t period = run_.call.n;
    row_.Select(0);
    range_.period = period;
    range_.n = run_.call.n * run_.call.rows();
    Scan(first * period, last * period, nullptr, state_[0], 0);
  }

  // The first block starts from the init as if it were what came before it in the block.
  int64_t InitInto(char* state) const { return row_.Init(run_.shape, range_.lane_lo, range_.lane_hi, state) ? kStarted : 0; }

  int64_t Scan(int64_t lo, int64_t hi, const void* prefix, void* aggregate, int64_t progress) {
    range_.lo = lo, range_.hi = hi;
    return run_.kernel.scan(row_.arrays(), row_.uniforms(), reinterpret_cast<void* const*>(row_.outs()), row_.flags(), &range_,
                            prefix, aggregate, progress);
  }

  int64_t Reduce(int64_t lo, int64_t hi, void* aggregate) {
    range_.lo = lo, range_.hi = hi;
    return run_.kernel.reduce(row_.arrays(), row_.uniforms(), row_.flags(), &range_, aggregate, 0);
  }

  void Combine(const void* a, const void* b, void* out) const {
    run_.kernel.combine(row_.uniforms(), a, b, out, range_.lane_hi - range_.lane_lo);
  }

  char* state(int k) const { return state_[k]; }

  // In place of an aggregate that nobody will look at, beside a prefix: null, where the kernel can do without.
  char* Unwanted(char* aggregate) const { return run_.shape.parts.empty() ? aggregate : nullptr; }

 private:
  const ScanRun& run_;
  OrderedRow row_;
  OrderedRange range_;
  char* state_[2];
};

// The descriptors of a row's blocks.
class ScanChain {
 public:
  enum Status : uint8_t { kNothing, kAggregate, kPrefix };

  ScanChain(char* memory, int64_t state_bytes) : memory_(memory), state_bytes_(state_bytes) {}

  std::atomic<uint8_t>& status(int64_t block) const { return *reinterpret_cast<std::atomic<uint8_t>*>(At(block)); }
  char* aggregate(int64_t block) const { return At(block) + kCacheLine; }
  char* prefix(int64_t block) const { return At(block) + kCacheLine + state_bytes_; }  // of the next block

  // Before anybody else sees it.
  void Clear(int64_t blocks) const {
    for (int64_t block = 0; block < blocks; ++block) new (&status(block)) std::atomic<uint8_t>(kNothing);
  }

  void Publish(int64_t block, Status what) const { status(block).store(what, std::memory_order_release); }

  // The prefix of `block` (> 0), where it lies or folded into `scratch` by combine(a, b, out); null if it is not there yet and
  // `wait` is false.
  template <class Combine>
  const char* LookBack(int64_t block, bool wait, char* scratch, Combine combine) const {
    int64_t from = block - 1;
    for (;; --from) {
      uint8_t there = status(from).load(std::memory_order_acquire);
      if (there == kNothing && !wait) return nullptr;
      for (int spin = 0; there == kNothing; ++spin) {
        spin < kSpins ? Pause() : std::this_thread::yield();
        there = status(from).load(std::memory_order_acquire);
      }
      if (there == kPrefix) break;
    }
    const char* folded = prefix(from);
    while (++from < block) {
      combine(folded, aggregate(from), scratch);
      folded = scratch;
    }
    return folded;
  }

 private:
  static constexpr int kSpins = 4000;
  char* At(int64_t block) const { return memory_ + block * DescriptorBytes(state_bytes_); }

  char* memory_;
  int64_t state_bytes_;
};

// Block `block`, of `length` elements, of a row of n that a worker has selected. State: its bytes.
template <class Worker>
void ScanBlock(Worker& worker, const ScanChain& chain, int64_t n, int64_t length, int64_t block, int64_t state_bytes) {
  const int64_t lo = block * length, hi = std::min(n, lo + length);
  const bool last = hi == n;
  if (block == 0) {  // its aggregate is the next one's prefix
    worker.Scan(lo, hi, nullptr, chain.prefix(0), worker.InitInto(chain.prefix(0)));
    chain.Publish(0, ScanChain::kPrefix);
    return;
  }
  char *scratch = worker.state(0), *aggregate = chain.aggregate(block);
  auto combine = [&](const char* a, const char* b, char* out) { worker.Combine(a, b, out); };
  auto publish_prefix = [&](const char* before, int64_t progress) {
    if ((progress & kRestarted) != 0) {
      std::memcpy(chain.prefix(block), aggregate, static_cast<size_t>(state_bytes));
    } else {
      worker.Combine(before, aggregate, chain.prefix(block));
    }
    chain.Publish(block, ScanChain::kPrefix);
  };
  const char* before = chain.LookBack(block, last, scratch, combine);  // nobody needs the last block's aggregate
  if (before != nullptr) {
    const int64_t progress = worker.Scan(lo, hi, before, last ? worker.Unwanted(aggregate) : aggregate, 0);
    if (!last) publish_prefix(before, progress);
    return;
  }
  const int64_t progress = worker.Reduce(lo, hi, aggregate);
  const bool restarted = (progress & kRestarted) != 0;
  if (restarted) {
    publish_prefix(nullptr, progress);
  } else {
    chain.Publish(block, ScanChain::kAggregate);
  }
  before = chain.LookBack(block, true, scratch, combine);
  if (!restarted) publish_prefix(before, progress);
  worker.Scan(lo, hi, before, worker.Unwanted(worker.state(1)), 0);
}

}  // namespace internal

template <class Pool>
void RunScan(Pool& pool, const OrderedShape& shape, const OrderedCall& call, const OrderedKernel& kernel,
             const ScanProblem& problem, const ScanPlan& plan) {
  const int64_t strips = StripsOf(problem, plan), units = problem.rows * strips, blocks = BlocksOf(problem, plan);
  if (units * blocks == 0) return;
  ExpectLargeResults(shape, call, problem.rows * call.n * call.lanes);
  const internal::ScanRun run{shape, call, kernel, plan};
  const int64_t state_bytes = StateBytes(shape, plan.strip), worker_bytes = WorkerBytes(problem, plan);
  const int64_t chain_bytes = ChainBytes(problem, plan), chains_bytes = units * chain_bytes;
  const Workspace workspace(static_cast<size_t>(WorkspaceBytes(problem, plan)));
  std::vector<internal::ScanWorker> workers;
  workers.reserve(static_cast<size_t>(plan.threads));
  for (int w = 0; w < plan.threads; ++w) workers.emplace_back(run, workspace.data() + chains_bytes + w * worker_bytes);

  // Long rows from whose ends scans go backwards are taken from the last on: memory is gone through from end to end, and a
  // processor's prefetchers follow.
  const bool backwards = shape.reverse && call.n * call.lanes > kPeriodicElements;
  auto select = [&](internal::ScanWorker& worker, int64_t unit) {
    const int64_t row = unit / strips;
    worker.Select(backwards ? problem.rows - 1 - row : row, unit % strips);
  };
  if (plan.order == ScanOrder::kAnyOrder) {
    WorkAssist(pool, units * blocks, plan.threads, [&](int64_t task, int w) {
      const int64_t unit = task / blocks, lo = task % blocks * plan.block;
      internal::ScanWorker& worker = workers[static_cast<size_t>(w)];
      select(worker, unit);
      worker.Scan(lo, std::min(call.n, lo + plan.block), nullptr, worker.state(0), 0);
      if (plan.stream) StreamFence();
    });
    return;
  }
  if (Chained(plan)) {
    auto chain_of = [&](int64_t unit) { return internal::ScanChain(workspace.data() + unit * chain_bytes, state_bytes); };
    for (int64_t unit = 0; unit < units; ++unit) chain_of(unit).Clear(blocks);
    auto scan_block = [&](int64_t task, int w) {
      const int64_t unit = task / blocks;
      internal::ScanWorker& worker = workers[static_cast<size_t>(w)];
      select(worker, unit);
      internal::ScanBlock(worker, chain_of(unit), call.n, plan.block, task % blocks, state_bytes);
      if (plan.stream) StreamFence();
    };
    WorkAssistInOrder<TwoSidedOrder>(pool, plan.threads, scan_block, units, blocks, plan.order);
    return;
  }
  const int64_t grain = plan.rows_per_task;
  WorkAssist(pool, CeilDiv(units, grain), plan.threads, [&](int64_t task, int w) {
    internal::ScanWorker& worker = workers[static_cast<size_t>(w)];
    const int64_t first = task * grain, last = std::min(units, first + grain);
    if (plan.periodic) {
      worker.ScanPeriodic(first, last);
    } else {
      for (int64_t unit = first; unit < last; ++unit) {
        if (unit == first || strips > 1 || backwards) {
          select(worker, unit);
        } else {
          worker.Next();
        }
        worker.WholeRow();
      }
    }
    if (plan.stream) StreamFence();
  });
}

}  // namespace jaxprims
