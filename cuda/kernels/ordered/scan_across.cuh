// Scans across: `lanes` sequences lie side by side in memory.
//
// A tile is a strip of lanes by a range of the axis. A block's threads are `width` neighbouring lanes and several rows of the
// axis: a thread scans its own neighbours on the axis in registers, the threads' totals meet in shared memory. Between the tiles
// of a strip each lane is a chain of its own (look_back_across.cuh); where the strips are enough to fill the device, a block goes
// down its strip instead.
#pragma once

#include "ordered/look_back_across.cuh"

namespace jp {

class AcrossTile {
 public:
  static constexpr ScanTile kTile = TileAcross(spec::kStateBytes);
  static constexpr int kSteps = kTile.rounds, kThreads = kTile.threads;

  static constexpr i64 kStep = spec::kReverse ? -1 : 1;

  struct Shared {
    State totals[kThreads], carries[kThreads];  // totals: of a row of threads, lane after lane
    bool started[kThreads];
    u8 flags[kThreads];
    i64 number;
  };

  // unit: a strip of a member.
  JP_DEVICE AcrossTile(const ScanParams& p, i64 unit, int tile)
      : p_(p), unit_(unit), tile_(tile), width_(static_cast<int>(p.width)), rows_(kThreads / width_) {
    const int row = Thread() / width_;
    row_ = row < rows_ ? row : rows_ - 1;  // a thread too many does as another one does
    column_ = Thread() - row * width_;
  }

  JP_DEVICE void Load() {
    starts_ = 0;
    const Place place(*this);
    const Row row = RowOf(p_.call, place.member);
    if (place.count == kSteps) {
      LoadSteps<true>(place, row);
    } else {
      LoadSteps<false>(place, row);
    }
    const int spare = !spec::kMayNotEnd ? kSteps : place.count > 0 ? place.count : 0;  // the first place that is
    if (p_.call.has_init && (spec::kRestarts || Begins())) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        if ((starts_ >> k & 1) && k < spare) x_[k] = spec::Op(row.uniforms, InitOf(p_.call, row, place.lane), x_[k]);
      }
    }
    if (spare < kSteps) starts_ |= kAllLanes << spare;
  }

  // Without a chain, what comes before the tile is where the block's last tile left it.
  template <class NextClaim>
  JP_DEVICE void Scan(Shared& shared, NextClaim claim) {
    const spec::Uniforms u = RowOf(p_.call, unit_ / p_.strips).uniforms;
    const bool chained = p_.ticket != nullptr;
#pragma unroll
    for (int k = 1; k < kSteps; ++k) {
      if (!StartsAt(k)) x_[k] = spec::Op(u, x_[k - 1], x_[k]);
    }
    const int mine = row_ * width_ + column_;
    if (Thread() < rows_ * width_) {
      shared.totals[mine] = x_[kSteps - 1];
      shared.started[mine] = starts_ != 0;
    }
    BlockBarrier();
    // What the rows of threads before this one have.
    State before;
    bool any = false, cut = false;  // cut: they start anew
    for (int row = 0; row < row_; ++row) {
      const State part = shared.totals[row * width_ + column_];
      const bool anew = kStartsInside && shared.started[row * width_ + column_];
      before = any && !anew ? spec::Op(u, before, part) : part;
      any = true;
      cut = cut || anew;
    }
    const bool last = Thread() < rows_ * width_ && row_ == rows_ - 1;
    const bool anew = kStartsInside && starts_ != 0;
    const bool carried = tile_ > 0;
    if (chained) {
      const bool works = Thread() < rows_ * width_;
      BlockBarrier();                                  // everybody has read the totals
      if (any && works) shared.totals[mine] = before;  // in registers there are elements
      State aggregate = x_[kSteps - 1];
      if (last && any && !anew) aggregate = spec::Op(u, before, aggregate);
      const Chains chains(p_.records + unit_ * width_ * ChainWords(spec::kStateBytes, p_.tiles), static_cast<int>(p_.tiles),
                          width_, rows_, row_, column_);
      if (last) chains.PublishAggregate(tile_, aggregate, cut || anew);
      if (Thread() == 0) claim();
      if (carried) {
        chains.LookBack(u, {shared.carries, shared.flags}, tile_, works, last, aggregate, cut || anew);
      } else {
        BlockBarrier();
      }
      if (any && works) before = shared.totals[mine];
    }
    if (carried && !cut) {
      before = any ? spec::Op(u, shared.carries[column_], before) : shared.carries[column_];
      any = true;
    }
    if (!chained) {
      BlockBarrier();  // everybody has read the carries
      if (last) shared.carries[column_] = any && !anew ? spec::Op(u, before, x_[kSteps - 1]) : x_[kSteps - 1];
    }
    Finish(u, before, any);
  }

  JP_DEVICE void Store() const {
    const Place place(*this);
    const Row row = RowOf(p_.call, place.member);
    const bool exists = Thread() < rows_ * width_ && place.exists;
    i64 at = place.position * p_.call.lanes + place.lane;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      if (exists && k < place.count) spec::StoreOne(row.outs, row.uniforms, at, x_[k]);
      at += kStep * p_.call.lanes;
    }
  }

 private:
  // All steps there are, or else the last one again: what waits for whether there is a next is not in the way of all others.
  template <bool kAll, class Place>
  JP_DEVICE void LoadSteps(const Place& place, const Row& row) {
    i64 position = place.position, at = position * p_.call.lanes + place.lane;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      x_[k] = spec::LoadOne(row.arrays, row.uniforms, at, position);
      bool start = k == 0 && Begins();
      if constexpr (spec::kRestarts) start = start || row.cut[position] != 0;
      starts_ |= static_cast<u32>(start) << k;
      if (kAll || k + 1 < place.count) {
        position += kStep;
        at += kStep * p_.call.lanes;
      }
    }
  }

  // Where this thread's elements lie; places that are not there repeat the last one.
  struct Place {
    i64 member, lane, position;
    int count;    // elements on the axis that there are
    bool exists;  // the lane

    JP_DEVICE explicit Place(const AcrossTile& tile) {
      const Call& call = tile.p_.call;
      const i64 unit = Opaque(tile.unit_), n = call.n;  // not kept in registers between loads and stores
      member = unit / tile.p_.strips;
      lane = (unit - member * tile.p_.strips) * tile.width_ + tile.column_;
      exists = lane < call.lanes;
      if (!exists) lane = call.lanes - 1;
      const i64 first = tile.tile_ * tile.p_.length + tile.row_ * kSteps;
      count = n - first < kSteps ? static_cast<int>(n - first) : kSteps;
      position = count > 0 ? first : n - 1;
      if (spec::kReverse) position = n - 1 - position;
    }
  };

  JP_DEVICE bool Begins() const { return tile_ == 0 && row_ == 0; }  // a sequence, at k = 0
  JP_DEVICE bool StartsAt(int k) const { return kStartsInside && (starts_ >> k & 1); }
  JP_DEVICE void Finish(const spec::Uniforms& u, const State& base, bool there) {
    bool reached = there && !Begins();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      if (StartsAt(k)) reached = false;
      if (reached) x_[k] = spec::Op(u, base, x_[k]);
    }
    if constexpr (spec::kExclusive) {
#pragma unroll
      for (int k = kSteps - 1; k >= 0; --k) {
        x_[k] = k > 0 ? x_[k - 1] : base;
        if (StartsAt(k) || (k == 0 && Begins())) x_[k] = Start(k);
      }
    }
  }
  JP_DEVICE State Start(int k) const {
    if (p_.call.has_init) {
      const Place place(*this);
      return InitOf(p_.call, RowOf(p_.call, place.member), place.lane);
    }
    if constexpr (spec::kHasIdentity) return spec::Identity();
    return x_[k];
  }

  const ScanParams& p_;
  const i64 unit_;
  const int tile_, width_, rows_;
  int row_, column_;  // this thread's, in the block
  u32 starts_;
  State x_[kSteps];
};

JP_DEVICE void ScanStrips(const ScanParams& p) {
  JP_SHARED(AcrossTile::Shared, shared);
  const bool chained = p.ticket != nullptr;
  const i64 all = chained ? p.units * p.tiles : p.units;
  auto claim = [&] {
    if (chained) shared.number = static_cast<i64>(AtomicAdd(p.ticket, u64{1}));
  };
  if (Thread() == 0) claim();
  if (chained) BlockBarrier();
  for (i64 number = chained ? shared.number : Block(); number < all;) {
    const int first = chained ? static_cast<int>(number / p.units) : 0;
    const int end = chained ? first + 1 : static_cast<int>(p.tiles);
    const i64 unit = number - first * p.units;
    for (int t = first; t < end; ++t) {
      AcrossTile tile(p, unit, t);
      tile.Load();
      tile.Scan(shared, claim);
      tile.Store();
    }
    number = chained ? shared.number : number + Blocks();
  }
}

constexpr ScanTile kAcross = TileAcross(spec::kStateBytes);

}  // namespace jp
