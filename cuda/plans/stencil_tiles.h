// How a stencil is cut for a GPU: what kernels and the launcher must agree on.
#pragma once

#include "host_device.h"

namespace jp {

constexpr int kStencilThreads = 256;
constexpr int kStencilWarps = kStencilThreads / 32;

// Steps that a kernel makes together, at most.
constexpr int kStencilDeepest = 16;

// Bytes of what a block knows of its steps, beside its tiles: sizeof(Step), of each.
JP_HOST_DEVICE constexpr int StepsBytes(int rank) { return kStencilDeepest * 64 * rank; }

// Bytes of so many lanes of an array in shared memory.
JP_HOST_DEVICE constexpr i64 TileBytes(i64 lanes, i64 lane_bytes) { return (lanes * lane_bytes + 15) / 16 * 16; }

}  // namespace jp
