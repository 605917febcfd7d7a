// Segmented reductions: N elements, segments given by offsets (CSR) or by sorted ids.
//
// Elements and ends of segments, merged in their order, are cut into equal shares (Merrill and Garland's merge path), of ids the
// elements alone. A share finishes the segments that end in it, but the first: that one may have begun before. Of that it leaves
// the state of its own elements (the head), and the state of what is still open at its end (the tail). These are folded in order,
// in a block by one thread, between blocks by another kernel, which starts when this one has ended. So how elements are
// associated depends on sizes and segments alone.
//
// No input leads to an access out of bounds: offsets are clamped, an end marks an element of the tile or nothing, ids are
// compared with the number of segments before anything is written.
#pragma once

#include "ordered/fold.cuh"
#include "segments_tiles.h"

namespace jp {

constexpr int kShortThreads = SegmentsThreads(spec::kStateBytes), kShortWarps = kShortThreads / kWarp;

// What a share leaves.
struct Piece {
  State head, tail;
  i64 segment;  // that of the head
  bool has_head, has_tail, ended;
  int unused;
};
static_assert(sizeof(Piece) == PieceBytes(spec::kStateBytes), "the launcher's");

struct SegmentsParams {
  Call call;
  i64 segments, ids, wide;    // how many; ids or offsets; of 64 bits or 32
  i64 parts;                  // blocks for each member (and strip)
  Piece* pieces;              // [member, part, lane]
  i64 width, slices, strips;  // across
};

// A place in the merged order: as many ends and elements lie before it.
struct Cut {
  i64 segment, element;
};

struct Walk {
  const char* data;
  bool wide;
  i64 n, segments, first, last;  // first, last: what offsets enclose

  JP_DEVICE i64 operator[](i64 i) const {
    return wide ? reinterpret_cast<const i64*>(data)[i] : reinterpret_cast<const i32*>(data)[i];
  }
  JP_DEVICE i64 Clamp(i64 x) const { return x < first ? first : x > last ? last : x; }
  JP_DEVICE i64 End(i64 segment) const { return Clamp((*this)[segment + 1]); }
  JP_DEVICE i64 Start(i64 segment) const { return Clamp((*this)[segment]); }
  JP_DEVICE bool Has(i64 id) const { return id >= 0 && id < segments; }
};

JP_DEVICE Walk WalkOf(const SegmentsParams& p, const Row& row) {
  Walk walk = {row.cut, p.wide != 0, p.call.n, p.segments, 0, p.call.n};
  if (!p.ids) {
    const i64 first = walk.Clamp(walk[0]), last = walk.Clamp(walk[p.segments]);
    walk.first = first, walk.last = last < first ? first : last;
  }
  return walk;
}

// The first number in [lo, hi) for which `before` is false, found by a warp; it is true for those before, if the input is as
// promised.
template <class Before>
JP_DEVICE i64 WarpFirstNot(i64 lo, i64 hi, Before before) {
  while (lo < hi) {
    const i64 step = (hi - lo + kWarp - 1) / kWarp, probe = lo + (Lane() + 1) * step - 1;
    const u32 no = ~Ballot(probe < hi && before(probe));
    if (no == 0) return hi;
    const int passed = FirstLane(no);
    const i64 end = lo + (passed + 1) * step - 1;
    lo += passed * step;
    hi = end < hi ? end : hi;
    lo = lo < hi ? lo : hi;
  }
  return lo;
}
template <class Before>
JP_DEVICE i64 FirstNot(i64 lo, i64 hi, Before before) {
  while (lo < hi) {
    const i64 mid = lo + (hi - lo) / 2;
    if (before(mid)) {
      lo = mid + 1;
    } else {
      hi = mid;
    }
  }
  return lo;
}

// Where a worker's share starts (of offsets), found by a thread or by a warp.
template <bool kByWarp>
JP_DEVICE Cut CutAt(const Walk& walk, i64 d) {
  const i64 elements = walk.last - walk.first;
  auto before = [&](i64 s) { return walk.End(s) - walk.first + s < d; };
  const i64 lo = d > elements ? d - elements : 0, hi = d < walk.segments ? d : walk.segments;
  i64 ends;
  if constexpr (kByWarp) {
    ends = WarpFirstNot(lo, hi, before);
  } else {
    ends = FirstNot(lo, hi, before);
  }
  return {ends, walk.first + d - ends};
}

struct Share {
  Cut from, to;
};
template <bool kByWarp>
JP_DEVICE Share ShareOfWorker(const SegmentsParams& p, const Walk& walk, i64 workers, i64 worker) {
  if (p.ids) {
    const Span mine = ShareOf(walk.n, workers, worker);
    return {{0, mine.lo}, {0, mine.hi}};
  }
  const Span mine = ShareOf(walk.last - walk.first + walk.segments, workers, worker);
  return {CutAt<kByWarp>(walk, mine.lo), CutAt<kByWarp>(walk, mine.hi)};
}

// --- what shares leave, folded in order
// --------------------------------------------------------------------------------------------

// The result of a segment, at most once for each.
JP_DEVICE void FinishSegment(const SegmentsParams& p, const Row& row, i64 segment, i64 lane, const Maybe& total) {
  if (segment >= 0 && segment < p.segments) Finish(row, segment * p.call.lanes + lane, total);
}

// Neighbouring pieces as one: finishes all heads but the first. With `first`, that one, too: nothing came before.
struct Chain {
  Piece all;

  JP_DEVICE void Add(const SegmentsParams& p, const Row& row, i64 lane, const Piece& next, bool first) {
    const spec::Uniforms& u = row.uniforms;
    Maybe open = {all.tail, all.has_tail};
    if (next.ended) {
      Append(u, open, {next.head, next.has_head});
      if (all.ended || first) {
        FinishSegment(p, row, next.segment, lane, open);
      } else {
        all.head = open.state, all.has_head = open.any, all.segment = next.segment;
      }
      all.ended = true;
      all.tail = next.tail, all.has_tail = next.has_tail;
    } else {
      Append(u, open, {next.tail, next.has_tail});
      all.tail = open.state, all.has_tail = open.any;
    }
  }
};

// Of pieces [0, count), `stride` apart in shared memory, by one thread; the result is where others find it.
JP_DEVICE void FinishPieces(const SegmentsParams& p, const Row& row, i64 task, i64 lane, const Piece* pieces, int count,
                            int stride) {
  Chain chain = {};
  for (int k = 0; k < count; ++k) chain.Add(p, row, lane, pieces[k * stride], p.parts == 1);
  if (p.parts > 1) p.pieces[task * p.call.lanes + lane] = chain.all;
}

// Lanes' open states, as a scan: in each lane what is open behind it, of those since the last one in which a segment ended.
// Returns in which lanes one did.
JP_DEVICE u32 ScanOpen(const spec::Uniforms& u, Maybe& open, bool ended) {
  const u32 ends = Ballot(ended), until = ends & (kAllLanes >> (kWarp - 1 - Lane()));
  const int start = until == 0 ? 0 : kWarp - 1 - LeadingZeros(until);
#pragma unroll 1
  for (int by = 1; by < kWarp; by *= 2) {
    const State before = StateUp(open.state, by);
    const u32 any = Ballot(open.any);
    if (Lane() - by >= start && (any >> (Lane() - by) & 1) != 0) {
      open.state = open.any ? spec::Op(u, before, open.state) : before;
      open.any = true;
    }
  }
  return ends;
}
// What is open before each lane of such a scan.
JP_DEVICE Maybe OpenBefore(const Maybe& scanned) {
  const State state = StateUp(scanned.state, 1);
  const u32 any = Ballot(scanned.any);
  return {state, Lane() > 0 && (any >> (Lane() - 1) & 1) != 0};
}

// The same for a block. Entry 0: what is open before the block's elements; entry w + 1: behind warp w.
struct OpenOfWarps {
  State state[kWarp];
  bool any[kWarp], ended[kWarp];
  bool some_ended;
};

// Returns what is open before this thread's elements. All of the block call it; a barrier must lie before entries change again.
template <int kWarps>
JP_DEVICE Maybe OpenBeforeThread(const spec::Uniforms& u, OpenOfWarps& shared, Maybe open, bool ended) {
  const u32 ends = ScanOpen(u, open, ended);
  const Maybe before = OpenBefore(open);
  if (Lane() == kWarp - 1) {
    shared.state[Warp() + 1] = open.state, shared.any[Warp() + 1] = open.any, shared.ended[Warp() + 1] = ends != 0;
  }
  BlockBarrier();
  if (Warp() == 0) {
    Maybe mine = {shared.state[0], false};
    bool here = false;
    if (Lane() <= kWarps) {
      mine = {shared.state[Lane()], shared.any[Lane()]};
      here = Lane() > 0 && shared.ended[Lane()];
    }
    const u32 all = ScanOpen(u, mine, here);
    if (Lane() <= kWarps) shared.state[Lane()] = mine.state, shared.any[Lane()] = mine.any;
    if (Lane() == 0) shared.some_ended = all != 0;
  }
  BlockBarrier();
  if ((ends & ~(kAllLanes << Lane())) != 0) return before;
  Maybe in = {shared.state[Warp()], shared.any[Warp()]};
  Append(u, in, before);
  return in;
}

}  // namespace jp

#include "ordered/segments_long.cuh"
#include "ordered/segments_short.cuh"
