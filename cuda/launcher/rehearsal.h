// Which kernels a call of given sizes may launch, found by the launch functions themselves, without a device.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "families.h"
#include "launch.h"
#include "shapes.h"

namespace jaxprims::cuda {

// Sizes of a call; -1, of what is not known, for a workspace alone.
struct RehearsedCall {
  int64_t n = 0, lanes = 1, members = 1;
  bool init = false;
  bool contiguous = true;  // members lie one behind the other in every operand
  Segments segments;
};

namespace internal {

// An operand of members that lie `bytes` apart.
inline Operand Rehearsed(int64_t bytes) {
  Operand operand;
  operand.strides[0] = bytes;
  return operand;
}

}  // namespace internal

// Sizes of a stencil's call.
struct RehearsedStencil {
  std::vector<int64_t> size;
  std::vector<bool> wraps;  // by axis
  int64_t members = 1, steps = 1;
};

inline StencilCall StencilCallOf(const CudaStencilShape& shape, const RehearsedStencil& of) {
  StencilCall call;
  call.batch = {of.members};
  call.steps = of.steps;
  PerAxis<StencilAxis> axes;
  if (shape.rank == 1) {
    call.window.push_back({});
    axes.push_back({});
  }
  for (size_t a = 0; a < of.size.size(); ++a) {
    call.window.push_back({0, of.size[a]});
    const bool wraps = a < of.wraps.size() && of.wraps[a];
    axes.push_back({wraps ? Boundary::kWrap : Boundary::kNothing, of.size[a]});
  }
  call.arrays.resize(shape.array_bytes.size());
  call.axes.assign(shape.array_bytes.size(), axes);
  call.fills.resize(shape.array_bytes.size());
  call.uniforms.resize(shape.signature.uniforms.size());
  call.outs.resize(shape.leaf_bytes.size());
  return call;
}

inline std::vector<std::string> RehearseStencil(const CudaStencilShape& shape, const DeviceInfo& device,
                                                const RehearsedStencil& of, std::span<const int64_t> plan) {
  std::vector<std::string> names;
  Launcher launcher(device, names);
  LaunchStencil(launcher, shape, StencilCallOf(shape, of), nullptr, std::numeric_limits<int64_t>::max(), plan);
  return names;
}

inline Workspace OrderedWorkspace(const CudaOrderedShape& shape, const RehearsedCall& of) {
  if (shape.kind == "scan") return ScanWorkspace(shape, of.n, of.lanes, of.members);
  if (shape.kind == "reduce") return ReduceWorkspace(shape, of.n, of.lanes, of.members);
  return SegmentsWorkspace(shape, of.n, of.lanes, of.segments.count, of.members);
}

inline std::vector<std::string> RehearseOrdered(const CudaOrderedShape& shape, const DeviceInfo& device, const RehearsedCall& of,
                                                std::span<const int64_t> plan) {
  OrderedCall call;
  call.n = of.n;
  call.lanes = of.lanes;
  call.batch = {of.members};
  for (const int64_t bytes : shape.array_bytes)
    call.arrays.push_back(internal::Rehearsed(of.contiguous ? of.n * of.lanes * bytes : 0));
  for (const int64_t bytes : shape.leaf_bytes) call.outs.push_back(internal::Rehearsed(of.n * of.lanes * bytes));
  call.uniforms.resize(static_cast<size_t>(shape.uniforms));
  if (of.init) call.init.push_back({{}, static_cast<int64_t>(shape.slot_bytes.size())});
  const Workspace room = OrderedWorkspace(shape, of);
  const int64_t bytes = of.members * (room.base + room.per * (of.n / room.every + 1));
  std::vector<std::string> names;
  Launcher launcher(device, names);
  if (shape.kind == "scan") {
    LaunchScan(launcher, shape, call, nullptr, bytes, plan);
  } else if (shape.kind == "reduce") {
    LaunchReduce(launcher, shape, call, nullptr, bytes, plan);
  } else {
    LaunchSegments(launcher, shape, call, of.segments, nullptr, bytes, plan);
  }
  return names;
}

inline std::vector<std::string> RehearseHist(const CudaHistShape& shape, const DeviceInfo& device, int64_t n,
                                             std::span<const int64_t> bins, int64_t members, std::span<const int64_t> plan) {
  HistCall call;
  call.elements = n;
  call.batch = {members};
  call.bins.assign(bins.begin(), bins.end());
  for (const auto& part : shape.shape.bins) {
    call.outs.resize(call.outs.size() + part.leaf_bytes.size());
    call.dests.resize(call.outs.size());
  }
  const Workspace room = HistWorkspace(shape, n, bins, members);
  std::vector<std::string> names;
  Launcher launcher(device, names);
  LaunchHist(launcher, shape, call, nullptr, members * (room.base + room.per * (n / room.every + 1)), plan);
  return names;
}

}  // namespace jaxprims::cuda
