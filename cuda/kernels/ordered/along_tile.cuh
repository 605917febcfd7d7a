// A tile of a sequence along a row (scan.cuh): its place in memory, its elements in registers, what it tells and wants to know.
#pragma once

#include "ordered/block_scan.cuh"
#include "ordered/look_back.cuh"
#include "scan_tiles.h"

namespace jp {

struct ScanParams {
  Call call;
  u64* ticket;         // null: tiles are taken in turn, and need nothing of each other
  u64* records;        // of chains, one after the other
  i64 units, tiles;    // sequences, and tiles of each; of all sequences first the first tiles, then the second ones: time passes
  i64 length;          // elements of a tile, all but the last one
  i64 total;           // elements of a sequence
  i64 rows_of_a_tile;  // flat, whole rows: how many; else 0
  i64 flags_shared;    // flat: all rows have the same flags
  i64 width, strips;   // across: lanes of a tile; tiles side by side
};

// Are there starts inside a tile? Where the operator may not end on pairs that are not in the data, spare places are such: they
// are combined with nothing.
constexpr bool kStartsInside = spec::kRestarts || spec::kMayNotEnd;

constexpr int kWidest = WidestOf(spec::kInBytes, spec::kArrays, spec::kOutBytes, spec::kLeaves);

// A tile that a block is at. It lies in shared memory: registers are for elements.
struct Claim {
  i64 number;  // all that there are, or more: none is left
  i64 unit;
  int tile;
  i64 begin;     // first element in memory, of a whole tile
  i64 row;       // flat: which lies there,
  u32 position;  // and the element's position in it
};

template <bool kFlat>
JP_DEVICE Claim ClaimOf(const ScanParams& p, i64 number) {
  Claim c = {};
  c.number = number;
  if (p.tiles == 1) {
    c.unit = number;
  } else if (p.units == 1) {
    c.tile = static_cast<int>(number);
  } else {
    c.tile = static_cast<int>(number / p.units);
    c.unit = number - c.tile * p.units;
  }
  if constexpr (!spec::kReverse) {
    c.begin = c.tile * p.length;
  } else if constexpr (kFlat) {
    c.begin = (p.tiles - 1 - c.tile) * p.length;  // so that runs are aligned
  } else {
    c.begin = p.total - (i64{c.tile} + 1) * p.length;
  }
  if constexpr (kFlat) {
    if (p.rows_of_a_tile != 0) {
      c.row = (spec::kReverse ? p.tiles - 1 - c.tile : c.tile) * p.rows_of_a_tile;
    } else {
      c.row = c.begin / p.call.n;
      c.position = static_cast<u32>(c.begin - c.row * p.call.n);
    }
  }
  return c;
}

// kWaits: a tile that waits in shared memory, once it is folded, while its threads load the next one.
template <bool kFlat, bool kWaits>
class AlongTile {
 public:
  static constexpr ScanTile kTile = kWaits ? TileWaiting(spec::kStateBytes, kWidest) : TileAlong(spec::kStateBytes, kWidest);
  // A dear operator is applied least often where a thread's elements are one run: a run's totals are scanned by log steps.
  static constexpr int kRun = spec::kOpLength > kDearOp* spec::kSlots ? kTile.run* kTile.rounds : kTile.run;
  static constexpr int kRounds = kTile.run * kTile.rounds / kRun, kWarps = kTile.threads / kWarp;
  static constexpr bool kStarts = kFlat || kStartsInside;

  // What is known of a tile when it is folded.
  struct Aggregate {
    State state;
    bool started, needed;  // needed: what comes before it
  };

  // Words of a thread, no other's, place by place.
  static constexpr int kWaitingWords = WarpTile<kStarts, kRun, kRounds>::kWords + kStateWords + 1;
  static_assert(kWaitingWords <= WaitingWords(kTile, spec::kStateBytes), "as the plan has it");
  struct Waiting {
    u32 words[kWaitingWords][kTile.threads];
  };

  // What the warps of a block tell each other.
  struct Shared {
    State totals[kWarps], carry;  // carry: what comes before the tile
    bool started[kWarps], needed;
  };

  JP_DEVICE AlongTile(const ScanParams& p, const Claim& claim) : p_(p), claim_(&claim) {}

  // A warp asks for what a tile will load.
  JP_DEVICE static void AskFor(const ScanParams& p, const Claim& claim) {
    const AlongTile tile(p, claim);
    spec::Ahead(tile.TheRow().arrays, tile.Low(), tile.High());
  }

  JP_DEVICE void Load() {
    const Row row = TheRow();
    if (Whole()) {
      LoadRuns<true>(row);
    } else {
      LoadRuns<false>(row);
    }
    if constexpr (kStarts) {
      FindStarts(row);
    } else if (p_.call.has_init && claim_->tile == 0 && Thread() == 0) {
      tile_.x[0][0] = spec::Op(row.uniforms, InitOf(p_.call, row, 0), tile_.x[0][0]);
    }
  }

  // Scans what is loaded, all that does not depend on what comes before the tile. Of one that is a chain's the first warp
  // publishes the aggregate, and then calls published(aggregate).
  template <class Fn>
  JP_DEVICE void Fold(Shared& shared, Fn published) {
    const spec::Uniforms u = TheRow().uniforms;
    const int lane = Lane(), warp = Warp();
    bool started;
    const State mine = tile_.Fold(u, started);
    if (lane == 0) {
      shared.totals[warp] = mine;
      shared.started[warp] = started;
    }
    BlockBarrier();
    const int other = lane < kWarps ? lane : kWarps - 1;
    const u32 heads = kStarts ? Ballot(lane < kWarps && shared.started[other]) : 0;
    const State through = WarpScan<kWarps>(u, shared.totals[other],
                                           spec::kMayNotEnd && lane >= kWarps ? 0
                                           : kStarts                          ? ReachOf(heads)
                                                                              : lane);
    base_ = StateFrom(through, warp > 0 ? warp - 1 : 0);
    open_ = (heads & ((1u << warp) - 1)) == 0;
    if (warp == 0) {
      Aggregate whole = {StateFrom(through, kWarps - 1), heads != 0, claim_->tile > 0};
      if (kStarts) whole.needed = whole.needed && (Ballot(tile_.StartsAt(0, 0)) & 1) == 0;
      if (kWaits || p_.ticket != nullptr) {
        TheChain().PublishAggregate(claim_->tile, whole.state, whole.started);
        published(whole);
      }
      if (lane == 0) shared.needed = whole.needed;
    }
  }

  // What comes before a tile that is a chain's. All of a warp.
  JP_DEVICE State Carry(const Aggregate& own) const {
    return TheChain().LookBack(TheRow().uniforms, claim_->tile, own.state, own.started, own.needed);
  }

  // Makes results, of `carry` too, if that is needed.
  JP_DEVICE void Finish(const State& carry, bool needed) {
    const spec::Uniforms u = TheRow().uniforms;
    const int warp = Warp();
    State base = base_;
    bool there = warp > 0;
    if (needed && open_ != 0) {
      base = warp > 0 ? spec::Op(u, carry, base) : carry;
      there = true;
    }
    tile_.Finish(u, base, there, [&](int r, int k) { return StartAt(r, k); });
  }

  // What waits comes here, and is the tile of this claim; what was here goes there to wait; or only one of these.
  JP_DEVICE void Exchange(Waiting& waiting, const Claim& claim, bool comes, bool goes) {
    int k = 0;
    auto exchange = [&](u32& word) {
      u32& place = waiting.words[k++][Thread()];
      const u32 here = word;
      if (comes) word = place;
      if (goes) place = here;
    };
    tile_.EachWord(exchange);
    WordsOf(base_, exchange);
    exchange(open_);
    claim_ = &claim;
  }

  JP_DEVICE void Store() {
    const Row row = TheRow();
    if (Whole()) {
      StoreRuns<true>(row);
    } else {
      StoreRuns<false>(row);
    }
  }

 private:
  JP_DEVICE Row TheRow() const { return RowOf(p_.call, kFlat ? 0 : claim_->unit); }
  JP_DEVICE Chain TheChain() const {
    return Chain(p_.records + claim_->unit * ChainWords(spec::kStateBytes, p_.tiles), static_cast<int>(p_.tiles));
  }
  // The tile's elements in memory.
  JP_DEVICE i64 Low() const { return claim_->begin > 0 ? claim_->begin : 0; }
  JP_DEVICE i64 High() const { return claim_->begin + p_.length < p_.total ? claim_->begin + p_.length : p_.total; }
  JP_DEVICE bool Spare(i64 at) const { return at < Low() || at >= High(); }
  // Are all places of the tile elements?
  JP_DEVICE bool Whole() const {
    return p_.length == ElementsOf(kTile) && claim_->begin >= 0 && claim_->begin + p_.length <= p_.total;
  }
  // Where this thread's run r lies.
  JP_DEVICE i64 RunAt(int r) const {
    const int place = ((Warp() * kRounds + r) * kWarp + Lane()) * kRun;
    if constexpr (spec::kReverse) return claim_->begin + p_.length - kRun - place;
    return MultipleOf<kTile.run>(claim_->begin) + place;
  }
  static constexpr int kStep = spec::kReverse ? -kWarp * kRun : kWarp * kRun;  // from one of these runs to the next
  // Of an element of a run, in memory order, where it is in scan order; and back.
  JP_DEVICE static constexpr int Mirrored(int k) { return spec::kReverse ? kRun - 1 - k : k; }
  JP_DEVICE i64 RowLength() const { return p_.call.n; }

  template <bool kWhole>
  JP_DEVICE void LoadRuns(const Row& row) {
    const i64 low = Low(), high = High();
    if constexpr (kWhole && !(kFlat && spec::kPositions)) {
      State runs[kRounds][kRun];
      spec::LoadRuns(row.arrays, row.uniforms, RunAt(0), RunAt(0), kStep, runs);
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
#pragma unroll
        for (int k = 0; k < kRun; ++k) tile_.x[r][Mirrored(k)] = runs[r][k];
      }
      return;
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      State run[kRun];
      const i64 at = RunAt(r);
      if (kWhole || (at >= low && at + kRun <= high)) {
        LoadWhole(row, at, run);
      } else {
        const bool none = at >= high || at + kRun <= low;
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          if (k > 0 && none) {
            run[k] = run[0];
          } else {
            const i64 one = at + k < low ? low : at + k < high ? at + k : high - 1;
            run[k] = spec::LoadOne(row.arrays, row.uniforms, one, PositionOf(one));
          }
        }
      }
#pragma unroll
      for (int k = 0; k < kRun; ++k) tile_.x[r][Mirrored(k)] = run[k];
    }
  }

  JP_DEVICE void LoadWhole(const Row& row, i64 at, State (&run)[kRun]) const {
    if constexpr (kFlat && spec::kPositions) {
      const i64 position = PositionOf(at);
      if (position + kRun > RowLength()) {
#pragma unroll
        for (int k = 0; k < kRun; ++k) run[k] = spec::LoadOne(row.arrays, row.uniforms, at + k, PositionOf(at + k));
        return;
      }
      spec::Load(row.arrays, row.uniforms, at, position, run);
    } else {
      spec::Load(row.arrays, row.uniforms, at, at, run);
    }
  }

  // Of an element of this tile in its row.
  JP_DEVICE i64 PositionOf(i64 at) const {
    if constexpr (kFlat && spec::kPositions) {
      const u32 n = static_cast<u32>(RowLength()), from = claim_->position + static_cast<u32>(at - claim_->begin);
      return from % n;
    } else {
      return at;
    }
  }

  // Sets the bits of elements where a sequence starts, and combines init into these.
  JP_DEVICE void FindStarts(const Row& row) {
    const u32 n = static_cast<u32>(RowLength());
    u32 step = 0, position = 0;
    if constexpr (kFlat) {
      step = kWarp * kRun < n ? kWarp * kRun : kWarp * kRun % n;
      if (spec::kReverse) step = n - step;
      // Below the tile, where a reversed one's last run may begin, positions are those of the row before.
      const int from = (static_cast<int>(claim_->position) + static_cast<int>(RunAt(0) - claim_->begin)) % static_cast<int>(n);
      position = from < 0 ? static_cast<u32>(from) + n : static_cast<u32>(from);
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const i64 at = RunAt(r);
      u32 of_row = position;
      u8 flags[kRun] = {};
      if constexpr (spec::kRestarts) ReadFlags(row, at, position, flags);
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        bool here = flags[k] != 0;
        if constexpr (kFlat) {
          here = here || of_row == (spec::kReverse ? n - 1 : 0);
          of_row = of_row + 1 == n ? 0 : of_row + 1;
        } else {
          here = here || at + k == (spec::kReverse ? p_.total - 1 : 0);
        }
        tile_.starts |= static_cast<u32>(here) << (r * kRun + Mirrored(k));
      }
      if (p_.call.has_init && tile_.StartsOf(r) != 0) {
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          const bool spare = spec::kMayNotEnd && Spare(at + Mirrored(k));
          if (tile_.StartsAt(r, k) && !spare) tile_.x[r][k] = spec::Op(row.uniforms, StartAt(r, k), tile_.x[r][k]);
        }
      }
      if constexpr (spec::kMayNotEnd) {
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          tile_.starts |= static_cast<u32>(Spare(at + k)) << (r * kRun + Mirrored(k));
        }
      }
      if constexpr (kFlat) {
        position += step;
        if (position >= n) position -= n;
      }
    }
  }

  JP_DEVICE void ReadFlags(const Row& row, i64 at, u32 position, u8 (&flags)[kRun]) const {
    const u8* cut = reinterpret_cast<const u8*>(row.cut);
    const i64 low = Low(), high = High();
    const bool shared = kFlat && p_.flags_shared;
    if (at >= low && at + kRun <= high && !(shared && position + kRun > RowLength())) {
      ReadRun(cut, shared ? position : at, flags);
      return;
    }
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      if (at + k < low || at + k >= high) continue;
      flags[k] = cut[shared ? (position + static_cast<u32>(k)) % static_cast<u32>(RowLength()) : at + k];
    }
  }

  // What a sequence starts from at element k of run r; an exclusive scan has an init or an identity.
  JP_DEVICE State StartAt(int r, int k) const {
    if (p_.call.has_init) {
      if constexpr (!kFlat) return InitOf(p_.call, TheRow(), 0);
      const i64 at = RunAt(r) + Mirrored(k);
      i64 row = claim_->row + (claim_->position + static_cast<u32>(at - claim_->begin)) / static_cast<u32>(RowLength());
      if (Spare(at)) row = claim_->row;
      return spec::InitOf(p_.call.init, p_.call.init_lane, MemberOf(p_.call.batch, row), 0);
    }
    if constexpr (spec::kHasIdentity) return spec::Identity();
    return tile_.x[r][k];
  }

  template <bool kWhole>
  JP_DEVICE void StoreRuns(const Row& row) const {
    const i64 low = Low(), high = High();
    if constexpr (kWhole) {
      State runs[kRounds][kRun];
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
#pragma unroll
        for (int k = 0; k < kRun; ++k) runs[r][k] = tile_.x[r][Mirrored(k)];
      }
      spec::StoreRuns(row.outs, row.uniforms, RunAt(0), kStep, runs);
      return;
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      State run[1][kRun];
      const i64 at = RunAt(r);
#pragma unroll
      for (int k = 0; k < kRun; ++k) run[0][k] = tile_.x[r][Mirrored(k)];
      if (at >= low && at + kRun <= high) {
        spec::StoreRuns(row.outs, row.uniforms, at, 0, run);
      } else {
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          if (at + k >= low && at + k < high) spec::StoreOne(row.outs, row.uniforms, at + k, run[0][k]);
        }
      }
    }
  }

  const ScanParams& p_;
  const Claim* claim_;
  WarpTile<kStarts, kRun, kRounds> tile_;
  State base_;  // what the warps before this one have; of the first one anything
  u32 open_;    // does no sequence start in these?
};

}  // namespace jp
