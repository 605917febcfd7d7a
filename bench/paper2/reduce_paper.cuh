// The five algorithms of Martín et al. 2012 for reductions; names in the paper's words. A data-block, of params.number elements, is
// reduced in shared memory. Where it is not full, what is missing is masked, not padded with an identity. What is left after the
// first launch, ReduceParts folds.
//
// kTreeThreads, the threads of the trees, and kMatrixWidth, the states in a row of a matrix, are of the text before (launches.py).
#pragma once

#include "ordered/reduce.cuh"

namespace jp {

constexpr int kMatrixPitch = kMatrixWidth + 1;
constexpr int kMatrix = kWarp * kMatrixWidth;

// The part of a row that a block reduces: data-block after data-block.
struct PaperTask {
  Row row;
  i64 first, last;  // data-blocks
};
JP_DEVICE PaperTask PaperTaskOf(const ReduceParams& p, i64 task) {
  const i64 blocks = p.call.n == 0 ? 1 : (p.call.n + p.number - 1) / p.number;
  const Span mine = ShareOf(blocks, p.parts, task % p.parts);
  return {RowOf(p.call, task / p.parts), mine.lo, mine.hi};
}
JP_DEVICE int CountOf(const ReduceParams& p, i64 block) {
  const i64 rest = p.call.n - block * p.number;
  return static_cast<int>(rest < p.number ? rest : p.number);
}

// Algorithm 1, tree-based: in each step half as many threads combine pairs of neighbours, the left one's place keeping the
// result.
JP_KERNEL(ReduceTree, ReduceParams, kTreeThreads, 1) {
  if constexpr (!spec::kAcross) {
    constexpr int kElements = 2 * kTreeThreads;
    struct Shared {
      State data[kElements + kElements / 32];
    };
    JP_SHARED(Shared, shared);
    auto padded = [](int k) { return k + (k >> 5); };
    for (i64 task = Block(); task < p.call.batch.members * p.parts; task += Blocks()) {
      const PaperTask me = PaperTaskOf(p, task);
      const int count = CountOf(p, me.first);
#pragma unroll
      for (int k = Thread(); k < kElements; k += kTreeThreads) {
        const i64 at = me.first * kElements + k;
        if (k < count) shared.data[padded(k)] = spec::LoadOne(me.row.arrays, me.row.uniforms, at, at);
      }
      for (int active = kTreeThreads, stride = 1; active > 0; active /= 2, stride *= 2) {
        BlockBarrier();
        const int a = 2 * stride * Thread(), b = a + stride;
        if (Thread() < active && b < count) {
          shared.data[padded(a)] = spec::Op(me.row.uniforms, shared.data[padded(a)], shared.data[padded(b)]);
        }
      }
      FinishPart(p, me.row, task, {shared.data[0], count > 0});
      BlockBarrier();
    }
  }
}

// Algorithm 2, intra-warp tree-based: each warp reduces 4 data-warps, one warp the results.
JP_KERNEL(ReduceWarpTree, ReduceParams, kTreeThreads, 1) {
  if constexpr (!spec::kAcross) {
    constexpr int kWarps = kTreeThreads / kWarp, kElements = 4 * kTreeThreads;
    struct Shared {
      State data[4 * kWarps];
    };
    JP_SHARED(Shared, shared);
    for (i64 task = Block(); task < p.call.batch.members * p.parts; task += Blocks()) {
      const PaperTask me = PaperTaskOf(p, task);
      const int count = CountOf(p, me.first);
#pragma unroll 1
      for (int k = 0; k < 4; ++k) {
        const int place = k * kTreeThreads + Thread(), lanes = count - (place - Lane());
        const i64 at = me.first * kElements + place;
        State s = {};
        if (place < count) s = spec::LoadOne(me.row.arrays, me.row.uniforms, at, at);
        s = FoldLanes(me.row.uniforms, s, lanes);
        if (Lane() == 0) shared.data[Warp() + k * kWarps] = s;
      }
      BlockBarrier();
      if (Warp() == 0) {
        const int warps = (count + kWarp - 1) / kWarp;
        State s = {};
        if (Lane() < warps) s = shared.data[Lane()];
        s = FoldLanes(me.row.uniforms, s, warps);
        FinishPart(p, me.row, task, {s, count > 0});
      }
      BlockBarrier();
    }
  }
}

// A matrix of states from a data-block, by threads first, first + step, ...
JP_DEVICE void LoadMatrix(const ReduceParams& p, const Row& row, i64 block, State* matrix, int first, int step) {
  const int count = CountOf(p, block);
#pragma unroll 4
  for (int k = first; k < count; k += step) {
    const i64 at = block * kMatrix + k;
    matrix[k / kMatrixWidth * kMatrixPitch + k % kMatrixWidth] = spec::LoadOne(row.arrays, row.uniforms, at, at);
  }
}

// Algorithm 3, sequential: a lane of a warp folds a row each, a tree the rows' results; `total` is lane 0's.
JP_DEVICE void FoldMatrix(const spec::Uniforms& u, const State* matrix, int count, Maybe& total) {
  const int rows = (count + kMatrixWidth - 1) / kMatrixWidth, mine = count - Lane() * kMatrixWidth;
  const State* row = matrix + Lane() * kMatrixPitch;
  State s = {};
  if (mine > 0) s = row[0];
#pragma unroll 4
  for (int k = 1; k < kMatrixWidth; ++k) {
    if (k < mine) s = spec::Op(u, s, row[k]);
  }
  Append(u, total, {FoldLanes(u, s, rows), count > 0 && Lane() == 0});
}

// With a block for each data-block Matrix, with resident blocks Persistent Matrix.
JP_KERNEL(ReduceMatrix, ReduceParams, kReduceThreads, 1) {
  if constexpr (!spec::kAcross) {
    struct Shared {
      State data[kWarp * kMatrixPitch];
    };
    JP_SHARED(Shared, shared);
    for (i64 task = Block(); task < p.call.batch.members * p.parts; task += Blocks()) {
      const PaperTask me = PaperTaskOf(p, task);
      Maybe total = {};
      for (i64 block = me.first; block < me.last; ++block) {
        LoadMatrix(p, me.row, block, shared.data, Thread(), kReduceThreads);
        BlockBarrier();
        if (Warp() == 0) FoldMatrix(me.row.uniforms, shared.data, CountOf(p, block), total);
        BlockBarrier();
      }
      FinishPart(p, me.row, task, total);
    }
  }
}

// Algorithm 4, producer-consumer: warp 0 reduces the data-block that the others have loaded, while they load the next.
constexpr int kProducers = kReduceThreads;

JP_KERNEL(ReduceProducerConsumer, ReduceParams, kWarp + kProducers, 1) {
  if constexpr (!spec::kAcross) {
    struct Shared {
      State data[2][kWarp * kMatrixPitch];
    };
    JP_SHARED(Shared, shared);
    for (i64 task = Block(); task < p.call.batch.members * p.parts; task += Blocks()) {
      const PaperTask me = PaperTaskOf(p, task);
      Maybe total = {};
      for (i64 block = me.first; block <= me.last; ++block) {
        if (Warp() > 0) {
          if (block < me.last) LoadMatrix(p, me.row, block, shared.data[block % 2], Thread() - kWarp, kProducers);
        } else if (block > me.first) {
          FoldMatrix(me.row.uniforms, shared.data[(block - 1) % 2], CountOf(p, block - 1), total);
        }
        BlockBarrier();
      }
      FinishPart(p, me.row, task, total);
    }
  }
}

}  // namespace jp
