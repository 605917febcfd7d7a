// How a segmented reduction is cut for a GPU: what kernels and the launcher must agree on.
#pragma once

#include "reduce_tiles.h"

namespace jp {

// The algorithms, by the first number of a plan; the second: how many blocks, 0 to choose.
enum SegmentsAlgorithm : int {
  kSegmentsAutomatic = 0,
  kSegmentsShort = 1,  // equal shares of elements and ends for all blocks, a scan of every tile
  kSegmentsLong = 2,   // equal shares for all warps, which fold segment after segment
};

// From this average length on, segments are folded one by one. Below, a warp's last steps would cost more than a scan; of ids,
// which then need not all be read, that is worth more.
JP_HOST_DEVICE constexpr int LongSegment(bool ids) { return ids ? 1024 : 4096; }

JP_HOST_DEVICE constexpr int SegmentsThreads(int state_bytes) { return state_bytes <= 64 ? 256 : 128; }

// Neighbouring elements of a thread in a tile: as many as fit the registers.
JP_HOST_DEVICE constexpr int SegmentsItems(int state_bytes) {
  int items = 16;
  while (items > 1 && items * state_bytes > 64) items /= 2;
  return items;
}
JP_HOST_DEVICE constexpr int SegmentsTile(int state_bytes) { return SegmentsThreads(state_bytes) * SegmentsItems(state_bytes); }

// Of a tile's states in shared memory, one place in 33 left empty so that threads meet in no bank; and behind them, of its flags.
JP_HOST_DEVICE constexpr int StagedBytes(int state_bytes) {
  return (SegmentsTile(state_bytes) / 32 * 33 * state_bytes + 15) / 16 * 16;
}
JP_HOST_DEVICE constexpr int ShortSharedBytes(int state_bytes) { return StagedBytes(state_bytes) + SegmentsTile(state_bytes); }

// What a share leaves for its neighbours: the sizeof of Piece.
JP_HOST_DEVICE constexpr int PieceBytes(int state_bytes) { return (2 * state_bytes + 7) / 8 * 8 + 16; }

}  // namespace jp
