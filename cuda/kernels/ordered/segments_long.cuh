// Long segments: warps fold segment after segment. Segments side by side: threads do, each in its lane. And what both forms
// leave.
#pragma once

namespace jp {

constexpr int kLongWarps = 8;

struct PiecesOfWarps {
  Piece piece[kLongWarps];
};

// A segment that ended in a share, and what was open: the first one is the head.
JP_DEVICE void EndSegment(const SegmentsParams& p, const Row& row, i64 lane, i64 segment, Maybe& open, Piece& mine, bool writes) {
  if (!mine.ended) {
    mine.head = open.state, mine.has_head = open.any, mine.segment = segment, mine.ended = true;
  } else if (writes) {
    FinishSegment(p, row, segment, lane, open);
  }
  open.any = false;
}

// A warp's share, segment after segment. Ends are read together, and what is empty is written together, but for the first
// segment: that may have begun before.
JP_DEVICE Piece FoldShare(const SegmentsParams& p, const Row& row, const Walk& walk, const Share& share) {
  Piece mine = {};
  i64 e = share.from.element, s = share.from.segment, end = 0;
  u32 left = 0;  // lanes whose segments are still to be folded; lane l's is s - kWarp + l
  for (bool closed = true; closed;) {
    i64 until = share.to.element, segment = 0;
    if (p.ids) {
      if (e >= until) break;
      segment = walk[e];
      until = WarpFirstNot(e + 1, until, [&](i64 i) { return walk[i] == segment; });
      closed = until == walk.n || walk[until] != segment;
    } else {
      for (; left == 0 && s < share.to.segment; s += kWarp) {
        const i64 own = s + Lane();
        bool folds = false;
        if (own < share.to.segment) {
          end = walk.End(own);
          folds = own == share.from.segment || end > walk.Start(own);
          if (!folds) FinishSegment(p, row, own, 0, {State{}, false});
        }
        left = Ballot(folds);
      }
      closed = left != 0;
      if (closed) {
        const int k = FirstLane(left);
        const i64 its = ShuffleFrom(end, k);
        left &= left - 1, segment = s - kWarp + k, until = its < until ? its : until;
      }
    }
    Maybe total = FoldSpan(row.arrays, row.uniforms, e, until, kWarpTile);
    if (closed) {
      EndSegment(p, row, 0, segment, total, mine, Lane() == 0);
    } else {
      mine.tail = total.state, mine.has_tail = total.any;
    }
    e = e < until ? until : e;
  }
  return mine;
}

JP_KERNEL(SegmentsLong, SegmentsParams, kReduceThreads, kSimple&& spec::kInBytes <= 4 ? 3 : 1) {
  if constexpr (!spec::kAcross) {
    JP_SHARED(PiecesOfWarps, shared);
    for (i64 task = Block(); task < p.call.batch.members * p.parts; task += Blocks()) {
      const Row row = RowOf(p.call, task / p.parts);
      const Walk walk = WalkOf(p, row);
      const Share share = ShareOfWorker<true>(p, walk, p.parts * kLongWarps, task % p.parts * kLongWarps + Warp());
      const Piece mine = FoldShare(p, row, walk, share);
      if (Lane() == 0) shared.piece[Warp()] = mine;
      BlockBarrier();
      if (Thread() == 0) FinishPieces(p, row, task, 0, shared.piece, kLongWarps, 1);
      BlockBarrier();
    }
  }
}

// --- side by side
// ------------------------------------------------------------------------------------------------------------------

JP_DEVICE Piece FoldLane(const SegmentsParams& p, const Row& row, const Walk& walk, const Share& share, i64 lane) {
  constexpr int kDepth = ColumnDepth(spec::kStateBytes);
  const i64 lanes = p.call.lanes;
  Piece mine = {};
  Maybe open = {};
  i64 segment = share.from.segment, end = segment < share.to.segment ? walk.End(segment) : walk.n + 1;
  auto ends_here = [&] {
    EndSegment(p, row, lane, segment, open, mine, true);
    end = ++segment < share.to.segment ? walk.End(segment) : walk.n + 1;
  };
#pragma unroll 1
  for (i64 i = share.from.element; i < share.to.element; i += kDepth) {
    State x[kDepth];
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      if (i + k < share.to.element) x[k] = spec::LoadOne(row.arrays, row.uniforms, (i + k) * lanes + lane, i + k);
    }
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const i64 at = i + k;
      if (at >= share.to.element) continue;
      if (p.ids) {
        Append(row.uniforms, open, {x[k], true});
        const i64 id = walk[at];
        if (at + 1 == walk.n || walk[at + 1] != id) EndSegment(p, row, lane, id, open, mine, true);
      } else {
        while (end <= at) ends_here();
        Append(row.uniforms, open, {x[k], true});
      }
    }
  }
  while (segment < share.to.segment) ends_here();
  mine.tail = open.state, mine.has_tail = open.any;
  return mine;
}

constexpr int kSegmentsAcrossThreads = AcrossThreads(spec::kStateBytes);

JP_KERNEL(SegmentsAcross, SegmentsParams, kSegmentsAcrossThreads, 1) {
  if constexpr (spec::kAcross) {
    Piece* pieces = reinterpret_cast<Piece*>(DynamicShared());
    for (i64 task = Block(); task < p.call.batch.members * p.parts * p.strips; task += Blocks()) {
      const i64 place = task / p.strips;
      const Strip me = StripOf(p.width, p.slices, p.call.lanes, task % p.strips);
      const Row row = RowOf(p.call, place / p.parts);
      const Walk walk = WalkOf(p, row);
      if (me.active) {
        const Share share = ShareOfWorker<false>(p, walk, p.parts * p.slices, place % p.parts * p.slices + me.slice);
        pieces[Thread()] = FoldLane(p, row, walk, share, me.lane);
      }
      BlockBarrier();
      if (me.active && me.slice == 0) {
        FinishPieces(p, row, place, me.lane, pieces + Thread(), static_cast<int>(p.slices), static_cast<int>(p.width));
      }
      BlockBarrier();
    }
  }
}

// --- between blocks
// ----------------------------------------------------------------------------------------------------------------

// Finishes the segments that end in another block than they began in: the heads. A thread has neighbouring pieces of a lane.
JP_KERNEL(SegmentsBorders, SegmentsParams, kShortThreads, 1) {
  for (i64 task = Block(); task < p.call.batch.members * p.strips; task += Blocks()) {
    const i64 member = task / p.strips;
    const Row row = RowOf(p.call, member);
    const Strip me = StripOf(p.width, p.slices, p.call.lanes, task % p.strips);
    const Piece* pieces = p.pieces + member * p.parts * p.call.lanes + me.lane;
    Span mine = {0, 0};
    if (me.active) mine = ShareOf(p.parts, p.slices, me.slice);
    Maybe open = {};
    bool ended = false;
    auto pass = [&](const Piece& piece) {
      if (piece.ended) ended = true, open.any = false;
      Append(row.uniforms, open, {piece.tail, piece.has_tail});
    };
    for (i64 k = mine.lo; k < mine.hi; ++k) pass(pieces[k * p.call.lanes]);

    if constexpr (spec::kAcross) {
      Piece* shared = reinterpret_cast<Piece*>(DynamicShared());
      if (me.active) {
        Piece& own = shared[Thread()];
        own.tail = open.state, own.has_tail = open.any, own.ended = ended;
      }
      BlockBarrier();
      open.any = false;
      if (me.active) {
        for (int k = Thread() % static_cast<int>(me.width); k < Thread(); k += static_cast<int>(me.width)) pass(shared[k]);
      }
    } else {
      JP_SHARED(OpenOfWarps, shared);
      if (Thread() == 0) shared.state[0] = {}, shared.any[0] = false;
      open = OpenBeforeThread<kShortWarps>(row.uniforms, shared, open, ended);
    }
    for (i64 k = mine.lo; k < mine.hi; ++k) {
      const Piece& piece = pieces[k * p.call.lanes];
      if (piece.ended) {
        Maybe total = open;
        Append(row.uniforms, total, {piece.head, piece.has_head});
        FinishSegment(p, row, piece.segment, me.lane, total);
      }
      pass(piece);
    }
    BlockBarrier();
  }
}

// All segments' results as if they were empty: ids do not tell which are.
JP_KERNEL(SegmentsIdentity, SegmentsParams, kReduceThreads, 1) {
  const i64 results = p.segments * p.call.lanes, parts = p.parts;
  for (i64 task = Block(); task < p.call.batch.members * parts; task += Blocks()) {
    const Row row = RowOf(p.call, task / parts);
    const Span mine = ShareOf(results, parts, task % parts);
    for (i64 k = mine.lo + Thread(); k < mine.hi; k += kReduceThreads) Finish(row, k, {State{}, false});
  }
}

}  // namespace jp
