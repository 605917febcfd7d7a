// How a reduction is cut into tasks: a pure function of the problem and the machine. What an answer's bits depend on (the leaves
// of the tree of combinations) depends on shapes alone; who does how many of them depends on the number of threads.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "hist_plan.h"
#include "numbers.h"
#include "ordered_kernel.h"

namespace jaxprims {

struct ReduceProblem {
  int64_t n = 0;            // elements of a row
  int64_t rows = 1;         // across: bundles of `lanes` rows
  int64_t joined = 1;       // consecutive rows that lie end to end and share their uniforms; spaced: that are equally far apart
  int64_t lanes = 1;        // across: rows side by side
  int64_t slots = 1;        // of the state
  int64_t state_bytes = 4;  // of its slots together
  int64_t bytes = 0;        // that are read for an element
  int64_t work = 1;         // what a slot of an element costs, in that of a sum
  bool across = false;
  bool init = false;
  bool folds_rows = false;  // the kernel folds many rows at once, however long; across: of few steps
  bool spaced = false;      // rows lie as far apart as each array, or uniform, has it
  int64_t inner = 1;        // spaced: and every so many of them, which a task does not cut
};

struct ReducePlan {
  bool periodic = false;  // many rows at once: short ones, a lane for each, or what the kernel folds; across: few steps
  bool spaced = false;    // and they are
  bool far = false;       // what is read comes from memory
  int64_t leaf = 1;       // elements (across: steps) that one call of the kernel reduces
  int64_t block = 1;      // of a task: 2^k leaves
  int64_t strip = 1;      // lanes of a task
  int64_t grain = 1;      // blocks (of a strip each, or whole rows) that a task takes, one behind the other
  int threads = 1;

  int variant() const { return (periodic ? 1 : 0) | (spaced ? 4 : 0); }
};

inline constexpr int64_t kReducePerThread = 96 << 10;  // scalars of a sum; below this a second thread costs more than it saves
inline constexpr int64_t kReduceLeaf = 8 << 10;        // a vector's lane adds some hundred numbers before they are added pairwise
inline constexpr int64_t kReduceLeafAcross = 256;      // there a lane is a row
inline constexpr int64_t kReduceTask = 64 << 10;       // scalars of a task, about
inline constexpr int64_t kReduceStrip = 24 << 10;      // bytes of the states of a strip: they stay in the first-level cache
inline constexpr int64_t kReduceStripLeast = 128;      // lanes of a strip that is cut only to keep threads busy
inline constexpr int64_t kReduceTasksPerThread = 4;    // so that a thread that is slowed down leaves work for the others
inline constexpr int64_t kReducePeriod = 256;          // longest row that a lane takes
inline constexpr int64_t kReduceRows = 64;             // joined, of the periodic form
inline constexpr int64_t kReduceFewRows = 16;          // the same where the kernel folds them, up to kReducePeriod elements each
inline constexpr int64_t kReduceSpaced = 16;           // shortest row of the spaced form: it fills a vector
inline constexpr int64_t kReduceSteps = 8;             // across, at a time: prefetchers follow so many streams
inline constexpr int64_t kReduceNear = 4;              // a core's part of the last-level cache, which keeps what was just read
inline constexpr int64_t kReduceTogether = 4096;       // elements that stay in the first-level cache

// Lanes of a strip: all, since whole rows are read fastest, or as many as keep their states in the first-level cache, evenly.
inline int64_t EvenStrip(int64_t lanes, int64_t state_bytes) {
  return RoundUp(CeilDiv(lanes, CeilDiv(lanes * state_bytes, kReduceStrip)), 16);
}

inline ReducePlan MakeReducePlan(const ReduceProblem& p, const Machine& m) {
  ReducePlan plan;
  const int64_t n = std::max<int64_t>(1, p.n), lanes = std::max<int64_t>(1, p.lanes), rows = std::max<int64_t>(1, p.rows);
  const auto work = static_cast<double>(rows * lanes * n * p.slots) * static_cast<double>(p.work);
  plan.threads = ThreadsFor(work, kReducePerThread, m);
  const int64_t wanted = plan.threads == 1 ? 1 : kReduceTasksPerThread * plan.threads;

  const bool few_steps = p.folds_rows && (n <= kReduceSteps || n * lanes <= kReduceTogether) && n <= kReduceLeafAcross;
  const bool even = !p.spaced || (p.folds_rows && n >= kReduceSpaced);
  const bool many = p.joined >= (p.folds_rows && n <= kReducePeriod ? kReduceFewRows : kReduceRows);
  const bool short_rows = n <= (p.folds_rows ? kReduceLeaf : kReducePeriod) && many && even;
  plan.periodic = !p.init && p.n >= 1 && (p.across ? few_steps : short_rows);
  plan.spaced = plan.periodic && p.spaced;
  plan.far = rows * lanes * n * p.bytes > m.l3 / kReduceNear;
  plan.leaf = plan.block = plan.periodic ? n : p.across ? kReduceLeafAcross : kReduceLeaf;
  if (plan.periodic && !p.across) {
    plan.grain = RoundUp(std::clamp<int64_t>(kReduceTask / n, 1, CeilDiv(rows, wanted)), p.inner);
    return plan;
  }
  plan.strip = plan.periodic ? lanes : EvenStrip(lanes, p.state_bytes);
  auto tasks = [&] { return rows * CeilDiv(lanes, plan.strip) * CeilDiv(n, plan.block); };
  while (tasks() < wanted && plan.strip >= 2 * kReduceStripLeast) plan.strip /= 2;
  plan.strip = std::min(plan.strip, lanes);
  while (plan.block < n && 2 * plan.block * plan.strip * p.slots <= kReduceTask && tasks() >= 2 * wanted) plan.block *= 2;
  const int64_t piece = std::min(n, plan.block) * plan.strip * p.slots;
  plan.grain = std::clamp<int64_t>(kReduceTask / piece, 1, std::max<int64_t>(1, tasks() / wanted));
  return plan;
}

// States that a fold of `states` in pairs of neighbours keeps at once.
inline int64_t FoldLevels(int64_t states) {
  return static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(1, states))));
}

// Blocks of a row, one at least.
inline int64_t BlocksOf(const ReduceProblem& p, const ReducePlan& plan) { return std::max<int64_t>(1, CeilDiv(p.n, plan.block)); }

// Bytes of the memory of a worker: the states of a fold, and init's before it.
inline int64_t WorkerBytes(const ReduceProblem& p, const ReducePlan& plan) {
  if (plan.periodic) return 0;
  const int64_t states = std::max(CeilDiv(std::min(p.n, plan.block), plan.leaf), BlocksOf(p, plan));
  return (1 + FoldLevels(states)) * StateBytes(p.slots, plan.strip);
}

// Bytes of workspace that a plan needs: all workers, then the blocks' aggregates where a row has several.
inline int64_t WorkspaceBytes(const ReduceProblem& p, const ReducePlan& plan) {
  if (p.rows * p.lanes == 0) return 0;
  const int64_t blocks = plan.periodic ? 1 : BlocksOf(p, plan), strips = CeilDiv(p.lanes, plan.strip);
  return plan.threads * WorkerBytes(p, plan) + (blocks > 1 ? p.rows * blocks * strips * StateBytes(p.slots, plan.strip) : 0);
}

}  // namespace jaxprims
