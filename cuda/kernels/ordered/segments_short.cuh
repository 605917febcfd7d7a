// Short segments: a tile of elements at a time, all threads at equally many neighbouring elements, wherever segments end.
//
// Elements are read as they lie, side by side for neighbouring lanes, and exchanged through shared memory. Bytes beside them say
// at which a segment ends; its result is kept in that element's place, and written from there in the segments' order.
#pragma once

namespace jp {

constexpr int kShortItems = SegmentsItems(spec::kStateBytes), kShortTile = kShortThreads * kShortItems;
constexpr int kShortRun = kItems < kShortItems ? kItems : kShortItems, kShortRuns = kShortItems / kShortRun;

constexpr int kMarks = 4;  // segments that a thread looks at together, where many end in a tile

// What is seldom looked at does not take registers.
struct ShortShared {
  OpenOfWarps open;
  Walk walk;
  Cut from, to;
  i64 head_id;
  i64 stop;  // the first segment that does not end in the tile
};

JP_DEVICE int Padded(int place) { return place + (place >> 5); }

// The tile's elements [base + from, base + to), to shared memory.
JP_DEVICE void StageTile(const Row& row, i64 base, int from, int to, State* staged) {
  if (from == 0 && to == kShortTile) {
    State x[kShortRuns][kShortRun];
    const i64 at = base + Thread() * kShortRun;
    spec::LoadRuns(row.arrays, row.uniforms, at, at, kShortThreads * kShortRun, x);
#pragma unroll
    for (int r = 0; r < kShortRuns; ++r) {
      State* to_here = staged + Padded((r * kShortThreads + Thread()) * kShortRun);
#pragma unroll
      for (int k = 0; k < kShortRun; ++k) to_here[k] = x[r][k];
    }
  } else {
#pragma unroll 1
    for (int place = from + Thread(); place < to; place += kShortThreads) {
      staged[Padded(place)] = spec::LoadOne(row.arrays, row.uniforms, base + place, base + place);
    }
  }
}

// Where a thread's segment lies, if it is one of the block's.
struct Bounds {
  i64 segment, start, end;
  bool some;
};
JP_DEVICE Bounds BoundsOf(const Walk& walk, i64 segment, i64 end_segment) {
  if (segment >= end_segment) return {segment, 0, 0, false};
  return {segment, walk.Start(segment), walk.End(segment), true};
}

// Marks where it ends, if it does in the tile; `stop` becomes the first segment that does not. By whole warps.
JP_DEVICE void Mark(const Bounds& bounds, i64 base, i64 lo, i64 hi, u8* flags, i64* stop) {
  const bool inside = bounds.some && bounds.end <= hi;
  if (inside && bounds.end > lo && bounds.end > bounds.start) flags[bounds.end - 1 - base] = 1;
  const u32 outside = ~Ballot(inside);
  if (outside != 0 && Lane() == FirstLane(outside)) AtomicMin(stop, bounds.segment);
}

// The same of ids.
template <class Index>
JP_DEVICE void MarkIds(const Index* ids, i64 n, i64 base, int from, int to, u8* flags) {
  if (from == 0 && to == kShortTile) {
#pragma unroll
    for (int r = 0; r < kShortRuns; ++r) {
      const int place = (r * kShortThreads + Thread()) * kShortRun;
      const i64 behind = base + place + kShortRun;
      Index own[kShortRun];
      u8 ends[kShortRun];
      ReadRun(ids, base + place, own);
#pragma unroll
      for (int k = 0; k + 1 < kShortRun; ++k) ends[k] = own[k] != own[k + 1];
      ends[kShortRun - 1] = behind == n || own[kShortRun - 1] != ids[behind];
      memcpy(__builtin_assume_aligned(flags + place, kShortRun), ends, kShortRun);
    }
  } else {
#pragma unroll 1
    for (int place = from + Thread(); place < to; place += kShortThreads) {
      const i64 at = base + place;
      flags[place] = at + 1 == n || ids[at] != ids[at + 1];
    }
  }
}

// Bit k: a segment ends at a thread's element k. Bytes are 0 or 1, so that a product gathers four of them without a carry.
JP_DEVICE u32 EndsOf(const u8* flags) {
  u32 ends = 0;
  if constexpr (kShortItems >= 4) {
    u32 bytes[kShortItems < 4 ? 1 : kShortItems / 4];  // the branch is compiled wherever it is not taken, too
    memcpy(bytes, __builtin_assume_aligned(flags, kShortItems), kShortItems);
#pragma unroll
    for (int k = 0; k < kShortItems / 4; ++k) ends |= (bytes[k] * 0x10204080u >> 28) << 4 * k;
  } else {
#pragma unroll
    for (int k = 0; k < kShortItems; ++k) ends |= u32{flags[k]} << k;
  }
  return ends;
}

// Folds a thread's elements [from, to), or all of them, up to each end, in whose place the result is left; what is open behind.
template <bool kAll>
JP_DEVICE Maybe FoldItems(const spec::Uniforms& u, State* mine, u32 ends, int from, int to) {
  Maybe open = {};
#pragma unroll
  for (int k = 0; k < kShortItems; ++k) {
    if (kAll || (k >= from && k < to)) Append(u, open, {mine[k], true});
    if ((ends >> k & 1) != 0) {
      mine[k] = open.state;
      open.any = false;
    }
  }
  return open;
}

// Few waits of a block are hidden by its own warps, so several blocks are resident.
constexpr int kShortResident = kSimple && spec::kStateBytes <= 4 ? 4
                               : spec::kStateBytes <= 8          ? 3
                               : spec::kStateBytes <= 16         ? 2
                                                                 : 1;

JP_KERNEL(SegmentsShort, SegmentsParams, kShortThreads, kShortResident) {
  if constexpr (!spec::kAcross) {
    JP_SHARED(ShortShared, shared);
    State* staged = reinterpret_cast<State*>(DynamicShared());
    u8* flags = reinterpret_cast<u8*>(DynamicShared() + StagedBytes(spec::kStateBytes));
    for (i64 task = Block(); task < p.call.batch.members * p.parts; task += Blocks()) {
      const Row row = RowOf(p.call, task / p.parts);
      const spec::Uniforms& u = row.uniforms;
      if (Warp() < 2) {  // a warp for each end
        const Walk found = WalkOf(p, row);
        const i64 all = p.ids ? found.n : found.last - found.first + found.segments;
        const Span mine = ShareOf(all, p.parts, task % p.parts);
        const i64 at = Warp() == 0 ? mine.lo : mine.hi;
        const Cut cut = p.ids ? Cut{0, at} : CutAt<true>(found, at);
        if (Lane() == 0) (Warp() == 0 ? shared.from : shared.to) = cut;
        if (Thread() == 0) {
          shared.walk = found;
          shared.head_id = p.ids && mine.lo < mine.hi ? found[mine.lo] : -1;
          shared.open.state[kShortWarps] = {}, shared.open.any[kShortWarps] = false;
        }
      }
      BlockBarrier();
      const Walk& walk = shared.walk;
      i64 e = shared.from.element, s = shared.from.segment;
      bool ended = false;  // has a segment?
      while (e < shared.to.element || s < shared.to.segment) {
        // Tiles start where runs can be read at once.
        const i64 base = MultipleOf<kShortRun>(e), hi = base + kShortTile < shared.to.element ? base + kShortTile : shared.to.element;
        const int lo_place = static_cast<int>(e - base), hi_place = hi > base ? static_cast<int>(hi - base) : 0;
        Bounds ahead = {};  // asked for before anything is waited for
        if (!p.ids) ahead = BoundsOf(walk, s + Thread(), shared.to.segment);
        if (Thread() == 0) {
          shared.open.state[0] = shared.open.state[kShortWarps], shared.open.any[0] = shared.open.any[kShortWarps];
          shared.stop = shared.to.segment;
        }
        memset(__builtin_assume_aligned(flags + Thread() * kShortItems, kShortItems), 0, kShortItems);
        BlockBarrier();
        i64 stop = 0;
        if (!p.ids) {
          StageTile(row, base, lo_place, hi_place, staged);
          Mark(ahead, base, e, hi, flags, &shared.stop);
          for (i64 next = s + kShortThreads;; next += kMarks * kShortThreads) {
            BlockBarrier();
            stop = shared.stop;
            if (stop < next) break;  // only greater numbers are stored later
            Bounds more[kMarks];
#pragma unroll
            for (int k = 0; k < kMarks; ++k) more[k] = BoundsOf(walk, next + k * kShortThreads + Thread(), shared.to.segment);
#pragma unroll
            for (int k = 0; k < kMarks; ++k) Mark(more[k], base, e, hi, flags, &shared.stop);
          }
        } else {
          if (walk.wide) {
            MarkIds(reinterpret_cast<const i64*>(walk.data), walk.n, base, lo_place, hi_place, flags);
          } else {
            MarkIds(reinterpret_cast<const i32*>(walk.data), walk.n, base, lo_place, hi_place, flags);
          }
          StageTile(row, base, lo_place, hi_place, staged);
          BlockBarrier();
        }

        State* mine = staged + Padded(Thread() * kShortItems);
        const u32 ends = EndsOf(flags + Thread() * kShortItems);
        Maybe open;
        if (lo_place == 0 && hi_place == kShortTile) {
          open = FoldItems<true>(u, mine, ends, 0, kShortItems);
        } else {
          open = FoldItems<false>(u, mine, ends, lo_place - Thread() * kShortItems, hi_place - Thread() * kShortItems);
        }
        const Maybe before = OpenBeforeThread<kShortWarps>(u, shared.open, open, ends != 0);
        if (ends != 0 && before.any) mine[FirstLane(ends)] = spec::Op(u, before.state, mine[FirstLane(ends)]);
        BlockBarrier();

        const bool first_ends = !ended && p.parts > 1;
        auto write = [&](i64 segment, bool head, const Maybe& total) {
          if (head && first_ends) {
            Piece& to_store = p.pieces[task];
            to_store.head = total.state, to_store.has_head = total.any, to_store.segment = segment;
          } else {
            FinishSegment(p, row, segment, 0, total);
          }
        };
        if (!p.ids) {
          for (i64 segment = s + Thread(); segment < stop; segment += kShortThreads) {
            const i64 end_of = walk.End(segment);
            const bool any = end_of > e && end_of <= hi && end_of > walk.Start(segment);
            write(segment, segment == s, {any ? staged[Padded(static_cast<int>(end_of - 1 - base))] : State{}, any});
          }
          ended = ended || stop > s;
        } else {
          for (int four = Thread() * 4; four < kShortTile; four += kShortThreads * 4) {  // elsewhere flags are 0
            u32 marks;
            memcpy(&marks, __builtin_assume_aligned(flags + four, 4), 4);
            for (; marks != 0; marks &= marks - 1) {
              const int place = four + FirstLane(marks) / 8;
              const i64 id = walk[base + place];
              write(id, id == shared.head_id, {staged[Padded(place)], true});
            }
          }
          ended = ended || shared.open.some_ended;
        }
        if (stop == s && e >= shared.to.element) break;  // offsets that do not ascend
        s = p.ids ? s : stop, e = hi > e ? hi : e;
        BlockBarrier();
      }
      if (p.parts > 1 && Thread() == 0) {
        Piece& to_store = p.pieces[task];
        to_store.tail = shared.open.state[kShortWarps], to_store.has_tail = shared.open.any[kShortWarps];
        to_store.ended = ended;
      }
      BlockBarrier();
    }
  }
}

}  // namespace jp
