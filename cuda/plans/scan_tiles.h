// How scans are cut into tiles: one text for the launcher and the kernels. A tile is what a block holds in registers.
//
// All of it depends on the bytes of a state and of an element and on sizes alone, so a result's bits do too.
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

// Words of 4 bytes of the states that a thread holds: half of what makes four blocks of 256 threads fit; of tiles that wait, two.
constexpr int kScanHeld = 16, kScanHeldWaiting = 32;

// state_bytes: sizeof(State); element_bytes: of the widest array or result.
JP_HOST_DEVICE constexpr ScanTile TileAlong(int state_bytes, int element_bytes) {
  const int words = (state_bytes + 3) / 4;
  int held = kScanHeld, run = 1;
  while (held > 1 && held * words > kScanHeld) held /= 2;
  while (2 * run * element_bytes <= 16 && 2 * run <= held) run *= 2;
  return {words <= 8 ? 256 : 128, words <= 1 ? 4 : words <= 2 ? 3 : words <= 8 ? 2 : 1, run, held / run};
}

// --- tiles that wait in shared memory for what comes before them (scan.cuh)
// ------------------------------------------------------------------------------------------------------

// With it, what a block has in shared memory may not be more than what any device gives unasked, 48 KB.
constexpr int kScanWaitingBytes = 47 * 1024;

// What is left of a thread's elements there, in words of 4 bytes: their states, what lies before each run, what lies before the
// warp, and where sequences start and which are open. As many where a thread's elements are one run.
JP_HOST_DEVICE constexpr int WaitingWords(const ScanTile& tile, int state_bytes) {
  return (tile.run * tile.rounds + (tile.run > 1 ? tile.rounds : 1) + 1) * ((state_bytes + 3) / 4) + 3;
}

// As many rounds as there is room for, in registers and there, of the runs of TileAlong: what is aligned for one is for the
// other. Without rounds: none waits, as a thread would not hold two of these states.
JP_HOST_DEVICE constexpr ScanTile TileWaiting(int state_bytes, int element_bytes) {
  const ScanTile along = TileAlong(state_bytes, element_bytes);
  ScanTile tile = {along.threads, 2, along.run, kScanHeldWaiting / ((state_bytes + 3) / 4) / along.run};
  while (tile.rounds > 0 && 4 * WaitingWords(tile, state_bytes) * tile.threads > kScanWaitingBytes) --tile.rounds;
  const bool fewer = tile.rounds < along.rounds;  // records are made room for by the tiles of TileAlong
  if (fewer || tile.run * tile.rounds < 2) tile.rounds = 0;
  return tile;
}

// Tiles that are at hand at once on an H100 or H200: what bits depend on is not asked of the device that there is.
JP_HOST_DEVICE constexpr i64 TilesAtOnce(const ScanTile& tile) { return i64{132} * tile.resident; }

// Does it pay that tiles wait, of so many of all sequences, of which a sequence has `abreast` at hand at once?
//
// A block makes T = tiles / TilesAtOnce of them, one after the other; where one waits for another turn, it has T + 1 turns. Where
// nobody waits, and so nothing is hidden, a turn takes 1.8 times as long (an H200's 771 and 429 us for 2^27 sums, T = 62):
//
//   T + 1 < 1.8 T  where  T > 1.25, and certainly from T = 2 on
//
// if there is a wait to be hidden. It is for the slowest of those tiles of one's own sequence that are at hand, and grows with
// their number's logarithm. Hiding it takes half as long again as reading and writing alone (429 us, 286 us), the whole wait of
// 264 abreast is 1.7 times that: so it pays from some 8 on.
JP_HOST_DEVICE constexpr bool WaitingPays(const ScanTile& tile, i64 tiles, i64 abreast) {
  return tile.rounds > 0 && tiles >= 2 * TilesAtOnce(tile) && abreast >= 8;
}

// A run is one step of the axis; a block's threads are `width` lanes and threads / width rows of the axis. A lane's look-back is
// for as many elements as a column holds, so that is twice what a thread has along (an H200 took 334 us for 2^27 sums by 32 of a
// thread, 474 by 16, 348 by 48).
JP_HOST_DEVICE constexpr ScanTile TileAcross(int state_bytes) {
  const ScanTile along = TileAlong(state_bytes, 16);
  const int held = along.run * along.rounds;
  const int threads = state_bytes <= 160 ? along.threads : 64;  // two states of each lie in shared memory
  return {threads, along.resident > 2 ? 2 : along.resident, 1, held > 1 ? 2 * held : 1};
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
