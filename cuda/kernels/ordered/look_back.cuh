// What comes before a tile: look-back over what other blocks have published, in two levels.
//
// A sequence is a chain of tiles, in aligned groups of 32. Of tile t = 32 g + q in group g,
//
//   carry(t) = P(g) ⊕ (A(32 g) ⊕ ... ⊕ A(t - 1)),   P(g + 1) = P(g) ⊕ T(g),   T(g) = A(32 g) ⊕ ... ⊕ A(32 g + 31)
//
// where A(t) is a tile's aggregate. The bracket and T are WarpScan's tree, whose shape depends on q alone; P is a left fold. A
// block waits for some P among the last 32 groups (1,024 tiles, more than are under way), takes the nearest and folds the totals
// behind it forward: the same left fold wherever it starts. So the bits do not depend on timing. A carry is one read of 32
// aggregates and 32 groups, where a chain of tiles would be one read for every 32.
//
// Who publishes what: each tile its A; a group's last tile T as soon as it has read the group's aggregates, and P(g + 1).
// Where a sequence starts anew (`started`), nothing before counts: such an A ends look-back, and such a T is a P.
//
// No deadlock. Tiles are numbered so that a chain's come in their order; numbers are handed out by an atomic counter (ticket),
// and a block works on its tiles one after the other, in the order of their numbers. (It may hold a number that it has not begun:
// then the tile that it is at has a smaller one. Where tiles wait: scan.cuh.) Suppose that no block goes on, and let t be the
// least tile that is claimed and not finished. Its block is at it: what this block claimed before is finished. All tiles before t
// are finished, so they published all they have to; t waits for nothing else, and goes on. Only that resident blocks run is
// needed, not that all blocks are resident.
//
// Memory order. A record is not a flag and data but words of 8 bytes, each half data and half flag, read and written as one. So
// relaxed accesses suffice: a word that is there is complete, and nobody reads other memory because of it. Each is written once,
// after the launcher zeroed it. One latency, not two, for a state of any size.
#pragma once

#include "scan_tiles.h"

namespace jp {

using State = spec::State;

// x of the `reach` lanes before this one and its own, in their order, where reach < kReach. No lane reaches across another's
// first one.
template <int kReach = kWarp>
JP_DEVICE State WarpScan(const spec::Uniforms& u, State x, int reach) {
#pragma unroll
  for (int by = 1; by < kReach; by *= 2) {
    const State before = StateUp(x, by);
    if (by <= reach) x = spec::Op(u, before, x);
  }
  return x;
}

// How many lanes before this one belong to its sequence. heads: the lanes where one starts.
JP_DEVICE int ReachOf(u32 heads) {
  const u32 mine = heads & (kAllLanes >> (kWarp - 1 - Lane()));
  return mine != 0 ? Lane() - (kWarp - 1 - LeadingZeros(mine)) : Lane();
}

struct Published {
  State state;
  bool started, there;
};

constexpr u32 kThere = 1, kStarted = 2;  // flags, in a word's upper half

JP_DEVICE void Publish(u64* words, int stride, const State& state, bool started) {
  u32 data[kStateWords] = {};
  memcpy(data, &state, sizeof(State));
#pragma unroll
  for (int k = 0; k < kStateWords; ++k) {
    StoreRelaxed(words + k * stride, u64{started ? kThere | kStarted : kThere} << 32 | data[k]);
  }
}

struct Record {
  u32 data[kStateWords];
  u32 flags;

  JP_DEVICE void Read(const u64* words, int stride) {
    flags = kThere | kStarted;
#pragma unroll
    for (int k = 0; k < kStateWords; ++k) {
      const u64 word = LoadRelaxed(words + k * stride);
      data[k] = static_cast<u32>(word);
      flags &= static_cast<u32>(word >> 32);
    }
  }
  JP_DEVICE bool there() const { return (flags & kThere) != 0; }
  // Leaves `out` as it is if the record is not complete.
  JP_DEVICE void Get(Published& out) const {
    if (!there()) return;
    memcpy(&out.state, data, sizeof(State));
    out.started = (flags & kStarted) != 0;
    out.there = true;
  }
};

// The records of one chain. All of a warp work together.
class Chain {
 public:
  JP_DEVICE Chain(u64* words, int tiles) : aggregates_(words), groups_(static_cast<int>(ScanGroups(tiles))), tiles_(tiles) {}

  // Publishes the aggregate of `tile`; every lane has it.
  JP_DEVICE void PublishAggregate(int tile, const State& aggregate, bool started) const {
    if (tile + 1 < tiles_ && Lane() == 0) Publish(Aggregate(tile), kScanGroup, aggregate, started);
  }

  // What comes before `tile`, if that is `needed` (of tile 0 it never is), and publishes what others need to know of its group.
  JP_DEVICE State LookBack(const spec::Uniforms& u, int tile, const State& aggregate, bool started, bool needed) const {
    const int group = tile / kScanGroup, place = tile % kScanGroup, lane = Lane();
    const bool last = place == kScanGroup - 1 && tile + 1 < tiles_;
    if (last && started && lane == 0) Publish(Prefix(group), groups_, aggregate, false);
    if (!needed && (started || !last)) return aggregate;

    Published mine = {aggregate, started, lane >= place};
    Published before = {aggregate, false, lane >= group};
    bool prefix = false;  // is `before` all that comes before?
    u32 heads;
    int first;  // lanes before it do not count
    for (;;) {
      Record other;
      if (!mine.there) other.Read(Aggregate(tile - place + lane), kScanGroup);
      if constexpr (kAtOnce) PollGroup(group - 1 - lane, before, prefix);  // meanwhile
      if (!mine.there) other.Get(mine);
      heads = Ballot(lane < place && mine.there && mine.started);
      first = heads != 0 ? kWarp - 1 - LeadingZeros(heads) : 0;
      if (Ballot(mine.there) >> first == kAllLanes >> first) break;
      Backoff();
    }
    // Lane `place` ends up with the tiles up to its own, the lane before it with those before.
    const bool counts = lane >= first && lane <= place && !(lane == place && started);
    const State through = WarpScan(u, mine.state, counts ? lane - first : 0);
    const State within = StateFrom(through, place > 0 ? place - 1 : 0);
    const State total = StateFrom(through, place);
    const bool whole = heads != 0 || group == 0, tell = last && !started && lane == 0;
    if (tell) Publish(whole ? Prefix(group) : Total(group), groups_, total, false);
    if (whole) return within;

    u32 prefixes;
    int nearest;
    for (;;) {
      prefixes = Ballot(prefix);
      nearest = FirstLane(prefixes);
      if (prefixes != 0 && WarpAll(before.there || lane > nearest)) break;
      Backoff();
      PollGroup(group - 1 - lane, before, prefix);
    }
    State folded = StateFrom(before.state, nearest);
    for (int from = nearest - 1; from >= 0; --from) folded = spec::Op(u, folded, StateFrom(before.state, from));
    if (tell) Publish(Prefix(group), groups_, spec::Op(u, folded, total), false);
    return place > 0 ? spec::Op(u, folded, within) : folded;
  }

 private:
  static constexpr bool kAtOnce = kStateWords <= 4;  // larger ones would take too many registers

  JP_DEVICE u64* Aggregate(int tile) const {
    return aggregates_ + i64{tile / kScanGroup} * (kStateWords * kScanGroup) + tile % kScanGroup;
  }
  JP_DEVICE u64* Total(int group) const { return aggregates_ + i64{groups_} * (kStateWords * kScanGroup) + group; }
  JP_DEVICE u64* Prefix(int group) const { return Total(group) + groups_ * kStateWords; }

  // The prefix behind a group, or else its total. Both are read at once if they are small: one latency.
  JP_DEVICE void PollGroup(int group, Published& out, bool& prefix) const {
    if (prefix || group < 0) return;
    Record whole, total;
    whole.Read(Prefix(group), groups_);
    if constexpr (!kAtOnce) whole.Get(out);
    prefix = whole.there();
    if (!out.there) total.Read(Total(group), groups_);
    if (kAtOnce && prefix) {
      whole.Get(out);
    } else if (!out.there) {
      total.Get(out);
    }
  }

  u64* const aggregates_;
  const int groups_, tiles_;
};

}  // namespace jp
