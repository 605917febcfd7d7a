// Which strategy: a pure function of the problem and the machine.
//
// The time-space trade-off of Henriksen et al. 2020, III, on a CPU: M subhistograms avoid conflicts between threads, S bin ranges
// keep the memory in use small, and every element is looked at S times. A CPU core has no use for atomics: C copies interleaved
// inside one subhistogram do for neighbouring elements what the paper's `tid % M` does for neighbouring threads.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "numbers.h"

namespace jaxprims {

struct Machine {
  int threads = 1;
  int64_t l1 = 32 << 10;
  int64_t l2 = 1 << 20;
  int64_t l3 = 32 << 20;
  double byte_l3 = 0.05;  // nanoseconds, of a thread beside others

  bool operator==(const Machine&) const = default;
};

// Rows for a bin below which to fill and combine subhistograms costs more than they gain, for each so many bytes of a row, within
// these bounds: where threads own bins each looks at all elements, and fetches the lines of all short rows.
inline constexpr int64_t kFewRowBytes = 16, kFewestRows = 2, kRowsOfFew = 8;

struct HistProblem {
  int64_t elements = 0;  // N, of each histogram
  int64_t batch = 1;
  int64_t bins = 0;            // H, of the largest histogram when several are made in one pass
  int64_t bin_bytes = 4;       // of one bin in a subhistogram, all histograms of the pass together
  int64_t updates = 1;         // from one element, all histograms together
  int64_t slots = 1;           // scalars that are updated together, at most
  int64_t lanes = 1;           // scalars in an array-valued bin that are updated on their own
  int64_t work = 0;            // what an element costs beside updates by a cheap operator, in these
  bool in_place = true;        // the result can be updated where it lies: it has the accumulator's type
  bool sorted = false;         // by index
  bool must_in_place = false;  // no identity is known: bins can only start from dest
  bool map = false;            // each element has a bin of its own, its position: nothing is filled, or read, or made twice
  bool chooses = false;        // an operator gives one of its arguments, whole: a bin is replaced or stays

  bool few() const {
    return elements * updates < bins * (lanes > 1 ? std::clamp(bin_bytes / kFewRowBytes, kFewestRows, kRowsOfFew) : 1);
  }
};

struct HistPlan {
  int64_t subhistograms = 1;  // M, for each histogram of the batch; fixed by the problem and the number of threads, not by timing
  int64_t ranges = 1;         // S
  int64_t copies = 1;         // C
  bool soa = false;           // the result's own arrays are the table
  bool prefetch = false;
  bool wide = false;     // byte offsets into a subhistogram pass 2^31
  bool settled = false;  // bins of operators that choose seldom change: by a branch, which is predicted
  int threads = 1;

  bool ranged() const { return soa || ranges > 1; }
  int variant() const {
    int log = 0;
    while ((int64_t{1} << log) < copies) ++log;
    return (soa ? 1 : 0) | (ranged() ? 2 : 0) | (prefetch ? 4 : 0) | (wide ? 8 : 0) | log << 4 | (settled ? 128 : 0);
  }
};

inline constexpr int64_t kUpdatesPerThread = 32 << 10;  // below this a second thread costs more than it saves
// A row of lanes takes as long as two updates of scalars, and one for each so many bytes.
inline constexpr int64_t kRowUpdate = 2, kRowBytes = 32;
inline constexpr int64_t kMaxCopies = 8;
inline constexpr int64_t kStructTables = 4;    // last-level caches that one table of structs may take
inline constexpr int64_t kLeastRun = 6;        // elements of a sorted index that are worth a look for runs
inline constexpr int64_t kSettled = 64;        // updates of a bin, most of which change nothing
inline constexpr int64_t kPartsPerThread = 4;  // so that a thread that is slowed down leaves work for the others

// Threads for so much work, of which each should have a part.
inline int ThreadsFor(double work, int64_t part, const Machine& m) {
  return static_cast<int>(std::clamp<double>(work / static_cast<double>(part), 1, m.threads));
}

// The best of so many values changes a few times; but what a branch waits for has to be near.
inline bool Settled(const HistProblem& p, const HistPlan& plan) {
  return p.chooses && !plan.prefetch && !plan.ranged() &&
         p.elements * p.updates / std::max<int64_t>(1, plan.subhistograms * plan.copies * p.bins) >=
             kSettled * (p.slots > 1 ? 1 : 2);
}

inline HistPlan MakePlan(const HistProblem& p, const Machine& m) {
  HistPlan plan;
  const int64_t each = p.lanes > 1 ? kRowUpdate + p.bin_bytes / kRowBytes : 1;
  const int64_t work = std::max<int64_t>(1, p.elements * p.updates * each);
  const int64_t table = (p.bins + 1) * p.bin_bytes;
  const int64_t fill = p.bins * each / (table > m.l2 ? 1 : 4);
  const int64_t total = p.batch * (work + fill);
  // Few elements for many bins: a subhistogram would cost more than the updates. Touch only what is updated; but then every
  // thread reads all indices.
  const bool few = p.few();
  plan.threads = ThreadsFor(static_cast<double>(total) + static_cast<double>(p.batch * p.elements) * static_cast<double>(p.work),
                            few && !p.sorted && !p.map && work > fill ? 2 * kUpdatesPerThread : kUpdatesPerThread, m);
  const int64_t batch = std::max<int64_t>(1, p.batch);
  if (p.map) {
    plan.soa = true;
    plan.ranges =
        plan.threads == 1 ? 1 : std::clamp<int64_t>(kPartsPerThread * plan.threads / batch, 1, std::max<int64_t>(1, p.bins));
    return plan;
  }
  const int64_t threads = CeilDiv(plan.threads, batch);  // on each histogram

  // A processor looks past some ten updates by a cheap operator, rows most easily (one address for many numbers), and starts what
  // the next ones read by itself.
  plan.prefetch = table > m.l2 && !p.sorted && (p.lanes == 1 || p.work > 0);
  // M subhistograms past the last-level cache: every thread owns a range of the bins instead.
  const bool past_cache = threads * table > m.l3 / 4 * 3;
  // Sorted indices that change all the time: nothing is gained by a subhistogram, and threads own their elements' bins.
  const bool brief = p.sorted && p.in_place && threads > 1 && p.elements * p.updates < kLeastRun * p.bins;
  if (p.must_in_place || few || past_cache || brief) {
    // A tuple's leaves are separate arrays in the result: one table of structs costs less, while it is not too much memory.
    const bool structs = p.slots > 1 && !few && !p.sorted && table <= kStructTables * m.l3;
    plan.soa = p.must_in_place || (p.in_place && !structs);
    plan.ranges = std::clamp<int64_t>(threads, 1, std::max<int64_t>(1, p.bins));
    plan.wide = !plan.soa && table >= (int64_t{1} << 31);
    return plan;
  }
  plan.wide = table >= (int64_t{1} << 31);
  // More parts than threads only where filling and combining them is cheap beside the updates.
  plan.subhistograms = threads;
  const int64_t parts = kPartsPerThread * threads, least = p.chooses ? 2 * kSettled : 16;
  if (threads > 1 && p.bins * each * parts * least < work) plan.subhistograms = parts;
  if (p.lanes == 1 && !plan.wide) {
    while (plan.copies < kMaxCopies && 2 * plan.copies * table <= m.l1 / 8 &&
           2 * plan.copies * p.bins * plan.subhistograms * 8 <= work) {
      plan.copies *= 2;
    }
  }
  plan.settled = Settled(p, plan);
  // Past an update that takes long, or chooses, it looks no further: from a part of the second-level cache on.
  if ((p.work > 0 || p.chooses) && p.lanes == 1 && !p.sorted && !plan.settled) plan.prefetch = table > m.l2 / 4;
  return plan;
}

// Subhistograms that exist at once: M, or one for each worker, which uses it for one member of the batch after the other.
inline int64_t Tables(const HistPlan& plan) {
  if (plan.soa) return 0;
  return plan.subhistograms == 1 && plan.ranges == 1 ? plan.threads : plan.subhistograms;
}

inline constexpr int64_t kMostForced = 4096;  // subhistograms, or ranges

// The plan with M, S, C, soa and prefetch as given, as far as the problem allows: for tests and benchmarks.
inline HistPlan Forced(const HistProblem& p, HistPlan plan, int64_t subhistograms, int64_t ranges, int64_t copies, bool soa,
                       bool prefetch) {
  plan.soa = (soa && p.in_place) || p.must_in_place || p.map;
  plan.ranges = std::clamp<int64_t>(ranges, 1, kMostForced);
  plan.subhistograms = plan.soa ? 1 : std::clamp<int64_t>(subhistograms, 1, kMostForced);
  // Neither ranged kernels nor array-valued bins know copies.
  const bool alone = plan.ranged() || p.lanes > 1;
  plan.copies =
      alone ? 1 : static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::clamp<int64_t>(copies, 1, kMaxCopies))));
  plan.prefetch = prefetch;
  plan.wide = !plan.soa && (p.bins + 1) * p.bin_bytes * plan.copies >= (int64_t{1} << 31);
  plan.settled = Settled(p, plan);
  return plan;
}

// forced: empty, or M, S, C, soa and prefetch.
inline HistPlan PlanOf(const HistProblem& p, const Machine& m, std::span<const int64_t> forced) {
  const HistPlan plan = MakePlan(p, m);
  return forced.empty() ? plan : Forced(p, plan, forced[0], forced[1], forced[2], forced[3] != 0, forced[4] != 0);
}

// Bytes of workspace that a plan needs, at most: part of the promise that a call uses a bounded amount beyond its input and
// output. Every histogram has an update at least, so there are no more gaps between them than updates.
inline int64_t WorkspaceBytes(const HistProblem& p, const HistPlan& plan) {
  return Tables(plan) * ((p.bins + 1) * p.bin_bytes * plan.copies + 128 * p.updates);
}

}  // namespace jaxprims
