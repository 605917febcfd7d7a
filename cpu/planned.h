// Plans, for explanations and to know which variant of a kernel to compile: a problem's numbers by name, planned as its handler
// plans it, and what came out by name, the workspace included.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "described.h"
#include "hist_plan.h"
#include "per_axis.h"
#include "reduce_plan.h"
#include "scan_plan.h"
#include "segments.h"
#include "segments_plan.h"
#include "stencil_plan.h"
#include "stencil_reduce.h"
#include "walk.h"

template <class T>
struct nanobind::detail::type_caster<jaxprims::PerAxis<T>> : list_caster<jaxprims::PerAxis<T>, T> {};

namespace jaxprims {
namespace internal {

template <class T, class... More>
void Put(nanobind::dict& to, const char* name, const T& value, const More&... more) {
  to[name] = value;
  if constexpr (sizeof...(more) > 0) Put(to, more...);
}

template <class... Values>
nanobind::dict Named(const Values&... values) {
  nanobind::dict named;
  Put(named, values...);
  return named;
}

inline nanobind::dict PlannedHist(const nanobind::dict& given, const Machine& m, std::span<const int64_t> forced) {
  HistProblem p;
  Get(given, "elements", p.elements, "batch", p.batch, "bins", p.bins, "bin_bytes", p.bin_bytes, "updates", p.updates, "slots",
      p.slots, "lanes", p.lanes, "work", p.work, "in_place", p.in_place, "sorted", p.sorted, "must_in_place", p.must_in_place,
      "map", p.map, "chooses", p.chooses);
  const HistPlan plan = PlanOf(p, m, forced);
  return Named("subhistograms", plan.subhistograms, "ranges", plan.ranges, "copies", plan.copies, "in_place", plan.soa,
               "prefetch", plan.prefetch, "threads", plan.threads, "variant", plan.variant(), "few", p.few(), "workspace",
               WorkspaceBytes(p, plan));
}

inline nanobind::dict PlannedScan(const nanobind::dict& given, const Machine& m, std::span<const int64_t> forced) {
  ScanProblem p;
  Get(given, "n", p.n, "rows", p.rows, "lanes", p.lanes, "in_bytes", p.in_bytes, "leaf_bytes", p.leaf_bytes, "slots", p.slots,
      "work", p.work, "across", p.across, "large", p.large, "map", p.map, "together", p.together, "reverse", p.reverse,
      "contiguous", p.contiguous);
  const ScanPlan plan = PlanOf(p, m, forced);
  return Named("order", static_cast<int>(plan.order), "block", plan.block, "periodic", plan.periodic, "stream", plan.stream,
               "threads", plan.threads, "strip", plan.strip, "variant", plan.variant(), "workspace", WorkspaceBytes(p, plan));
}

inline nanobind::dict PlannedReduce(const nanobind::dict& given, const Machine& m) {
  ReduceProblem p;
  Get(given, "n", p.n, "rows", p.rows, "joined", p.joined, "lanes", p.lanes, "slots", p.slots, "state_bytes", p.state_bytes,
      "work", p.work, "across", p.across, "init", p.init, "folds_rows", p.folds_rows, "spaced", p.spaced);
  if (given.contains("reads")) OfStencil(p, nanobind::cast<int64_t>(given["reads"]));
  const ReducePlan plan = MakeReducePlan(p, m);
  return Named("leaf", plan.leaf, "block", plan.block, "periodic", plan.periodic, "threads", plan.threads, "variant",
               plan.variant(), "workspace", WorkspaceBytes(p, plan));
}

inline nanobind::dict PlannedSegments(const nanobind::dict& given, const Machine& m) {
  SegmentsProblem p;
  Get(given, "n", p.n, "segments", p.segments, "members", p.members, "lanes", p.lanes, "leaf_bytes", p.leaf_bytes, "slots",
      p.slots, "state_bytes", p.state_bytes, "work", p.work, "across", p.across);
  const SegmentsPlan plan = MakeSegmentsPlan(p, m);
  return Named("chunk", plan.chunk, "tasks", plan.tasks, "threads", plan.threads, "variant", 0, "workspace",
               WorkspaceBytes(p, plan));
}

inline nanobind::dict PlannedStencil(const nanobind::dict& given, const Machine& m, std::span<const int64_t> forced) {
  StencilProblem p;
  Get(given, "size", p.size, "widest", p.widest, "wraps", p.wraps, "halo", p.halo, "members", p.members, "steps", p.steps, "unit",
      p.unit, "array_bytes", p.array_bytes, "leaf_bytes", p.leaf_bytes, "changed", p.changed, "work", p.work, "width", p.width,
      "span", p.span);
  const StencilPlan plan = PlanOf(p, m, forced);
  return Named("depth", plan.depth, "tile", plan.tile, "stream", plan.stream, "threads", plan.threads, "workspace",
               WorkspaceBytes(p, plan));
}

inline nanobind::dict PlannedWalk(const nanobind::dict& given, const Machine& m) {
  WalkShape shape;
  int64_t bins = 0, copies = 0;
  Get(given, "entry_bytes", shape.entry_bytes, "bins", bins, "copies", copies);
  return Named("variant", WalkVariant(shape, bins, copies, m), "workspace", WalkTableBytes(shape, bins, copies));
}

}  // namespace internal

inline nanobind::dict Planned(const std::string& family, const nanobind::dict& problem, const Machine& machine,
                              std::span<const int64_t> forced) {
  if (family == "histogram") return internal::PlannedHist(problem, machine, forced);
  if (family == "scan") return internal::PlannedScan(problem, machine, forced);
  if (family == "reduce" || family == "stencil_reduce") return internal::PlannedReduce(problem, machine);
  if (family == "segments") return internal::PlannedSegments(problem, machine);
  if (family == "stencil") return internal::PlannedStencil(problem, machine, forced);
  if (family == "walk") return internal::PlannedWalk(problem, machine);
  throw std::invalid_argument("no plans are made for calls of " + family);
}

}  // namespace jaxprims
