// Scans. A sequence is cut into tiles (scan_tiles.h), each is scanned in registers (block_scan.cuh), and what comes before it is
// looked up while it stays there (look_back.cuh): one read and one write of memory.
//
//   ScanRows    along: tiles of a row. Any operands.
//   ScanFlat    along: rows that lie end to end are one sequence that starts anew at every row; runs are aligned in memory,
//               whatever the rows' length. Either its tiles are chained, or each holds whole rows.
//   ScanEach    along: a row is one thread's. Short rows that do not lie end to end.
//   ScanAcross  in scan_across.cuh
//   ScanRowsWaiting, ScanFlatWaiting  the same of long chains: a tile waits in shared memory while the next one is loaded
//
// In place: an element is written by the thread that read it; copies of it are read before the block's barriers, by this tile
// alone, and it is written behind them. That the next tile is asked for, or read, before that does not matter.
#pragma once

#include "ordered/along_tile.cuh"

namespace jp {

// One thread claims a tile for its block: in turn where tiles need nothing of each other, `unchained`.
template <bool kFlat>
JP_DEVICE void TakeTile(const ScanParams& p, Claim& claim, i64 unchained) {
  claim = ClaimOf<kFlat>(p, p.ticket != nullptr ? static_cast<i64>(AtomicAdd(p.ticket, u64{1})) : unchained);
}

// Persistent blocks. The next tile is claimed while the block waits for what comes before the one at hand.
template <bool kFlat>
JP_DEVICE void ScanTiles(const ScanParams& p) {
  using Tile = AlongTile<kFlat, false>;
  JP_SHARED(typename Tile::Shared, shared);
  JP_SHARED(Claim, claims[2]);
  if (Thread() == 0) TakeTile<kFlat>(p, claims[0], Block());
  BlockBarrier();
  for (int now = 0; claims[now].number < p.units * p.tiles; now ^= 1) {
    Tile tile(p, claims[now]);
    tile.Load();
    tile.Fold(shared, [&](const typename Tile::Aggregate& own) {
      const State carry = tile.Carry(own);
      if (Lane() == 0) shared.carry = carry;
    });
    if (Thread() == kWarp) TakeTile<kFlat>(p, claims[now ^ 1], claims[now].number + Blocks());
    BlockBarrier();
    tile.Finish(shared.carry, shared.needed);
    tile.Store();
  }
}

// Persistent blocks whose tiles wait in shared memory, where all are of chains. A turn: the next tile is loaded, folded and
// published, changes places with the one that waits, and that one gets to know what comes before it and is stored. Meanwhile most
// of what it wants has been published, and the tile behind both is claimed and on its way to L2.
//
// Why none waits for ever. A block has three claims: the tile that waits, the one at hand, and one that it has not begun, in the
// order of their numbers; it finishes its tiles in that order, too. Suppose that no block goes on, and let t be the least tile
// that is claimed and not finished. All before it in its chain are claimed, as numbers are handed out in order, and so are
// finished: they have published their aggregates, and their groups' totals and prefixes. Its block has finished what it claimed
// before, so t is at hand or waits there. On the way from its load to look-back, the block does nothing but load and publish t
// and the tile behind it, and what is published waits for nobody: an aggregate (Fold) comes before any look-back of the turn. So
// the block arrives at the look-back of t, which asks for what is there, and goes on. A group's total and prefix are published a
// turn later than its last tile's aggregate, by that tile's look-back: those that wait for them have larger numbers. As in
// look_back.cuh, a block need not be resident to be waited for: what has claimed a tile has begun, and what has begun runs.
//
// What is shared, by turns (F: the barrier in Fold, or in its place; E: the one before Finish):
//
//   totals, started        written before F, read behind it, in Fold; next written behind E.
//   aggregates[turn % 2]   written behind F by the first warp; read in the next turn, by that warp and behind E; next written
//                          behind F of the one after that.
//   carry                  written between F and E by the first warp, read behind E; hence F, also where nothing is folded.
//   claims[next]           written between F and E by the second warp, when nobody is at the tile that was there: it was stored
//                          before F. Read by all behind E.
//   waiting                a thread's own words.
template <bool kFlat>
JP_DEVICE void ScanWaiting(const ScanParams& p) {
  using Tile = AlongTile<kFlat, true>;
  JP_SHARED(typename Tile::Shared, shared);
  JP_SHARED(typename Tile::Aggregate, aggregates[2]);
  JP_SHARED(Claim, claims[3]);
  JP_SHARED(typename Tile::Waiting, waiting);
  const i64 all = p.units * p.tiles;
  if (Thread() == 0) TakeTile<kFlat>(p, claims[0], 0);
  BlockBarrier();
  bool comes = false;  // does a tile wait?
  for (int now = 0, turn = 0;; turn ^= 1) {
    const int next = now == 2 ? 0 : now + 1, last = now == 0 ? 2 : now - 1;
    const bool goes = claims[now].number < all;
    if (!goes && !comes) break;
    Tile tile(p, claims[now]);
    if (goes) {
      tile.Load();
      tile.Fold(shared, [&](const typename Tile::Aggregate& own) {
        if (Lane() == 0) aggregates[turn] = own;
      });
      if (Warp() == 1) {
        if (Lane() == 0) TakeTile<kFlat>(p, claims[next], 0);
        WarpBarrier();
        if (claims[next].number < all) Tile::AskFor(p, claims[next]);
      }
    } else {
      BlockBarrier();
    }
    tile.Exchange(waiting, claims[last], comes, goes);
    const typename Tile::Aggregate& own = aggregates[turn ^ 1];
    if (comes && Warp() == 0) {
      const State carry = tile.Carry(own);
      if (Lane() == 0) shared.carry = carry;
    }
    BlockBarrier();
    if (comes) {
      tile.Finish(shared.carry, own.needed);
      tile.Store();
    }
    if (!goes) break;
    comes = true;
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
  static JP_DEVICE void Rows(const ScanParams& p) { ScanTiles<!kUsed>(p); }
  static JP_DEVICE void Flat(const ScanParams& p) { ScanTiles<kUsed>(p); }
  static JP_DEVICE void RowsWaiting(const ScanParams& p) { ScanWaiting<!kUsed>(p); }
  static JP_DEVICE void FlatWaiting(const ScanParams& p) { ScanWaiting<kUsed>(p); }
  static JP_DEVICE void Each(const ScanParams& p) { ScanEachRow(p); }
  static JP_DEVICE void Across(const ScanParams& p) { ScanStrips(p); }
};
template <>
struct Scans<false> {
  static JP_DEVICE void Rows(const ScanParams&) {}
  static JP_DEVICE void Flat(const ScanParams&) {}
  static JP_DEVICE void RowsWaiting(const ScanParams&) {}
  static JP_DEVICE void FlatWaiting(const ScanParams&) {}
  static JP_DEVICE void Each(const ScanParams&) {}
  static JP_DEVICE void Across(const ScanParams&) {}
};
using Along = Scans<!spec::kAcross>;
using Across = Scans<spec::kAcross>;

constexpr ScanTile kAlong = TileAlong(spec::kStateBytes, kWidest), kWaiting = TileWaiting(spec::kStateBytes, kWidest);
using Waiting = Scans<!spec::kAcross && (kWaiting.rounds > 0)>;
constexpr int kRowsResident = kStartsInside ? ResidentWithStarts(kAlong) : kAlong.resident;
constexpr int kFlatResident = kStartsInside ? (kAlong.resident + 1) / 2 : ResidentWithStarts(kAlong);
constexpr int kAcrossResident = kStartsInside ? (kAcross.resident + 1) / 2 : kAcross.resident;

}  // namespace jp

JP_KERNEL(ScanRows, jp::ScanParams, jp::kAlong.threads, jp::kRowsResident) { jp::Along::Rows(p); }
JP_KERNEL(ScanFlat, jp::ScanParams, jp::kAlong.threads, jp::kFlatResident) { jp::Along::Flat(p); }
JP_KERNEL(ScanRowsWaiting, jp::ScanParams, jp::kWaiting.threads, jp::kWaiting.resident) { jp::Waiting::RowsWaiting(p); }
JP_KERNEL(ScanFlatWaiting, jp::ScanParams, jp::kWaiting.threads, jp::kWaiting.resident) { jp::Waiting::FlatWaiting(p); }
JP_KERNEL(ScanEach, jp::ScanParams, jp::kEachThreads, 1) { jp::Along::Each(p); }
JP_KERNEL(ScanAcross, jp::ScanParams, jp::kAcross.threads, jp::kAcrossResident) { jp::Across::Across(p); }
