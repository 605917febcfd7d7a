// How scans are cut into tiles: one text for the launcher and the kernels. A tile is what a block holds in registers.
//
// All of it depends on the bytes of a state and of an element alone, so a result's bits do too.
#pragma once

#include "host_device.h"

namespace jp {

struct ScanTile {
  int threads;   // of a block
  int resident;  // blocks of a multiprocessor that registers must suffice for
  int run;       // along: neighbours that a thread reads at once
  int rounds;    // such runs of a thread; a warp's runs of one round lie side by side
};

JP_HOST_DEVICE constexpr int ElementsOf(const ScanTile& tile) { return tile.threads * tile.run * tile.rounds; }

// Words of 4 bytes of the states that a thread holds: half of what makes four blocks of 256 threads fit.
constexpr int kScanHeld = 32;

// state_bytes: sizeof(State); element_bytes: of the widest array or result.
JP_HOST_DEVICE constexpr ScanTile TileAlong(int state_bytes, int element_bytes) {
  const int words = (state_bytes + 3) / 4;
  int held = kScanHeld, run = 1;
  while (held > 1 && held * words > kScanHeld) held /= 2;
  while (2 * run * element_bytes <= 16 && 2 * run <= held) run *= 2;
  return {words <= 8 ? 256 : 128, words <= 8 ? 2 : 1, run, held / run};
}

// Shared memory for a tile that waits; with it, what a block has may not be more than what any device gives unasked, 48 KB.
constexpr int kScanWaitingBytes = 47 * 1024;

// A run is one step of the axis; a block's threads are `width` lanes and threads / width rows of the axis.
JP_HOST_DEVICE constexpr ScanTile TileAcross(int state_bytes) {
  const ScanTile along = TileAlong(state_bytes, 16);
  const int held = along.run * along.rounds;                    // addresses take registers, too
  const int threads = state_bytes <= 160 ? along.threads : 64;  // two states of each lie in shared memory
  return {threads, along.resident == 3 ? 2 : along.resident, 1, held > 1 ? held * 3 / 4 : 1};
}

// Of the kernels with starts, which want some registers more.
JP_HOST_DEVICE constexpr int ResidentWithStarts(const ScanTile& tile) { return tile.resident > 1 ? tile.resident - 1 : 1; }

constexpr int kDearOp = 10;  // instructions for each slot of a state

constexpr int kEachThreads = 256;  // rows that are one thread's

// Bytes of the widest array or result, as far as their sums tell.
JP_HOST_DEVICE constexpr int WidestOf(int in_bytes, int arrays, int out_bytes, int leaves) {
  const int in = arrays > 0 ? (in_bytes + arrays - 1) / arrays : 0, out = leaves > 0 ? (out_bytes + leaves - 1) / leaves : 0;
  return in > out ? in : out > 0 ? out : 1;
}

// --- the records of look_back.cuh
// ------------------------------------------------------------------------------------------------------

constexpr int kScanGroup = 32;  // tiles

JP_HOST_DEVICE constexpr i64 ScanGroups(i64 tiles) { return (tiles + kScanGroup - 1) / kScanGroup; }

// 8-byte words of a chain: of each group its tiles' aggregates, its total and the prefix behind it.
JP_HOST_DEVICE constexpr i64 ChainWords(int state_bytes, i64 tiles) {
  return ScanGroups(tiles) * ((state_bytes + 3) / 4) * (kScanGroup + 2);
}

}  // namespace jp
