// How a reduction is cut for a GPU: what kernels and the launcher must agree on.
#pragma once

namespace jp {

// The algorithms, by the first number of a plan.
enum ReduceAlgorithm : int {
  kReduceAutomatic = 0,
  kReduceRows = 1,    // 1 to 32 lanes of a warp a row; the second number: how many, 0 to choose
  kReduceBlocks = 2,  // blocks that fold large pieces, one or several a row; the second number: how many, 0 to choose
};

constexpr int kReduceThreads = 256;
constexpr int kReduceWarps = kReduceThreads / 32;

// Elements side by side that a lane reads at once: 16 bytes of an array, at least, while states still fit the registers.
JP_HOST_DEVICE constexpr int RunItems(int in_bytes, int state_bytes) {
  int items = in_bytes == 0 ? 4 : in_bytes == 1 ? 16 : in_bytes == 2 ? 8 : in_bytes <= 16 ? 4 : in_bytes <= 32 ? 2 : 1;
  while (items > 1 && items * state_bytes > 64) items /= 2;
  return items;
}

// Such runs that a lane reads before it folds the first one: about 128 bytes under way.
JP_HOST_DEVICE constexpr int RunRows(int in_bytes, int state_bytes) {
  const int items = RunItems(in_bytes, state_bytes), bytes = in_bytes > state_bytes ? in_bytes : state_bytes;
  int rows = 8;
  while (rows > 1 && (rows * items * bytes > 128 || rows * items > 64 || rows * state_bytes > 64)) rows /= 2;
  return rows;
}

// Elements that a warp folds at a time.
JP_HOST_DEVICE constexpr int WarpTile(int in_bytes, int state_bytes) {
  return 32 * RunItems(in_bytes, state_bytes) * RunRows(in_bytes, state_bytes);
}

// Rows of one lane each that a thread reads before it folds them, where sequences lie side by side.
JP_HOST_DEVICE constexpr int ColumnDepth(int state_bytes) {
  return state_bytes <= 8 ? 8 : state_bytes <= 16 ? 4 : state_bytes <= 64 ? 2 : 1;
}
JP_HOST_DEVICE constexpr int AcrossThreads(int state_bytes) { return state_bytes <= 128 ? 256 : 128; }

// Partial states that a block of ReduceParts folds, and so blocks of a row at most.
constexpr int kPartsOfBlock = 2048;

}  // namespace jp
