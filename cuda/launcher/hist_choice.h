// Which histogram kernels, on which grid: a pure function of the device and the sizes.
//
// Most in one member of the batch after the other, as Henriksen et al. 2020 have it (III-C, III-D, IV-C, V-A):
//   tiny      many small histograms: a few lanes of a warp on each, no K, M, S
//   shared    M subhistograms in each block's shared memory, K blocks on each of S passes
//   cluster   one histogram over the shared memory of R blocks, K clusters on it
//   global    M subhistograms in L2, all blocks on all of them, S passes; the device itself chooses M and S by the race factor
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "hist_model.h"
#include "hist_shared_plan.h"
#include "launch.h"
#include "shapes.h"

namespace jaxprims::cuda {

inline constexpr int64_t kMaxHistLocks = int64_t{1} << 20;  // in global memory

enum class HistSpace : int64_t { kTiny, kShared, kCluster, kGlobal };

struct Residency {
  // Blocks of a kernel in a multiprocessor, by threads and dynamic shared memory.
  std::function<int64_t(const char* kernel, int threads, int64_t shared)> blocks;
  // Clusters of a grid's size, threads and shared memory in the device; 0: none can be.
  std::function<int64_t(const char* kernel, const Grid& grid)> clusters;
};

struct HistProblem {
  struct Part {
    int64_t bins = 0, lanes = 1, entry_bytes = 4, updates = 1;
    int64_t entries() const { return bins * lanes; }
  };
  std::vector<Part> parts;
  int64_t n = 0, members = 1;
  int64_t element_bytes = 4, index_bytes = 4;
  int64_t f_length = 1;            // instructions
  int64_t atomic = jp::kClassHdw;  // the slowest part's
  bool identity = true;            // of all parts
  int cluster_trips = 1;           // of the part that has most; 0: one's updates do not reach other blocks' shared memory as one
  bool direct = true;              // the result can be a table

  int64_t lanes() const;
  int64_t updates() const;      // of an element's scalars, at most
  int64_t table_bytes() const;  // one table of all parts
  int64_t entries() const;      // of the largest part
  jp::ModelElement element() const;
};

struct HistPlan {
  static constexpr int64_t kStateBytes = 256;
  HistSpace space = HistSpace::kGlobal;
  jp::HistWork work{1, 1, 1};  // K, M, S
  int64_t chunk = 0, cooperation = 0;
  int64_t locks = 0;      // in global memory, or in a block's shared memory
  int64_t partials = 0;   // tables that are folded: K; 0: M
  bool in_place = false;  // the result is a table
  bool combine = false;
  Grid grid{1, 1};

  // Global memory.
  bool sampled = false;     // the device chooses M and S itself
  int64_t race_factor = 1;  // that M and S are for, if it does not
  int64_t most = 1;         // subhistograms that there is room for
  jp::ModelDevice model{};
  int64_t updates = 0, bins = 0;                 // N and H of the model
  int64_t part = 0, groups = 0, group_size = 0;  // that are sampled

  // Workspace: what the device counts and chooses and the bins that samples hit, if it does; locks, tables.
  int64_t locks_at = kStateBytes, tables_at = kStateBytes, tables = 0, bytes = 0;
};

// --- the problem --------------------------------------------------------------------------------------------------------------

inline int64_t HistProblem::lanes() const {
  int64_t most = 1;
  for (const Part& part : parts) most = std::max(most, part.lanes);
  return most;
}

inline int64_t HistProblem::updates() const {
  int64_t sum = 0;
  for (const Part& part : parts) sum = std::max(sum, part.updates * part.lanes);
  return sum;
}

inline int64_t HistProblem::entries() const {
  int64_t most = 1;
  for (const Part& part : parts) most = std::max(most, part.entries());
  return most;
}

inline int64_t HistProblem::table_bytes() const {
  int64_t sum = 0;
  for (const Part& part : parts) sum += jp::RoundUp(part.entries() * part.entry_bytes, 256);
  return sum;
}

// All parts as one, of as many bins as the largest has.
inline jp::ModelElement HistProblem::element() const {
  int64_t bytes = 0;
  for (const Part& part : parts) bytes += part.entries() * part.entry_bytes;
  return {std::max<int64_t>(1, jp::CeilDiv(bytes, entries())), static_cast<int64_t>(parts.size()), atomic};
}

inline HistProblem DescribeHist(const CudaHistShape& shape, int64_t n, std::span<const int64_t> bins, int64_t members) {
  HistProblem p;
  p.n = n;
  p.members = members;
  p.element_bytes = std::max<int64_t>(1, shape.in_bytes);
  p.index_bytes = shape.shape.index64 ? 8 : 4;
  p.f_length = shape.f_length;
  for (size_t g = 0; g < shape.parts.size(); ++g) {
    const auto& of = shape.shape.bins[g];
    const auto& part = shape.parts[g];
    p.parts.push_back({bins[g], of.lanes, part.entry_bytes, of.updates});
    p.atomic = std::max<int64_t>(p.atomic, part.atomic);
    p.identity = p.identity && of.identity;
    const bool reaches = p.cluster_trips > 0 && part.cluster_trips > 0;
    p.cluster_trips = reaches ? std::max(p.cluster_trips, part.cluster_trips) : 0;
    p.direct = p.direct && part.direct;
  }
  return p;
}

// --- the plan -----------------------------------------------------------------------------------------------------------------

inline jp::ModelDevice ModelOf(const DeviceInfo& d, int64_t shared, int64_t block) {
  return {shared, d.l2_bytes, 64, int64_t{d.multiprocessors} * d.threads_per_multiprocessor, block};
}

// What can be told without a kernel.
inline Residency ResidencyOf(const DeviceInfo& d) {
  return {[d](const char*, int threads, int64_t shared) { return LikelyOccupancy(d, threads, shared); },
          [d](const char*, const Grid& grid) { return LikelyClusters(d, grid.cluster); }};
}

namespace internal {

// Locks in global memory: one for each entry, or hashed.
inline int64_t GlobalLocks(const HistProblem& p) {
  if (p.atomic != jp::kClassXcg) return 0;
  const auto entries =
      static_cast<uint64_t>(std::clamp<int64_t>(p.entries() * std::max<int64_t>(1, p.members), 1, kMaxHistLocks));
  return static_cast<int64_t>(std::bit_ceil(entries));
}

inline int64_t SeenWords(const HistProblem& p) {
  int64_t bins = 0;
  for (const auto& part : p.parts) bins = std::max(bins, part.bins);
  return jp::CeilDiv(bins, 32);
}

inline int64_t SharedBytes(const HistProblem& p, int64_t copies, int64_t passes, int64_t locks) {
  int64_t bytes = 4 * locks;
  for (const auto& part : p.parts) bytes += jp::SharedPartBytes(copies, part.bins, passes, part.lanes, part.entry_bytes);
  return bytes;
}

inline int64_t ClusterBytes(const HistProblem& p, int64_t blocks, int64_t passes, int64_t locks) {
  int64_t bytes = 4 * locks;
  for (const auto& part : p.parts) bytes += jp::ClusterPartBytes(blocks, part.bins, passes, part.lanes, part.entry_bytes);
  return bytes;
}

inline int HistBlock(const HistProblem& p) {
  int64_t words = 0;
  for (const auto& part : p.parts) words += jp::ElementWords(part.updates, part.entry_bytes, p.index_bytes);
  return jp::HistThreads(words, p.f_length);
}

class Planner {
 public:
  Planner(const DeviceInfo& device, const HistProblem& problem, int64_t workspace_bytes, const Residency& residency,
          std::span<const int64_t> forced)
      : d_(device), p_(problem), workspace_(workspace_bytes), residency_(residency), forced_(forced) {}

  HistPlan Make() {
    const int64_t space = Forced(0) - 1;
    if (p_.identity && p_.n > 0 && p_.entries() > 0) {
      const bool free = space < 0, rows = free && ManyWideRows();
      if ((free || space == 0) && Tiny(free)) return plan_;
      if ((free || space == 1) && !rows && Shared(free ? 1 : kAnyPasses, free)) return plan_;
      if ((free || space == 2) && !rows && Cluster(free)) return plan_;
      if (free && !rows && Shared(jp::MaxSharedPasses(p_.atomic), free)) return plan_;
    }
    Global();
    return plan_;
  }

 private:
  static constexpr int64_t kAnyPasses = std::numeric_limits<int64_t>::max();
  static constexpr int64_t kWarp = 32, kStateBytes = HistPlan::kStateBytes;
  static constexpr int64_t kMostForced = int64_t{1} << 16;  // of any number that is given
  static constexpr int64_t kTinyElements = 16 << 10;        // beyond these, a block is faster than a warp
  static constexpr int64_t kFewEntries = 16 << 10;          // that one block fills and stores in no time
  static constexpr int64_t kMaxSharedLocks = 1024;          // in a block's shared memory
  static constexpr int64_t kMaxCluster = 8;                 // blocks; 16 need not be there
  static constexpr int64_t kSampledPart = 16;               // of the elements, at most, are sampled
  // Updates: 13 ps each, as XLA's scatter makes them, where three more launches take some 7 us: a sixteenth of these.
  static constexpr int64_t kWorthSampling = int64_t{1} << 23;
  static constexpr int64_t kWideRow = 8;  // lanes: a sector of L2, which takes the updates of 32 bytes at once

  int64_t Forced(size_t k) const { return k < forced_.size() ? std::min(forced_[k], kMostForced) : 0; }
  int64_t SharedLocks(int64_t entries) const {
    if (p_.atomic != jp::kClassXcg) return 0;
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(entries, 1, kMaxSharedLocks))));
  }
  // Tables in the workspace for each member.
  int64_t Room() const {
    const int64_t bytes = workspace_ - plan_.tables_at;
    return bytes <= 0 ? 0 : bytes / std::max<int64_t>(1, p_.members * p_.table_bytes());
  }
  int64_t Multiprocessors() const { return std::max(1, d_.multiprocessors); }
  // Threads' turns that a member's elements are for: a thread works on a number, not on a row. There are no more shares than
  // rows.
  int64_t Wanted(int64_t threads) const {
    return std::clamp<int64_t>(jp::CeilDiv(p_.n * p_.lanes(), threads), 1, std::max<int64_t>(1, p_.n));
  }

  // Rows in bins that lie side by side, updated by the hardware: a warp's updates are a few whole sectors, and so many bins that
  // they seldom wait for each other. In L2 each is made once, and nothing is filled, stored and combined again.
  bool ManyWideRows() const { return p_.atomic == jp::kClassHdw && p_.lanes() >= kWideRow && p_.entries() > kFewEntries; }

  // Few lanes of a warp on a histogram: while there are enough of them, and none needs a whole block.
  bool Tiny(bool free) {
    const int group = jp::TinyGroup(p_.n, p_.lanes());
    const int64_t warps = jp::kTinyThreads / kWarp, in_warp = kWarp / group;
    int64_t bytes = 0;
    for (const auto& part : p_.parts) bytes += jp::TinyPartBytes(part.bins, part.lanes, part.entry_bytes);
    const int64_t locks = SharedLocks(warps * in_warp * p_.entries());
    bytes = jp::RoundUp(warps * in_warp * bytes, 16) + 4 * locks;
    if (bytes > d_.shared_per_block) return false;
    const int64_t units = jp::CeilDiv(p_.members, in_warp);
    if (free && (units < 8 * Multiprocessors() || p_.n * p_.lanes() > kTinyElements ||
                 bytes + kSystemShared > d_.shared_per_multiprocessor / 4)) {
      return false;
    }
    plan_ = {};
    plan_.space = HistSpace::kTiny;
    plan_.partials = 1;
    plan_.locks = locks;
    plan_.grid = {jp::CeilDiv(units, warps), jp::kTinyThreads, bytes};
    return true;
  }

  bool Shared(int64_t max_passes, bool free) {
    const int threads = HistBlock(p_);
    const jp::ModelElement element = p_.element();
    const int64_t entries = p_.entries();
    // Each block fills and stores its bins: no more blocks than updates pay for, and many bins not in few blocks. Both are asked
    // before the kernel is, which has to be compiled for that.
    const int64_t paid = std::max<int64_t>(1, 4 * p_.n * p_.updates() / entries);
    if (free && entries > kFewEntries && 4 * paid < Multiprocessors() / p_.members) return false;
    if (SharedBytes(p_, 1, std::min(max_passes, entries), SharedLocks(1)) > d_.shared_per_block) return false;
    // The paper's footnote 7: as many blocks in a multiprocessor as there may be, unless only a whole one's memory suffices.
    for (int64_t blocks = std::max<int64_t>(1, residency_.blocks("HistShared", threads, 0)); blocks > 0; --blocks) {
      const int64_t memory = std::min(d_.shared_per_block, d_.shared_per_multiprocessor / blocks - kSystemShared);
      const int64_t resident = Multiprocessors() * blocks;
      jp::ModelDevice device = ModelOf(d_, memory, threads);
      device.threads = jp::AtLeast1(resident * threads / p_.members);
      jp::ModelChoice choice = jp::SharedChoice(device, p_.n * p_.updates(), entries, element);
      if (choice.passes == 0) continue;
      const int64_t most = p_.lanes() > 1 ? threads / kWarp : threads;
      int64_t passes = Forced(2) > 0 ? Forced(2) : Forced(1) > 0 ? 1 : choice.passes;
      int64_t copies = std::min<int64_t>(Forced(1) > 0 ? Forced(1) : choice.subhistograms, most);
      if (Forced(1) == 0) copies = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(copies)));
      const auto bytes = [&] { return SharedBytes(p_, copies, passes, SharedLocks(copies * jp::CeilDiv(entries, passes))); };
      while (Forced(1) == 0 && copies > 1 && bytes() > memory) copies /= 2;
      while (Forced(2) == 0 && passes < entries && bytes() > memory) ++passes;
      if (blocks > 1 && passes > std::max<int64_t>(1, Forced(2))) continue;
      while (copies > 1 && bytes() > memory) --copies;
      if (bytes() > memory) continue;
      if (passes > max_passes) return false;
      const int64_t all = std::max<int64_t>(1, resident / (p_.members * passes));
      int64_t shares = std::min({all, paid, Wanted(threads)});
      if (Forced(3) > 0) shares = Forced(3);
      plan_ = {};
      const int64_t room = Room();
      if (shares > 1) shares = room > 1 ? std::min(shares, room) : 1;
      plan_.space = HistSpace::kShared;
      plan_.work = {shares, copies, passes};
      plan_.chunk = jp::CeilDiv(entries, passes);
      plan_.cooperation = jp::CeilDiv(threads, copies);
      plan_.locks = SharedLocks(copies * plan_.chunk);
      plan_.grid = {p_.members * shares * passes, threads, bytes()};
      Folds(shares);
      return true;
    }
    return false;
  }

  bool Cluster(bool free) {
    if (d_.major < 9 || p_.cluster_trips == 0) return false;
    if (free && p_.cluster_trips * jp::kClusterTrip > jp::kL2Trip) return false;
    const int threads = HistBlock(p_);
    for (int64_t size = Forced(5) > 0 ? Forced(5) : 2; size <= 2 * kMaxCluster; size *= 2) {
      if (Forced(5) == 0 && size > kMaxCluster) return false;
      const int64_t locks = SharedLocks(jp::CeilDiv(p_.entries(), size)), passes = std::max<int64_t>(1, Forced(2));
      const int64_t bytes = ClusterBytes(p_, size, passes, locks);
      if (bytes > d_.shared_per_block) continue;
      const int64_t units = p_.members * passes;
      const int64_t paid = std::max<int64_t>(1, 4 * p_.n * p_.updates() / p_.entries());
      if (free && 4 * paid < Multiprocessors() / size / units) return false;  // asked before the kernel is
      // Fewer than there are multiprocessors for: a cluster's blocks are in one group of them.
      const int64_t resident = residency_.clusters("HistCluster", {size, threads, bytes, static_cast<int>(size)});
      if (resident < 1) return false;
      const int64_t all = std::max<int64_t>(1, resident / units);
      int64_t shares = std::min({all, paid, Wanted(threads * size)});
      if (Forced(3) > 0) shares = Forced(3);
      plan_ = {};
      const int64_t room = Room();
      if (shares > 1) shares = room > 1 ? std::min(shares, room) : 1;
      plan_.space = HistSpace::kCluster;
      plan_.work = {shares, 1, passes};
      plan_.chunk = jp::CeilDiv(p_.entries(), passes);
      plan_.cooperation = threads * size;
      plan_.locks = locks;
      plan_.grid = {p_.members * shares * passes * size, threads, bytes, static_cast<int>(size)};
      Folds(shares);
      return true;
    }
    return false;
  }

  void Folds(int64_t shares) {
    plan_.partials = shares;
    plan_.combine = shares > 1;
    plan_.tables = shares > 1 ? shares : 0;
    plan_.bytes = shares > 1 ? plan_.tables_at + p_.members * shares * p_.table_bytes() : 0;
  }

  void Global() {
    plan_ = {};
    const int64_t resident = Multiprocessors() * std::max<int64_t>(1, residency_.blocks("HistGlobal", jp::kGlobalThreads, 0));
    const int64_t wanted = std::max<int64_t>(1, jp::CeilDiv(p_.n * p_.lanes(), jp::kGlobalThreads * ItemsOfRun()));
    int64_t shares = std::clamp<int64_t>(resident / p_.members, 1, wanted);
    if (Forced(3) > 0) shares = Forced(3);
    const int64_t units = p_.members * shares;
    plan_.space = HistSpace::kGlobal;
    plan_.work.blocks = shares;
    plan_.grid = {std::min<int64_t>(units, int64_t{1} << 30), jp::kGlobalThreads};

    // Members that are worked on at once share the cache.
    const int64_t active = std::clamp<int64_t>(jp::CeilDiv(resident, shares), 1, p_.members);
    plan_.model = ModelOf(d_, 0, jp::kGlobalThreads);
    plan_.model.threads = std::min<int64_t>(plan_.model.threads, active * shares * jp::kGlobalThreads);
    plan_.updates = std::max<int64_t>(1, p_.n * p_.updates() * active);
    plan_.bins = p_.entries() * active;
    plan_.part = Largest();
    plan_.groups = SampledGroups();
    plan_.group_size = jp::RaceGroupSize(p_.n * SampledPart().updates, SampledPart().bins);
    plan_.locks = GlobalLocks(p_);
    plan_.in_place = p_.direct;

    // The workspace is every member's: where a batch is split over devices, few members may have too little for all locks or for
    // samples.
    PlaceTables(false, shares);
    for (; plan_.locks > 64 && !Fits(); PlaceTables(false, shares)) plan_.locks /= 2;
    plan_.race_factor = std::max<int64_t>(1, Forced(4));
    jp::ModelChoice choice = Choose(static_cast<double>(plan_.race_factor));
    const jp::ModelChoice sparsest = Choose(static_cast<double>(std::max<int64_t>(1, plan_.group_size)));
    const bool matters = choice.subhistograms != sparsest.subhistograms || choice.passes != sparsest.passes;
    const bool known = Forced(4) > 0 || (Forced(1) > 0 && Forced(2) > 0) || AsTheyAre();
    plan_.sampled = p_.identity && plan_.groups > 0 && !known && (Forced(4) < 0 || (matters && plan_.updates >= kWorthSampling));
    if (plan_.sampled) {
      PlaceTables(true, shares);
      plan_.sampled = Fits();
      if (!plan_.sampled) PlaceTables(false, shares);
      choice = Choose(1);
    }
    plan_.work.subhistograms = Forced(1) > 0 ? std::min(Forced(1), plan_.most) : choice.subhistograms;
    plan_.work.passes = Forced(2) > 0 ? Forced(2) : choice.passes;
    plan_.chunk = jp::CeilDiv(p_.entries(), plan_.work.passes);
    plan_.cooperation = jp::CeilDiv(active * shares * jp::kGlobalThreads, plan_.work.subhistograms);
    plan_.combine = !p_.direct || plan_.sampled || plan_.work.subhistograms > 1;
    plan_.tables = (plan_.sampled ? plan_.most : plan_.work.subhistograms) - Direct();
    plan_.bytes = plan_.tables_at + p_.members * plan_.tables * p_.table_bytes();
  }

  // Do passes save more bytes than they read again? Without them an update brings its lines into L2; with them every line comes
  // once.
  bool PassesPay(int64_t passes) const {
    int64_t lines = 0;
    for (const auto& part : p_.parts)
      lines += part.updates * std::max<int64_t>(plan_.model.l2_line, part.lanes * part.entry_bytes);
    const double again = static_cast<double>(passes - 1) * static_cast<double>(p_.n * p_.element_bytes);
    return again + 2 * static_cast<double>(p_.table_bytes()) < static_cast<double>(p_.n) * static_cast<double>(lines);
  }

  // By one table, in one pass: rows whose lanes fill lines, which bins do not share; few updates for bins that L2 does not hold.
  bool AsTheyAre() const {
    if (Forced(4) != 0) return false;
    const int64_t passes = jp::GlobalChoice(plan_.model, plan_.updates, plan_.bins, p_.element(), 1).passes;
    return ManyWideRows() || (passes > 1 && !PassesPay(passes));
  }

  jp::ModelChoice Choose(double race_factor) const {
    if (AsTheyAre()) return {1, 1, plan_.bins, plan_.model.threads};
    jp::ModelChoice choice = jp::GlobalChoice(plan_.model, plan_.updates, plan_.bins, p_.element(), race_factor);
    choice.subhistograms = std::min<int64_t>(choice.subhistograms, plan_.most);
    return choice;
  }

  void PlaceTables(bool sampled, int64_t shares) {
    plan_.locks_at = sampled ? kStateBytes + jp::RoundUp(plan_.groups * SeenWords(p_) * 4, 256) : 0;
    plan_.tables_at = plan_.locks_at + jp::RoundUp(plan_.locks * 4, 256);
    const int64_t workers = shares * jp::kGlobalThreads / (p_.lanes() > 1 ? kWarp : 1);
    plan_.most = p_.identity ? std::max<int64_t>(1, std::min(Room() + Direct(), workers)) : 1;
  }

  // Is there room for one table of each member?
  bool Fits() const { return plan_.tables_at + p_.members * (1 - Direct()) * p_.table_bytes() <= workspace_; }
  int64_t Direct() const { return p_.direct ? 1 : 0; }
  int64_t ItemsOfRun() const { return std::clamp<int64_t>(16 / p_.element_bytes, 1, 8); }

  // The part with the largest table: its indices are sampled.
  int64_t Largest() const {
    const auto bytes = [](const HistProblem::Part& part) { return part.entries() * part.entry_bytes; };
    return std::ranges::max_element(p_.parts, {}, bytes) - p_.parts.begin();
  }
  const HistProblem::Part& SampledPart() const { return p_.parts[static_cast<size_t>(plan_.part)]; }

  int64_t SampledGroups() const {
    const int64_t all = p_.n * SampledPart().updates, size = jp::RaceGroupSize(all, SampledPart().bins);
    if (size == 0) return 0;
    const int64_t few = std::max<int64_t>(1, all * p_.members / kSampledPart / size);
    return std::min<int64_t>(jp::RaceGroups(all * p_.members, size), few);
  }

  const DeviceInfo& d_;
  const HistProblem& p_;
  const int64_t workspace_;
  const Residency& residency_;
  const std::span<const int64_t> forced_;
  HistPlan plan_;
};

}  // namespace internal

// forced: by tests and benchmarks, as far as the problem allows: {1 + space, M, S, K, race factor, blocks of a cluster}; 0 or
// absent: chosen. A race factor of -1: sampled, whatever the size.
inline HistPlan PlanHist(const DeviceInfo& device, const HistProblem& problem, int64_t workspace_bytes,
                         const Residency& residency, std::span<const int64_t> forced = {}) {
  return internal::Planner(device, problem, workspace_bytes, residency, forced).Make();
}

}  // namespace jaxprims::cuda
