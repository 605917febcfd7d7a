// The segmented forms of the five algorithms of Martín et al. 2012 (reduce_paper.cuh); elements know their owner, a sorted id.
//
// Left-storing: what a node of the tree, or a row of the matrix, makes of its first segment is kept in the place of its first
// element; of another segment in the place of that segment's first element, where the paper has a buffer of results in global
// memory. There every state is one of a segment's neighbouring parts, in order, so nothing need be an identity. Of a data-block's
// first and last segment the rest may lie in others: they are what the data-block leaves (Piece).
#pragma once

#include "ordered/segments.cuh"

namespace jp {

template <int kElements>
struct DataBlock {
  State data[kElements + kElements / kWarp];
  int start[kElements];  // the place of the first element here that has the same owner
  int last[kWarp];       // of each 32 elements: the last place where a segment starts, or -1

  JP_DEVICE State& At(int place) { return data[place + place / kWarp]; }

  // By `threads` threads, of which this is number `me`; `wait` is a barrier of theirs.
  template <class Wait>
  JP_DEVICE void Load(const Row& row, const Walk& ids, i64 base, int count, int me, int threads, Wait wait) {
    for (int k = me; k < kElements; k += threads) {
      bool starts = false;
      if (k < count) {
        At(k) = spec::LoadOne(row.arrays, row.uniforms, base + k, base + k);
        starts = k == 0 || ids[base + k - 1] != ids[base + k];
      }
      const u32 all = Ballot(starts), until = all & (kAllLanes >> (kWarp - 1 - Lane()));
      const int origin = k - Lane();
      start[k] = until == 0 ? -1 : origin + kWarp - 1 - LeadingZeros(until);
      if (Lane() == 0) last[k / kWarp] = all == 0 ? -1 : origin + kWarp - 1 - LeadingZeros(all);
    }
    wait();
    const u32 some = Ballot(Lane() < kElements / kWarp && last[Lane()] >= 0);
    for (int k = me; k < kElements; k += threads) {
      const u32 before = some & ~(kAllLanes << (k / kWarp));
      if (start[k] < 0) start[k] = last[kWarp - 1 - LeadingZeros(before)];
    }
  }

  // The parts of neighbouring runs of elements, which start at a and b.
  JP_DEVICE void Combine(const spec::Uniforms& u, int a, int b) {
    const int to = start[b] == start[a] ? a : start[b];
    if (to != b) At(to) = spec::Op(u, At(to), At(b));
  }

  // A warp's tree over runs of `width` elements, one a lane.
  JP_DEVICE void CombineLanes(const spec::Uniforms& u, int origin, int width, int count) {
    for (int by = 1; by < kWarp; by *= 2) {
      const int a = origin + Lane() * width, b = a + by * width;
      if (Lane() % (2 * by) == 0 && Lane() + by < kWarp && b < count) Combine(u, a, b);
      WarpBarrier();
    }
  }

  // A lane folds a row.
  JP_DEVICE void FoldRow(const spec::Uniforms& u, int lo, int hi) {
    if (lo >= hi) return;
    int to = lo, owner = start[lo];
    State s = At(lo);
    for (int k = lo + 1; k < hi; ++k) {
      if (start[k] == owner) {
        s = spec::Op(u, s, At(k));
      } else {
        At(to) = s;
        to = owner = k, s = At(k);
      }
    }
    At(to) = s;
  }

  // Writes the results of segments that end here, but the first, by threads as for Load; by the first thread what is left.
  JP_DEVICE void Finish(const SegmentsParams& p, const Row& row, const Walk& ids, i64 base, int count, int me, int threads,
                        Chain& chain) {
    for (int k = me; k < count; k += threads) {
      const i64 at = base + k, id = ids[at];
      if (start[k] != 0 && (at + 1 == ids.n || ids[at + 1] != id)) FinishSegment(p, row, id, 0, {At(start[k]), true});
    }
    if (me != 0) return;
    const int open = start[count - 1];
    const i64 end = base + count;
    const bool closed = end == ids.n || ids[end] != ids[end - 1];
    Piece piece = {};
    piece.ended = open != 0 || closed;
    piece.head = At(0), piece.has_head = piece.ended, piece.segment = ids[base];
    piece.tail = At(open), piece.has_tail = !closed;
    chain.Add(p, row, 0, piece, p.parts == 1);
  }
};

// Data-blocks [first, last) of a member, by a block.
struct PaperShare {
  Row row;
  Walk ids;
  i64 first, last;

  template <int kElements>
  JP_DEVICE int Count(i64 block) const {
    const i64 rest = ids.n - block * kElements;
    return static_cast<int>(rest < kElements ? rest : kElements);
  }
};
template <int kElements>
JP_DEVICE PaperShare PaperShareOf(const SegmentsParams& p, i64 task) {
  const Row row = RowOf(p.call, task / p.parts);
  const Span mine = ShareOf((p.call.n + kElements - 1) / kElements, p.parts, task % p.parts);
  return {row, WalkOf(p, row), mine.lo, mine.hi};
}

template <int kElements, int kThreads, class Reduce>
JP_DEVICE void ReduceDataBlocks(const SegmentsParams& p, DataBlock<kElements>& shared, Reduce reduce) {
  for (i64 task = Block(); task < p.call.batch.members * p.parts; task += Blocks()) {
    const PaperShare me = PaperShareOf<kElements>(p, task);
    Chain chain = {};
    for (i64 block = me.first; block < me.last; ++block) {
      const int count = me.Count<kElements>(block);
      shared.Load(me.row, me.ids, block * kElements, count, Thread(), kThreads, [] { BlockBarrier(); });
      BlockBarrier();
      reduce(me.row.uniforms, count);
      BlockBarrier();
      shared.Finish(p, me.row, me.ids, block * kElements, count, Thread(), kThreads, chain);
      BlockBarrier();
    }
    if (Thread() == 0 && p.parts > 1) p.pieces[task] = chain.all;
  }
}

JP_KERNEL(SegmentsTree, SegmentsParams, kTreeThreads, 1) {
  if constexpr (!spec::kAcross) {
    using Shared = DataBlock<2 * kTreeThreads>;
    JP_SHARED(Shared, shared);
    ReduceDataBlocks<2 * kTreeThreads, kTreeThreads>(p, shared, [&](const spec::Uniforms& u, int count) {
      for (int active = kTreeThreads, stride = 1; active > 0; active /= 2, stride *= 2) {
        const int a = 2 * stride * Thread(), b = a + stride;
        if (Thread() < active && b < count) shared.Combine(u, a, b);
        BlockBarrier();
      }
    });
  }
}

JP_KERNEL(SegmentsWarpTree, SegmentsParams, kTreeThreads, 1) {
  if constexpr (!spec::kAcross) {
    using Shared = DataBlock<4 * kTreeThreads>;
    JP_SHARED(Shared, shared);
    ReduceDataBlocks<4 * kTreeThreads, kTreeThreads>(p, shared, [&](const spec::Uniforms& u, int count) {
      for (int k = 0; k < 4; ++k) shared.CombineLanes(u, k * kTreeThreads + Warp() * kWarp, 1, count);
      BlockBarrier();
      if (Warp() == 0) shared.CombineLanes(u, 0, kWarp, count);
    });
  }
}

template <int kElements>
JP_DEVICE void FoldOwnedMatrix(const spec::Uniforms& u, DataBlock<kElements>& shared, int count) {
  constexpr int kWidth = kElements / kWarp;
  const int lo = Lane() * kWidth, hi = lo + kWidth;
  shared.FoldRow(u, lo, hi < count ? hi : count);
  WarpBarrier();
  shared.CombineLanes(u, 0, kWidth, count);
}

JP_KERNEL(SegmentsMatrix, SegmentsParams, kReduceThreads, 1) {
  if constexpr (!spec::kAcross) {
    using Shared = DataBlock<kWarp * kMatrixWidth>;
    JP_SHARED(Shared, shared);
    ReduceDataBlocks<kWarp * kMatrixWidth, kReduceThreads>(p, shared, [&](const spec::Uniforms& u, int count) {
      if (Warp() == 0) FoldOwnedMatrix(u, shared, count);
    });
  }
}

// Warp 0 reduces and finishes a data-block while the others load the next.
JP_KERNEL(SegmentsProducerConsumer, SegmentsParams, kWarp + kReduceThreads, 1) {
  if constexpr (!spec::kAcross) {
    constexpr int kElements = kWarp * kMatrixWidth;
    struct Shared {
      DataBlock<kElements> block[2];
    };
    JP_SHARED(Shared, shared);
    for (i64 task = Block(); task < p.call.batch.members * p.parts; task += Blocks()) {
      const PaperShare me = PaperShareOf<kElements>(p, task);
      Chain chain = {};
      for (i64 block = me.first; block <= me.last; ++block) {
        if (Warp() > 0) {
          if (block < me.last) {
            shared.block[block % 2].Load(me.row, me.ids, block * kElements, me.Count<kElements>(block), Thread() - kWarp,
                                         kReduceThreads, [] { NamedBarrier(1, kReduceThreads); });
          }
        } else if (block > me.first) {
          DataBlock<kElements>& last = shared.block[(block - 1) % 2];
          const int count = me.Count<kElements>(block - 1);
          FoldOwnedMatrix(me.row.uniforms, last, count);
          WarpBarrier();
          last.Finish(p, me.row, me.ids, (block - 1) * kElements, count, Lane(), kWarp, chain);
        }
        BlockBarrier();
      }
      if (Thread() == 0 && p.parts > 1) p.pieces[task] = chain.all;
    }
  }
}

}  // namespace jp
