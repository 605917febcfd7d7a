// Look-back (look_back.cuh) of a tile that has many chains, one for each of its columns: a strip of a scan across.
//
// The same two levels, groups of 32 tiles, and the same left fold P of what groups have. A block's threads are rows of columns:
// thread (row, column) reads its share of the records that its column wants; a record's columns lie side by side in memory, so a
// row of threads reads them as one line. The last row's threads fold what the rows have found, in the rows' order: the bracket is
//
//   (A ⊕ .. ⊕ A) ⊕ (A ⊕ .. ⊕ A) ⊕ ..., one bracket for each row of threads,
//
// whose shape depends on the tile's place and the block's shape alone. Of groups there is one for each row, 8 at most, whose P,
// or else T, is waited for; T waits for nobody's P. Where all of them are T's, the thread that folds waits for the farthest one's
// P. Why nothing waits for ever, and why relaxed accesses suffice, is said in look_back.cuh.
#pragma once

#include "ordered/look_back.cuh"

namespace jp {

class Chains {
 public:
  static constexpr int kMostGroups = 8;

  // What rows of threads tell each other: at (row, column) a part and its flags; afterwards at column what comes before the tile.
  struct Shared {
    State* states;
    u8* flags;
  };

  JP_DEVICE Chains(u64* words, int tiles, int width, int rows, int row, int column)
      : words_(words + column), tiles_(tiles), width_(width), rows_(rows), row_(row), column_(column) {}

  // The last row's threads: what the tile has in their columns.
  JP_DEVICE void PublishAggregate(int tile, const State& aggregate, bool started) const {
    if (tile + 1 < tiles_) Publish(RecordAt(tile / kScanGroup, tile % kScanGroup), width_, aggregate, started);
  }

  // Leaves at its column in shared.states what comes before `tile`, which is not the first. All of a block; `works`: is this
  // thread one of the rows'? Of the last row, `folds`, it has the aggregate.
  JP_DEVICE void LookBack(const spec::Uniforms& u, const Shared& shared, int tile, bool works, bool folds, const State& aggregate,
                          bool started) const {
    const int group = tile / kScanGroup, place = tile % kScanGroup;
    const bool last = place == kScanGroup - 1 && tile + 1 < tiles_;
    const int groups = Least(Least(kMostGroups, rows_), group);  // that are looked at
    if (place > 0) {
      if (works) ReadPlaces(u, shared, group, place);
      BlockBarrier();
    }
    State within, total;
    bool whole = group == 0;  // what comes before the group does not count
    if (folds) {
      if (place > 0) {
        const u32 found = FoldRows(u, shared, within);
        whole = whole || (found & kStarted) != 0;
      }
      if (last) {
        total = started ? aggregate : spec::Op(u, within, aggregate);
        Publish(RecordAt(group, whole || started ? kPrefixAt : kTotalAt), width_, total, false);
      }
    }
    if (group > 0) {
      Published before = {};
      bool prefix = false;
      const bool reads = works && row_ < groups;
      if (reads) ReadGroup(group - 1 - row_, before, prefix);
      BlockBarrier();  // the parts of the group's tiles have been read
      if (reads) Put(shared, before.state, prefix ? kThere | kPrefix : kThere);
      BlockBarrier();
      if (folds && !whole) {
        const State folded = FoldGroups(u, shared, group, groups);
        if (last && !started) Publish(RecordAt(group, kPrefixAt), width_, spec::Op(u, folded, total), false);
        within = place > 0 ? spec::Op(u, folded, within) : folded;
      }
    }
    if (folds) shared.states[column_] = within;
    BlockBarrier();
  }

 private:
  static constexpr int kTotalAt = kScanGroup, kPrefixAt = kScanGroup + 1, kRecords = kScanGroup + 2;  // of a group
  static constexpr u32 kPrefix = 4;
  static constexpr int kAtOnce = kStateWords <= 4 ? 2 : 1;  // more would take too many registers

  static JP_DEVICE int Least(int a, int b) { return a < b ? a : b; }

  JP_DEVICE u64* RecordAt(int group, int record) const {
    return words_ + (i64{group} * kRecords + record) * (kStateWords * width_);
  }

  JP_DEVICE void Put(const Shared& shared, const State& state, u32 flags) const {
    if (flags != 0) shared.states[row_ * width_ + column_] = state;
    shared.flags[row_ * width_ + column_] = static_cast<u8>(flags);
  }

  // What is in a record, as soon as it is complete; `seen`: what has been read of it.
  JP_DEVICE Published Awaited(Record seen, const u64* words) const {
    while (!seen.there()) {
      Backoff();
      seen.Read(words, width_);
    }
    Published out = {};
    seen.Get(out);
    return out;
  }

  // This row's share of the places before the tile's, folded.
  JP_DEVICE void ReadPlaces(const spec::Uniforms& u, const Shared& shared, int group, int place) const {
    const int each = (kScanGroup + rows_ - 1) / rows_, end = Least(place, (row_ + 1) * each);
    State part;
    u32 flags = 0;
    for (int from = row_ * each; from < end; from += kAtOnce) {
      Record records[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (from + k < end) records[k].Read(RecordAt(group, from + k), width_);
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (from + k < end) {
          const Published next = Awaited(records[k], RecordAt(group, from + k));
          part = flags == 0 || next.started ? next.state : spec::Op(u, part, next.state);
          flags |= next.started ? kThere | kStarted : kThere;
        }
      }
    }
    Put(shared, part, flags);
  }

  // The parts of all rows; is there a start among them?
  JP_DEVICE u32 FoldRows(const spec::Uniforms& u, const Shared& shared, State& out) const {
    u32 found = 0;
    for (int row = 0; row < rows_; ++row) {
      const u32 flags = shared.flags[row * width_ + column_];
      if (flags == 0) break;  // later rows have later places
      const State part = shared.states[row * width_ + column_];
      out = found == 0 || (flags & kStarted) != 0 ? part : spec::Op(u, out, part);
      found |= flags;
    }
    return found;
  }

  // The prefix behind a group, or else its total, as soon as there is one of them.
  JP_DEVICE void ReadGroup(int group, Published& out, bool& prefix) const {
    for (;;) {
      Record whole, total;
      whole.Read(RecordAt(group, kPrefixAt), width_);
      total.Read(RecordAt(group, kTotalAt), width_);
      prefix = whole.there();
      if (prefix) {
        whole.Get(out);
      } else {
        total.Get(out);
      }
      if (out.there) return;
      Backoff();
    }
  }

  // All that comes before `group`: the totals of the nearest groups, and the prefix behind those.
  JP_DEVICE State FoldGroups(const spec::Uniforms& u, const Shared& shared, int group, int groups) const {
    int nearest = 0;
    while (nearest < groups - 1 && (shared.flags[nearest * width_ + column_] & kPrefix) == 0) ++nearest;
    State folded = shared.states[nearest * width_ + column_];
    if ((shared.flags[nearest * width_ + column_] & kPrefix) == 0) {
      folded = Awaited({}, RecordAt(group - 1 - nearest, kPrefixAt)).state;
    }
    for (int k = nearest - 1; k >= 0; --k) folded = spec::Op(u, folded, shared.states[k * width_ + column_]);
    return folded;
  }

  u64* const words_;  // of this thread's column
  const int tiles_, width_, rows_, row_, column_;
};

}  // namespace jp
