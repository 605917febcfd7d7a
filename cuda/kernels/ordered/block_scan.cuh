// The scan of a tile: runs in threads, rounds of runs in warps, warps in the block.
//
// Nothing is made up where there is nothing: the operator sees elements and what it made of them. Where a tile is not full, the
// spare places hold copies of an element; they come last, or before a start. That such are combined with each other, whatever
// that gives, does no harm; but an operator that may not end gets no pair that is not in the data (kMayNotEnd): there they are
// starts.
#pragma once

#include "ordered/look_back.cuh"

namespace jp {

template <class Fn>
JP_DEVICE void WordsOf(State& state, Fn& fn) {
  u32 words[kStateWords] = {};
  memcpy(words, &state, sizeof(State));
#pragma unroll
  for (int k = 0; k < kStateWords; ++k) fn(words[k]);
  memcpy(&state, words, sizeof(State));
}

// A warp's elements, in scan order: round after round, lane after lane, a run of neighbours each. With kStarts, sequences start
// anew at some.
template <bool kStarts, int kRun, int kRounds>
struct WarpTile {
  static_assert(kRun * kRounds <= 32, "a bit for each element");
  State x[kRounds][kRun];
  u32 starts = 0;  // bit r * kRun + k: at element k of run r

  JP_DEVICE u32 StartsOf(int r) const { return starts >> (r * kRun) & ((2u << (kRun - 1)) - 1); }
  JP_DEVICE bool StartsAt(int r, int k) const { return kStarts && (starts >> (r * kRun + k) & 1) != 0; }

  // Scans each run and finds what lies before it in the warp. Returns the warp's total; `started`: since a start.
  JP_DEVICE State Fold(const spec::Uniforms& u, bool& started) {
    const u32 here = 1u << Lane(), upto = kAlone && !spec::kExclusive ? 2 * here - 1 : here - 1;
    State total;
    started = false;
    open_ = 0;
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
#pragma unroll
      for (int k = 1; k < kRun; ++k) {
        if (!StartsAt(r, k)) x[r][k] = spec::Op(u, x[r][k - 1], x[r][k]);
      }
      const u32 heads = kStarts ? Ballot(StartsOf(r) != 0) : 0;
      const State through = WarpScan(u, x[r][kRun - 1], kStarts ? ReachOf(heads) : Lane());
      const bool open = !kStarts || (heads & upto) == 0;  // up to the round's beginning
      if (open && !started) open_ |= 1u << r;
      State& kept = kAlone ? x[r][0] : before_[r];
      if constexpr (kAlone && !spec::kExclusive) {
        kept = through;
        if (r > 0 && open) kept = spec::Op(u, total, through);
      } else {
        kept = StateUp(through, 1);
        if (r > 0 && open) kept = After(u, Lane() == 0, total, kept);
      }
      const State last = StateFrom(through, kWarp - 1);
      total = r == 0 || (kStarts && heads != 0) ? last : spec::Op(u, total, last);
      started = started || heads != 0;
    }
    return total;
  }

  // Makes results of the elements. base: what comes before the warp, if that is `there`; start(round, k): what an exclusive scan
  // starts from at an element.
  template <class Start>
  JP_DEVICE void Finish(const spec::Uniforms& u, const State& base, bool there, Start start) {
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const bool top = r == 0 && Lane() == 0;  // nothing of the warp lies before
      State& kept = kAlone ? x[r][0] : before_[r];
      if (there && (!kStarts || (open_ >> r & 1))) {
        kept = After(u, r == 0 && !(kAlone && !spec::kExclusive) && top, base, kept);
      }
      const bool none = top && !there;
      if constexpr (!kAlone) {
        u32 reach = kRun;  // elements that `kept` comes before
        if (kStarts && StartsOf(r) != 0) reach = static_cast<u32>(FirstLane(StartsOf(r)));
        if (r == 0 && none) reach = 0;
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          if (k < reach) x[r][k] = spec::Op(u, kept, x[r][k]);
        }
      }
      if constexpr (spec::kExclusive) {
#pragma unroll
        for (int k = kRun - 1; k >= 0; --k) {
          if constexpr (!kAlone) x[r][k] = k > 0 ? x[r][k - 1] : kept;
          if (kStarts ? StartsAt(r, k) : k == 0 && r == 0 && none) x[r][k] = start(r, k);
        }
      }
    }
  }

  // Words of a thread that are all there is of its elements between Fold and Finish; fn(word) for each of them, which it may
  // change.
  static constexpr int kWords = kRounds * (kRun + (kRun > 1 ? 1 : 0)) * kStateWords + (kStarts ? 2 : 0);
  template <class Fn>
  JP_DEVICE void EachWord(Fn fn) {
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
#pragma unroll
      for (int k = 0; k < kRun; ++k) WordsOf(x[r][k], fn);
      if constexpr (!kAlone) WordsOf(before_[r], fn);
    }
    if constexpr (kStarts) {
      fn(starts);
      fn(open_);
    }
  }

 private:
  // `before`, and then `x`, or nothing.
  JP_DEVICE static State After(const spec::Uniforms& u, bool nothing, const State& before, const State& x) {
    if (spec::kMayNotEnd && nothing) return before;
    return spec::Choose(nothing, before, spec::Op(u, before, x));
  }

  // A run of one element needs no more than its own result so far.
  static constexpr bool kAlone = kRun == 1;

  State before_[kRounds];
  u32 open_;  // bit r: no start lies between the warp's first element and run r
};

}  // namespace jp
