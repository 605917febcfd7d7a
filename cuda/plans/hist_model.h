// The GPU model of Henriksen et al. 2020: how many subhistograms M, in how many passes S, in which memory. Plain functions of
// sizes: the launcher and Python ask them before a launch, and the device itself once it has sampled a race factor.
//
// The names are the paper's (figure 2): N updates, H bins, a race factor RF, T threads of which C cooperate on one of M
// subhistograms, S passes of Hchk bins each.
#pragma once

#include "host_device.h"

namespace jp {

constexpr double kRaceExpansion = 0.75;  // equation 4: how far a race factor expands the cache
constexpr i64 kMinBinsPerThread = 2;     // equation 5: at least so many bins for each thread of a group
constexpr double kPartOfL2 = 0.4;        // equation 5: what is left of L2 for histograms
constexpr i64 kLockBytes = 4;
constexpr i64 kRaceGroups = 8;  // that are sampled, at most

// Clocks to another block's shared memory and back, and to the L2 cache (H800: Luo et al. 2024). An update waits for nothing else
// where it is one trip; sums of floats are two in a cluster, a read and a compare-and-swap, but one to L2, which adds itself.
constexpr i64 kClusterTrip = 180, kL2Trip = 264;

// How a bin is updated: a hardware atomic, a compare-and-swap loop, or under a lock (section III-B).
enum AtomicClass : i64 { kClassHdw, kClassCas, kClassXcg };

struct ModelDevice {
  i64 shared_bytes;  // L: of a block
  i64 l2_bytes;
  i64 l2_line;  // bytes that an update brings into L2
  i64 threads;  // T_hw: at once
  i64 block;    // B: threads of a block
};

struct ModelElement {
  i64 bytes;   // of a bin in all arrays that hold a part of it
  i64 arrays;  // how many these are
  i64 atomic;  // AtomicClass
};

// Of each block in shared memory (section III-C), or of the whole grid in global memory (section III-D).
struct ModelChoice {
  i64 subhistograms;  // M
  i64 passes;         // S; 0: not even one bin fits
  i64 chunk;          // Hchk
  i64 cooperation;    // C
};

// What a histogram's kernels work by.
struct HistWork {
  i64 blocks;         // K: on each member of the batch
  i64 subhistograms;  // M: of a block in shared memory, of a member in global memory
  i64 passes;         // S
};

JP_HOST_DEVICE constexpr i64 CeilDiv(i64 a, i64 b) { return (a + b - 1) / b; }
JP_HOST_DEVICE constexpr i64 AtLeast1(i64 x) { return x > 1 ? x : 1; }
template <class T>
JP_HOST_DEVICE constexpr T Least(T a, T b) {
  return b < a ? b : a;
}
template <class T>
JP_HOST_DEVICE constexpr T Greatest(T a, T b) {
  return a < b ? b : a;
}
// Of a number that is not negative.
JP_HOST_DEVICE constexpr i64 Ceil(double x) {
  const i64 floor = static_cast<i64>(x);
  return floor + (static_cast<double>(floor) < x ? 1 : 0);
}

// elsize: the bytes of one bin, its lock included.
JP_HOST_DEVICE constexpr i64 ElementSize(const ModelElement& e) { return e.bytes + (e.atomic == kClassXcg ? kLockBytes : 0); }

// elsize_avg: the bytes of one bin in one array, where the locks are an array of their own (section III-D).
JP_HOST_DEVICE constexpr double AverageSize(const ModelElement& e) {
  return static_cast<double>(ElementSize(e)) / static_cast<double>(e.arrays + (e.atomic == kClassXcg ? 1 : 0));
}

// Section V-A: beyond so many passes in shared memory, global memory is faster.
JP_HOST_DEVICE constexpr i64 MaxSharedPasses(i64 atomic) { return atomic == kClassHdw ? 3 : atomic == kClassCas ? 4 : 6; }

// Equations 1 to 3: the most subhistograms that fit a block's shared memory, in passes if not even one does.
JP_HOST_DEVICE constexpr ModelChoice SharedChoice(const ModelDevice& d, i64 n, i64 bins, const ModelElement& e) {
  const double elements = static_cast<double>(n), size = static_cast<double>(ElementSize(e));
  const double blocks = static_cast<double>(CeilDiv(Least(d.threads, n), d.block));
  const double m0 = Least(static_cast<double>(d.shared_bytes) / size, elements / blocks) / static_cast<double>(bins);
  const i64 m = m0 < static_cast<double>(d.block) ? AtLeast1(static_cast<i64>(m0)) : d.block;
  const i64 length = d.shared_bytes / (ElementSize(e) * m);
  if (length == 0) return {m, 0, 0, CeilDiv(d.block, m)};
  const i64 passes = CeilDiv(bins, length);
  return {m, passes, CeilDiv(bins, passes), CeilDiv(d.block, m)};
}

// Equation 4: how much larger the L2 cache looks to a histogram of which only H / RF bins are active.
//
// The paper prints min(1, line / elsize_avg). Its text (an active bin may waste all the rest of its line) and its Table I are
// those of max: a bin narrower than a line expands the cache by less.
JP_HOST_DEVICE constexpr double RaceExpansion(const ModelDevice& d, double race_factor, const ModelElement& e) {
  return Greatest(1.0, kRaceExpansion * race_factor / Greatest(1.0, static_cast<double>(d.l2_line) / AverageSize(e)));
}

// --- what subhistograms of global memory cost, and save: not the paper's -------------------------------------------------------

// Clocks for which an update keeps others of its bin waiting: of a hardware atomic 20, as XLA's scatter took 12 ms for 2^27 into
// 1,000 bins (125 sectors of L2) on H200; else ways to L2 and back: a compare-and-swap one, a lock's taking, read and return
// three.
JP_HOST_DEVICE constexpr double Turn(i64 atomic) {
  return atomic == kClassHdw ? 20 : static_cast<double>(kL2Trip) * (atomic == kClassCas ? 1 : 3);
}

// Clocks of a launch, and bytes that a multiprocessor's 2,048 threads move in one.
constexpr double kLaunchClocks = 4000, kBytesPerClock = 32;

// M that pay: bins that are hit at all get N RF / H updates, which wait for each other's turns; M copies are a launch more, that
// combines them, and all their entries written once and read once. They save no more than the waiting.
JP_HOST_DEVICE constexpr i64 CopiesThatPay(const ModelDevice& d, i64 n, i64 bins, const ModelElement& e, double race_factor) {
  const double h = static_cast<double>(AtLeast1(bins));
  const double waiting = Turn(e.atomic) * Greatest(1.0, static_cast<double>(n) * race_factor / h);
  const double bytes = 2.0 * h * static_cast<double>(e.bytes);
  const double moved = Greatest(1.0, static_cast<double>(d.threads) / 2048.0) * kBytesPerClock;
  const double most = (waiting - kLaunchClocks) * moved / bytes;
  return most < 1e6 ? AtLeast1(static_cast<i64>(most)) : 1'000'000;
}

// Equations 5 and 6: as many subhistograms and as few passes as keep the active bins in the L2 cache; of those, what pays.
JP_HOST_DEVICE constexpr ModelChoice GlobalChoice(const ModelDevice& d, i64 n, i64 bins, const ModelElement& e,
                                                  double race_factor) {
  const i64 threads = Least(d.threads, n);
  const double cache = kPartOfL2 * static_cast<double>(d.l2_bytes) * RaceExpansion(d, race_factor, e);
  const i64 c_max = Least(threads, AtLeast1(bins / kMinBinsPerThread));
  const i64 m_min = AtLeast1(threads / c_max);
  const i64 passes = AtLeast1(Ceil(static_cast<double>(m_min) * static_cast<double>(bins) * AverageSize(e) / cache));
  const i64 chunk = CeilDiv(bins, passes);
  const double k_max = Least(cache / static_cast<double>(ElementSize(e)), static_cast<double>(n)) / static_cast<double>(threads);
  const double u = e.atomic == kClassHdw ? 2.0 : 1.0;  // hardware atomics bear twice the cooperation
  const i64 c = Least(threads, AtLeast1(static_cast<i64>(u * static_cast<double>(chunk) / k_max)));
  const i64 wanted = AtLeast1(threads / c), most = CopiesThatPay(d, n, bins, e, race_factor);
  return {Least(wanted, most), passes, chunk, wanted > most ? AtLeast1(threads / most) : c};
}

// --- the race factor (section III-D): H / RF bins are hit by H consecutive updates, on average of some groups of them ---------

// Updates of a group, and the number of groups.
JP_HOST_DEVICE constexpr i64 RaceGroupSize(i64 n, i64 bins) { return Least(n, bins); }
JP_HOST_DEVICE constexpr i64 RaceGroups(i64 n, i64 bins) { return Least(kRaceGroups, n / AtLeast1(RaceGroupSize(n, bins))); }
// Where the group starts.
JP_HOST_DEVICE constexpr i64 RaceStart(i64 n, i64 size, i64 groups, i64 group) {
  return (n - size) * group / AtLeast1(groups - 1);
}
// distinct: bins that a group hits, summed over the groups.
JP_HOST_DEVICE constexpr double RaceFactor(i64 size, i64 groups, i64 distinct) {
  const double average = static_cast<double>(distinct) / static_cast<double>(AtLeast1(groups));
  return Greatest(1.0, static_cast<double>(size) / Greatest(average, 1.0));
}

// --- what launcher and kernels agree on ---------------------------------------------------------------------------------------

constexpr int kGlobalThreads = 256, kSampleThreads = 256, kFillThreads = 256, kFoldThreads = 128;
constexpr i64 kMaxFolders = 32;

// The first bin of a pass.
JP_HOST_DEVICE constexpr i64 PassBin(i64 bins, i64 passes, i64 pass) { return bins / passes * pass + Least(bins % passes, pass); }

// Threads that fold the tables of one entry together: as many as are idle otherwise.
JP_HOST_DEVICE constexpr i64 FoldersOf(i64 entries, i64 tables, i64 threads) {
  i64 folders = 1;
  while (2 * folders <= kMaxFolders && 4 * folders <= tables && 2 * folders * entries <= threads) folders *= 2;
  return folders;
}

}  // namespace jp
