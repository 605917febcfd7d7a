// Scans. A sequence is cut into tiles (scan_tiles.h), each is scanned in registers (block_scan.cuh), and what comes before it is
// looked up while it stays there (look_back.cuh): one read and one write of memory.
//
//   ScanRows    along: tiles of a row. Any operands.
//   ScanFlat    along: rows that lie end to end are one sequence that starts anew at every row; runs are aligned in memory,
//               whatever the rows' length. Either its tiles are chained, or each holds whole rows.
//   ScanEach    along: a row is one thread's. Short rows that do not lie end to end.
//   ScanAcross  in scan_across.cuh
//
// In place: an element is written by the thread that read it; copies of it are read before the block's barriers, by this tile
// alone, and it is written behind them.
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

template <bool kFlat>
class AlongTile {
 public:
  static constexpr ScanTile kTile = TileAlong(spec::kStateBytes, kWidest);
  // A dear operator is applied least often where a thread's elements are one run: a run's totals are scanned by log steps.
  static constexpr int kRun = spec::kOpLength > kDearOp* spec::kSlots ? kTile.run* kTile.rounds : kTile.run;
  static constexpr int kRounds = kTile.run * kTile.rounds / kRun, kWarps = kTile.threads / kWarp;
  static constexpr bool kStarts = kFlat || kStartsInside;

  // A tile that waits for what comes before it lies in shared memory, as long as it finds room there, while the next one is loaded.
  static constexpr int kWaitingWords = WarpTile<kStarts, kRun, kRounds>::kWords + kStateWords + 1;
  static constexpr bool kWaits = kWaitingWords * 4 * kTile.threads <= kScanWaitingBytes;

  // What has been published of a tile.
  struct Aggregate {
    State state;
    bool started, needed;  // needed: what comes before it
  };

  struct Shared {
    State totals[kWarps], carry;  // of a tile's warps; what comes before the tile
    bool started[kWarps];
    Aggregate aggregates[2];
    Claim claims[3];                                                // the tile that waits, the one at hand, the next one
    u32 waiting[kWaits ? kWaitingWords : 1][kWaits ? kTile.threads : 1];  // words of a thread: its own alone
  };

  JP_DEVICE AlongTile(const ScanParams& p, const Claim& claim) : p_(p), claim_(&claim) {}

  // A warp asks for what a tile will load.
  JP_DEVICE static void Ahead(const ScanParams& p, const Claim& claim) {
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

  // Scans what is loaded, all that does not depend on what comes before the tile, and publishes its aggregate.
  JP_DEVICE void Fold(Shared& shared, Aggregate& aggregate) {
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
      bool needed = claim_->tile > 0;
      if (kStarts) needed = needed && (Ballot(tile_.StartsAt(0, 0)) & 1) == 0;
      const State whole = StateFrom(through, kWarps - 1);
      if (p_.ticket != nullptr) TheChain().PublishAggregate(claim_->tile, whole, heads != 0);
      if (lane == 0) aggregate = {whole, heads != 0, needed};
    }
  }

  // What comes before the tile. All of a warp.
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

  // Changes places with the tile that waits; where there is none, or none at hand, it goes there or comes from there.
  JP_DEVICE void Exchange(Shared& shared, const Claim& claim, bool comes, bool goes) {
    int k = 0;
    auto exchange = [&](u32& word) {
      u32& place = shared.waiting[k++][Thread()];
      const u32 other = comes ? place : word;
      if (goes) place = word;
      word = other;
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
    return Chain(p_.records + claim_->unit * ChainWords(spec::kStateBytes, p_.tiles), static_cast<int>(p_.tiles), kWarp);
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

// Persistent blocks. The next tile is claimed, and asked for, while the one at hand is scanned; and that one waits for what comes
// before it while the next one is loaded: it is then that it is looked up, when most of what it wants has been published.
template <bool kFlat>
JP_DEVICE void ScanAlong(const ScanParams& p) {
  using Tile = AlongTile<kFlat>;
  JP_SHARED(typename Tile::Shared, shared);
  const i64 all = p.units * p.tiles;
  auto claim = [&](Claim& to, i64 after) {
    to = ClaimOf<kFlat>(p, p.ticket != nullptr ? static_cast<i64>(AtomicAdd(p.ticket, u64{1})) : after);
  };
  if (Thread() == 0) claim(shared.claims[0], Block());
  BlockBarrier();
  const bool chained = p.ticket != nullptr, waits = Tile::kWaits && chained;
  bool waiting = false;
  for (int turn = 0, now = 0;; ++turn) {
    const int next = now == 2 ? 0 : now + 1, last = now == 0 ? 2 : now - 1;
    const bool more = shared.claims[now].number < all;
    if (!more && !waiting) break;
    Tile tile(p, shared.claims[now]);
    if (more) {
      tile.Load();
      tile.Fold(shared, shared.aggregates[turn & 1]);
      if (Warp() == 1) {
        if (Lane() == 0) claim(shared.claims[next], shared.claims[now].number + Blocks());
        WarpBarrier();
        if (shared.claims[next].number < all) Tile::Ahead(p, shared.claims[next]);
      }
    }
    if constexpr (Tile::kWaits) {
      if (waits) tile.Exchange(shared, shared.claims[waiting ? last : now], waiting, more);
    }
    const typename Tile::Aggregate& own = shared.aggregates[waits ? ~turn & 1 : turn & 1];
    const bool done = !waits || waiting;
    if (chained && done && Warp() == 0) {
      WarpBarrier();
      const State carry = tile.Carry(own);
      if (Lane() == 0) shared.carry = carry;
    }
    BlockBarrier();
    if (done) {
      tile.Finish(shared.carry, chained && own.needed);
      tile.Store();
    }
    if (!more) break;
    waiting = waits;
    now = next;
  }
}

JP_DEVICE void ScanEachRow(const ScanParams& p) {
  for (i64 r = Block() * Threads() + Thread(); r < p.units; r += Blocks() * Threads()) {
    const Row row = RowOf(p.call, r);
    State state;
    bool any = false;
    for (i64 i = 0; i < p.total; ++i) {
      const i64 at = spec::kReverse ? p.total - 1 - i : i;
      const State x = spec::LoadOne(row.arrays, row.uniforms, at, at);
      if (i == 0 || (spec::kRestarts && row.cut[at] != 0)) {
        any = p.call.has_init;
        if (any) state = InitOf(p.call, row, 0);
      }
      if constexpr (spec::kExclusive) {
        if (!any && spec::kHasIdentity) {
          spec::StoreOne(row.outs, row.uniforms, at, spec::Identity());
        } else {
          spec::StoreOne(row.outs, row.uniforms, at, any ? state : x);
        }
      }
      state = any ? spec::Op(row.uniforms, state, x) : x;
      any = true;
      if constexpr (!spec::kExclusive) spec::StoreOne(row.outs, row.uniforms, at, state);
    }
  }
}

}  // namespace jp

#include "ordered/scan_across.cuh"

namespace jp {

// A spec is of one form: the other one's kernels are empty, and are not even looked at (kUsed: spec::kAcross or its contrary).
template <bool kUsed>
struct Scans {
  static JP_DEVICE void Rows(const ScanParams& p) { ScanAlong<!kUsed>(p); }
  static JP_DEVICE void Flat(const ScanParams& p) { ScanAlong<kUsed>(p); }
  static JP_DEVICE void Each(const ScanParams& p) { ScanEachRow(p); }
  static JP_DEVICE void Across(const ScanParams& p) { ScanStrips(p); }
};
template <>
struct Scans<false> {
  static JP_DEVICE void Rows(const ScanParams&) {}
  static JP_DEVICE void Flat(const ScanParams&) {}
  static JP_DEVICE void Each(const ScanParams&) {}
  static JP_DEVICE void Across(const ScanParams&) {}
};
using Along = Scans<!spec::kAcross>;
using Across = Scans<spec::kAcross>;

constexpr ScanTile kAlong = TileAlong(spec::kStateBytes, kWidest);
constexpr int kRowsResident = kStartsInside ? ResidentWithStarts(kAlong) : kAlong.resident;
constexpr int kFlatResident = kStartsInside ? (kAlong.resident + 1) / 2 : ResidentWithStarts(kAlong);
constexpr int kAcrossResident = kStartsInside ? (kAcross.resident + 1) / 2 : kAcross.resident;

}  // namespace jp

JP_KERNEL(ScanRows, jp::ScanParams, jp::kAlong.threads, jp::kRowsResident) { jp::Along::Rows(p); }
JP_KERNEL(ScanFlat, jp::ScanParams, jp::kAlong.threads, jp::kFlatResident) { jp::Along::Flat(p); }
JP_KERNEL(ScanEach, jp::ScanParams, jp::kEachThreads, 1) { jp::Along::Each(p); }
JP_KERNEL(ScanAcross, jp::ScanParams, jp::kAcross.threads, jp::kAcrossResident) { jp::Across::Across(p); }
