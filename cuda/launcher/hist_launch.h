// The launch of a histogram's kernels, the workspace they need, and their plan as explanations show it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "hist_choice.h"
#include "launch.h"
#include "numbers.h"
#include "shapes.h"

namespace jaxprims::cuda {

// Bytes of tables beyond one for each member, all members together.
inline constexpr int64_t kHistTableBudget = int64_t{64} << 20;

namespace internal {

// Tables beyond the result's that a device would fill for each member, of any race factor.
inline int64_t MostTables(const DeviceInfo& device, const HistProblem& p, int64_t workspace_bytes,
                          std::span<const int64_t> forced) {
  // Registers may allow more resident blocks than are likely: only threads and shared memory bound them.
  const Residency residency = {[&](const char*, int threads, int64_t shared) {
                                 return std::min<int64_t>(device.threads_per_multiprocessor / threads,
                                                          device.shared_per_multiprocessor / (shared + kSystemShared));
                               },
                               ResidencyOf(device).clusters};
  const HistPlan plan = PlanHist(device, p, workspace_bytes, residency, forced);
  if (!plan.sampled) return plan.tables;
  std::vector<int64_t> of(forced.begin(), forced.end());
  of.resize(std::max<size_t>(of.size(), 5));
  int64_t most = 0;
  for (int64_t race_factor = 1; race_factor < 2 * plan.group_size; race_factor *= 2) {
    of[4] = race_factor;
    most = std::max(most, PlanHist(device, p, workspace_bytes, residency, of).tables);
  }
  return most;
}

}  // namespace internal

// Enough for every plan's one table, where the result cannot be it, and some 64 MB of more tables; of sizes that are known no
// more than plans for the devices take, where any are given. -1: not known. forced: as PlanHist's.
inline Workspace HistWorkspace(const CudaHistShape& shape, int64_t n, std::span<const int64_t> bins, int64_t members,
                               std::span<const DeviceInfo> devices = {}, std::span<const int64_t> forced = {}) {
  HistProblem p = DescribeHist(shape, n, bins, members);
  const int64_t table = p.table_bytes(), known = std::max<int64_t>(1, members);
  const int64_t once = 256 + jp::RoundUp(jp::kRaceGroups * 4 * internal::SeenWords(p), 256) + 4 * internal::GlobalLocks(p);
  int64_t more = members < 0 ? std::min(kHistTableBudget, 8 * table) : jp::CeilDiv(kHistTableBudget, known);
  if (n >= 0) {  // a table more only pays with as many updates as it has entries, or nearly
    int64_t bytes = 0;
    for (const auto& part : p.parts) bytes += 4 * n * part.updates * part.lanes * part.entry_bytes;
    more = std::min(more, bytes + table);
  }
  more = std::min(more, 2048 * table);  // no device has more blocks at once
  if (n > 0 && members > 0 && !devices.empty()) {
    int64_t most = 0;
    for (p.members = members;; p.members = jp::CeilDiv(p.members, 2)) {  // a batch may be divided among devices
      const int64_t bytes = HistPlan::kStateBytes + once + p.members * (2 * table + more);
      for (const DeviceInfo& device : devices) most = std::max(most, internal::MostTables(device, p, bytes, forced));
      if (p.members == 1) break;
    }
    more = std::min(more, most * table);
  }
  return {.base = jp::RoundUp(jp::CeilDiv(once, known) + (p.direct ? 0 : table) + more, 256)};
}

// --- the launch ---------------------------------------------------------------------------------------------------------------

namespace internal {

inline Words HistWords(const HistCall& call, const HistProblem& p, const HistPlan& plan, const DeviceInfo& device,
                       char* workspace) {
  Words words;
  words.PutBatch(call.batch);
  words.Int(call.elements);
  for (const int64_t bins : call.bins) words.Int(bins);
  words.PutList(call.arrays);
  words.PutList(call.uniforms);
  words.PutList(call.outs);
  words.PutList(call.dests);
  words.Pointer(workspace + plan.tables_at);
  words.Int(p.table_bytes());
  words.Int(plan.tables * p.table_bytes());
  for (int64_t g = 0, at = 0; g < static_cast<int64_t>(p.parts.size()); ++g) {
    const auto& part = p.parts[static_cast<size_t>(g)];
    words.Int(at);
    at += jp::RoundUp(part.entries() * part.entry_bytes, 256);
  }
  words.Int(plan.in_place ? 1 : 0);
  words.Pointer(workspace + plan.locks_at);
  words.Int(plan.locks);
  words.Int(plan.work.blocks);
  words.Int(plan.work.subhistograms);
  words.Int(plan.work.passes);
  words.Pointer(plan.sampled ? workspace : nullptr);
  words.Int(plan.partials);
  words.Int(int64_t{device.multiprocessors} * device.threads_per_multiprocessor);
  return words;
}

// HistSample's parameter: all of HistParams, and this.
inline Words SampleWords(Words words, const HistProblem& p, const HistPlan& plan, char* workspace) {
  const jp::ModelDevice& d = plan.model;
  const jp::ModelElement e = p.element();
  const int64_t numbers[] = {d.shared_bytes, d.l2_bytes,   d.l2_line, d.threads, d.block,   e.bytes,     e.arrays,
                             e.atomic,       plan.updates, plan.bins, plan.most, plan.part, plan.groups, plan.group_size};
  for (const int64_t number : numbers) words.Int(number);
  words.Pointer(workspace + HistPlan::kStateBytes);
  words.Int(SeenWords(p));
  words.Pointer(workspace + 64);  // behind the choice
  words.Pointer(workspace + 128);
  words.Pointer(workspace);
  return words;
}

}  // namespace internal

// plan: as PlanHist's `forced`.
inline void LaunchHist(Launcher& launcher, const CudaHistShape& shape, const HistCall& call, char* workspace,
                       int64_t workspace_bytes, std::span<const int64_t> forced) {
  const DeviceInfo& device = launcher.device();
  const int64_t members = Product(call.batch);
  const HistProblem p = DescribeHist(shape, call.elements, call.bins, members);
  if (members == 0 || std::ranges::all_of(call.bins, [](int64_t bins) { return bins == 0; })) return;
  const Residency residency = {
      [&](const char* kernel, int threads, int64_t shared) { return launcher.Occupancy(kernel, threads, shared); },
      [&](const char* kernel, const Grid& grid) { return launcher.Clusters(kernel, grid); }};
  const HistPlan plan = PlanHist(device, p, workspace_bytes, residency, forced);
  if (plan.bytes > workspace_bytes) throw std::runtime_error("the workspace is too small");

  const Words words = internal::HistWords(call, p, plan, device, workspace);
  const int64_t threads = int64_t{device.multiprocessors} * device.threads_per_multiprocessor;
  const auto grid = [&](int64_t work, int block) {
    return Grid{std::clamp<int64_t>(jp::CeilDiv(work, block), 1, std::max<int64_t>(1, threads / block)), block};
  };
  if (plan.space == HistSpace::kGlobal) {
    if (plan.sampled || plan.locks > 0) launcher.Fill(workspace, 0, plan.tables_at);
    if (plan.sampled) {
      Grid samples = grid(plan.groups * plan.group_size / 4, jp::kSampleThreads);
      samples.blocks = plan.groups * std::max<int64_t>(1, samples.blocks / plan.groups);
      launcher.Launch("HistSample", samples, internal::SampleWords(words, p, plan, workspace));
    }
    launcher.Launch("HistFill", grid(members * p.entries(), jp::kFillThreads), words);
    if (call.elements > 0) launcher.Launch("HistGlobal", plan.grid, words);
  } else {
    constexpr const char* kNames[] = {"HistTiny", "HistShared", "HistCluster"};
    launcher.Launch(kNames[static_cast<size_t>(plan.space)], plan.grid, words);
  }
  if (plan.combine) {
    const int64_t tables = plan.partials > 0 ? plan.partials : plan.sampled ? plan.most : plan.work.subhistograms;
    const int64_t entries = members * p.entries();
    launcher.Launch("HistCombine", grid(entries * jp::FoldersOf(entries, tables, threads), jp::kFoldThreads), words);
  }
}

// The plan's numbers by name. A race factor of 0: the device finds out, and M is at most as large as `most M`.
inline std::vector<std::pair<std::string, int64_t>> ExplainHist(const CudaHistShape& shape, const DeviceInfo& device, int64_t n,
                                                                std::span<const int64_t> bins, int64_t members,
                                                                std::span<const int64_t> forced = {}) {
  const HistProblem p = DescribeHist(shape, n, bins, members);
  const Workspace workspace = HistWorkspace(shape, n, bins, members);
  const HistPlan plan = PlanHist(device, p, members * workspace.base, ResidencyOf(device), forced);
  return {{"space", static_cast<int64_t>(plan.space)},
          {"M", plan.work.subhistograms},
          {"S", plan.work.passes},
          {"C", plan.cooperation},
          {"K", plan.work.blocks},
          {"chunk", plan.chunk},
          {"race factor", plan.sampled ? 0 : plan.race_factor},
          {"most M", plan.most},
          {"locks", plan.locks},
          {"shared bytes", plan.grid.shared},
          {"grid", plan.grid.blocks},
          {"threads", plan.grid.threads},
          {"cluster", plan.grid.cluster},
          {"workspace bytes", plan.bytes}};
}

}  // namespace jaxprims::cuda
