// How a scan is cut and in which order its blocks are claimed: a pure function of the problem and the machine.
//
// What decides how elements are associated, and so a result's bits, is the block's length and the kernel's variant: they depend
// on shapes and element sizes alone. The order, strips, tasks, streaming and the number of threads depend on the machine too, and
// change no bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "hist_plan.h"
#include "numbers.h"
#include "ordered_kernel.h"

namespace jaxprims {

// Orders in which blocks are claimed (de Kluijver 2024, 3.1 to 3.3); scan_order.h has them.
enum class ScanOrder : uint8_t {
  kAssisting = 0,       // the first thread row-wise, those that join column-wise
  kRowWise = 1,         // all row-wise
  kColumnWise = 2,      // all column-wise
  kSequentialRows = 3,  // a row is one thread's
  kAnyOrder = 4,        // of a map, whose blocks need nothing of each other
};

struct ScanProblem {
  int64_t n = 0;                          // elements of a row
  int64_t rows = 1;                       // of the batch; across: bundles of `lanes` rows
  int64_t lanes = 1;                      // across: rows side by side
  int64_t in_bytes = 4;                   // of one element of all operands
  std::vector<int64_t> leaf_bytes = {4};  // of one element of each result
  int64_t slots = 1;                      // of the state
  int64_t work = 1;                       // what a slot of an element costs, in that of a sum
  bool across = false;
  bool large = false;    // elements are arrays in memory, of `slots` words
  bool map = false;      // the operator keeps its second operand: each result is made of its own element
  int64_t together = 1;  // of a map: elements that are made at once
  bool reverse = false;
  bool in_place = false;    // a result lies where an operand does
  bool contiguous = false;  // rows lie one behind the other in every operand, and none starts from an init
  bool aligned = true;      // every result starts at a cache line

  int64_t OutBytes() const { return Sum(leaf_bytes); }
};

struct ScanPlan {
  ScanOrder order = ScanOrder::kSequentialRows;
  int64_t block = kScanStep;  // elements of a row's block
  int64_t strip = 1;          // across: lanes that are scanned together
  int64_t rows_per_task = 1;  // of rows that are one thread's
  bool periodic = false;
  bool stream = false;  // non-temporal stores
  int threads = 1;

  int variant() const { return (periodic ? 1 : 0) | (stream ? 2 : 0); }
};

// A block's input and output: small enough to stay in L2 for a second pass, large enough that going on elsewhere in memory does
// not show (at 64 KB it costs a third), and of a row that is not long enough for that a part that leaves work for many threads.
inline constexpr int64_t kScanBlockBytes = 512 << 10, kScanBlockBytesLeast = 64 << 10, kScanBlocks = 64;
inline constexpr int64_t kScanTaskBytes = 128 << 10;  // of short rows that are scanned one after the other
inline constexpr int64_t kScanPerThread = 32 << 10;   // scalars; below this a second thread costs more than it saves
inline constexpr int64_t kLargePerThread = 8 << 10;   // the same of words of large elements, whose operators are longer
inline constexpr int64_t kStreamBytes = 64 << 20;     // results past this leave the cache, whatever a machine says of its size
inline constexpr int64_t kCacheLine = 64;
inline constexpr int64_t kPeriodicElements = 256;  // rows up to this are short
inline constexpr int64_t kPeriodicRows = 8;        // from so many on they are scanned at once
inline constexpr int64_t kLanesAlone = 512;        // so many rows side by side keep all threads busy without a chain
inline constexpr int64_t kLargeAlone = 32;         // the same of large elements
inline constexpr int64_t kStripLanes = 64;         // a strip is a multiple of this: whole cache lines
inline constexpr int64_t kWideStrip = 4096;        // lanes of a strip that reads memory as fast as whole rows do
inline constexpr int64_t kStripBytes = 256 << 10;  // of its state, in L2
inline constexpr int64_t kTasksPerThread = 8;      // so that a thread that is slowed down leaves work for the others

inline constexpr int64_t kMostForcedThreads = 256;

inline int64_t BlocksOf(const ScanProblem& p, const ScanPlan& plan) { return CeilDiv(p.n, plan.block); }

inline int64_t StripsOf(const ScanProblem& p, const ScanPlan& plan) { return CeilDiv(p.lanes, plan.strip); }

namespace internal {

// Whether every whole vector of a result is written where a cache line, or a part of its size, starts: what non-temporal stores
// want. (Vectors are written from a row's first element on, in reversed order from its last.)
inline bool Streamable(const ScanProblem& p, const ScanPlan& plan) {
  if (p.in_place || !p.aligned) return false;
  const bool one = plan.periodic || (p.rows == 1 && !p.across);  // from end to end
  return std::all_of(p.leaf_bytes.begin(), p.leaf_bytes.end(), [&](int64_t leaf) {
    const int64_t bytes = leaf * (p.across ? p.lanes : one ? p.rows * p.n : p.n);
    return (one && !p.reverse) || bytes % kCacheLine == 0;
  });
}

// All that depends on the machine.
inline void Distribute(const ScanProblem& p, const Machine& m, int threads, ScanPlan& plan) {
  const int64_t total = p.n * p.rows * p.lanes;
  plan.threads = threads;
  plan.stream = total * p.OutBytes() > std::min(m.l3, kStreamBytes) && Streamable(p, plan);
  plan.strip = std::max<int64_t>(1, p.lanes);
  const int64_t blocks = BlocksOf(p, plan), wanted = plan.threads == 1 ? 1 : kTasksPerThread * plan.threads;
  if (p.across && blocks == 1) {
    // As wide as can be: a strip a thread, or two where they are still wide.
    const int64_t strips = CeilDiv(plan.threads, std::max<int64_t>(1, p.rows));
    const int64_t parts = plan.threads > 1 && p.lanes >= 2 * strips * kWideStrip ? 2 * strips : strips;
    const int64_t widest = std::max<int64_t>(kStripLanes, kStripBytes / (8 * p.slots) / kStripLanes * kStripLanes);
    plan.strip = std::min({plan.strip, RoundUp(CeilDiv(plan.strip, parts), kStripLanes), widest});
  }
  const int64_t rows = p.rows * StripsOf(p, plan);
  const bool alone = blocks <= 1 || plan.threads == 1 || rows >= 2 * wanted || rows * blocks >= int64_t{1} << 32;
  plan.order = alone ? ScanOrder::kSequentialRows : p.map ? ScanOrder::kAnyOrder : ScanOrder::kAssisting;
  const int64_t elements = std::max<int64_t>(1, p.n * plan.strip);
  const int64_t fit = std::max<int64_t>(1, kScanTaskBytes / (elements * std::max<int64_t>(1, p.in_bytes + p.OutBytes())));
  plan.rows_per_task = std::clamp<int64_t>(CeilDiv(rows, wanted), 1, fit);
  if (plan.periodic) plan.rows_per_task = RoundUp(plan.rows_per_task, kCacheLine);  // tasks share no cache line
}

inline int ScanThreads(const ScanProblem& p, const Machine& m) {
  const int64_t each = p.large ? kLargePerThread : kScanPerThread;
  return ThreadsFor(static_cast<double>(p.n * p.rows * p.lanes * p.slots) * static_cast<double>(p.work), each, m);
}

}  // namespace internal

inline ScanPlan MakeScanPlan(const ScanProblem& p, const Machine& m) {
  ScanPlan plan;
  const int64_t step = std::max<int64_t>(1, (p.in_bytes + p.OutBytes()) * p.lanes);
  const int64_t block = std::clamp<int64_t>(p.n * step / kScanBlocks, kScanBlockBytesLeast, kScanBlockBytes) / step;
  if (p.across) {
    // A row of one block is combined once, of several blocks twice: what one thread does on any machine is one block.
    const bool one = p.large && p.n * p.rows * p.lanes * p.slots < 2 * kLargePerThread;
    const bool alone = one || p.rows * p.lanes >= (p.large ? kLargeAlone : kLanesAlone);
    plan.block = std::max(p.together, alone && !p.map ? p.n : block / p.together * p.together);
  } else {
    plan.block = std::max<int64_t>(1, block / kScanStep) * kScanStep;
    plan.periodic = p.contiguous && p.rows >= kPeriodicRows && p.n >= 1 && p.n <= kPeriodicElements;
  }
  internal::Distribute(p, m, internal::ScanThreads(p, m), plan);
  return plan;
}

// The plan with what is not -1 as given, as far as the problem allows: for tests and benchmarks.
inline ScanPlan ForcedScan(const ScanProblem& p, const Machine& m, int64_t order, int64_t block, int64_t periodic, int64_t stream,
                           int64_t threads) {
  ScanPlan plan = MakeScanPlan(p, m);
  if (block >= 0) plan.block = p.across ? std::max<int64_t>(1, block) : std::max<int64_t>(1, block / kScanStep) * kScanStep;
  if (periodic >= 0) plan.periodic = periodic != 0 && p.contiguous && !p.across && p.n >= 1 && p.n <= kScanStep;
  internal::Distribute(p, m, threads > 0 ? static_cast<int>(std::min(threads, kMostForcedThreads)) : plan.threads, plan);
  if (stream >= 0) plan.stream = stream != 0 && internal::Streamable(p, plan);
  if (order >= 0 && order <= (p.map ? 4 : 3)) plan.order = static_cast<ScanOrder>(order);
  if (plan.periodic || BlocksOf(p, plan) <= 1 || plan.threads == 1) plan.order = ScanOrder::kSequentialRows;
  return plan;
}

// forced: empty, or order, block, periodic, stream and threads, -1 for what is not forced.
inline ScanPlan PlanOf(const ScanProblem& p, const Machine& m, std::span<const int64_t> forced) {
  return forced.empty() ? MakeScanPlan(p, m) : ForcedScan(p, m, forced[0], forced[1], forced[2], forced[3], forced[4]);
}

// Bytes of the descriptor of a block: the line of its status, its aggregate, the prefix of the next one.
inline int64_t DescriptorBytes(int64_t state_bytes) { return kCacheLine + 2 * state_bytes; }

// Is there a chain of blocks that need each other, some of them another thread's?
inline bool Chained(const ScanPlan& plan) {
  return plan.order != ScanOrder::kSequentialRows && plan.order != ScanOrder::kAnyOrder;
}

// Bytes of the descriptors of a row's strip; none where nothing is chained.
inline int64_t ChainBytes(const ScanProblem& p, const ScanPlan& plan) {
  if (!Chained(plan)) return 0;
  return BlocksOf(p, plan) * DescriptorBytes(StateBytes(p.slots, plan.strip));
}

// Bytes of the states of a worker.
inline int64_t WorkerBytes(const ScanProblem& p, const ScanPlan& plan) { return 2 * StateBytes(p.slots, plan.strip); }

// Bytes of workspace that a plan needs: all chains, then all workers.
inline int64_t WorkspaceBytes(const ScanProblem& p, const ScanPlan& plan) {
  if (p.n * p.rows * p.lanes == 0) return 0;
  return p.rows * StripsOf(p, plan) * ChainBytes(p, plan) + plan.threads * WorkerBytes(p, plan);
}

}  // namespace jaxprims
