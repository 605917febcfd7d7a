// Where a histogram starts and ends: tables are filled, and folded into the result.
#pragma once

#include "histogram/hist_call.cuh"

namespace jp {

// A block's threads on entries that lie side by side and on rows of them: `columns`, a power of two, by `rows`.
struct Tile {
  i64 columns, rows;

  JP_DEVICE Tile(i64 threads, i64 entries) : columns(1) {
    while (columns < threads && columns < entries) columns *= 2;
    rows = threads / columns;
  }
};

// What a thread has of a tile: kEach entries from `entry` on in each round, in one row.
struct Rounds {
  i64 row, entry, step;
  int count;  // the same for all threads of the block; the last may be past the row's end
};

constexpr i64 kMaxRounds = 4;

// fn(rounds) for the thread in this row and column of a tile, tile after tile; called by all threads of a block as often, and so
// with rows past the last, too.
template <int kEach = 1, class Fn>
JP_DEVICE void ForEachTile(const Tile& tile, i64 rows, i64 entries, i64 row, i64 column, Fn fn) {
  const i64 step = tile.columns * kEach, rows_of_tiles = CeilDiv(rows, tile.rows);
  // Several rounds save divisions, where there are enough tiles for all blocks all the same.
  const i64 most = CeilDiv(entries, step) * rows_of_tiles >= kMaxRounds * Blocks() ? kMaxRounds : 1;
  const i64 width = step * most, across = CeilDiv(entries, width), tiles = across * rows_of_tiles;
#pragma unroll 1
  for (i64 t = Block(); t < tiles; t += Blocks()) {
    const i64 begin = t % across * width;
    const int count = static_cast<int>(Least(most, CeilDiv(entries - begin, step)));
    fn(Rounds{t / across * tile.rows + row, begin + column * kEach, step, count});
  }
}

// kItems entries of the identity, side by side, in as few stores as their place allows.
template <class Part, int kItems>
JP_DEVICE void FillRun(char* p) {
  const typename Part::Value identity = Part::Identity();
  if constexpr (kItems * Part::kEntryBytes == 16) {
    if (reinterpret_cast<u64>(p) % 16 == 0) {
      Words4 words;
#pragma unroll
      for (int k = 0; k < kItems; ++k) Part::Write(reinterpret_cast<char*>(&words) + k * Part::kEntryBytes, identity);
      *reinterpret_cast<Words4*>(p) = words;
      return;
    }
  }
#pragma unroll
  for (int k = 0; k < kItems; ++k) Part::Write(p + k * Part::kEntryBytes, identity);
}

// All tables of all members: the identity, or dest where that is what a table starts from.
template <int g>
JP_DEVICE void FillPart(const HistParams& p, i64 tables) {
  using Part = spec::Part<g>;
  constexpr int kItems = 16 % Part::kEntryBytes == 0 ? 16 / Part::kEntryBytes : 1;
  const i64 entries = EntriesOf<g>(p.call), rows = p.call.batch.members * tables;
  const Tile tile(kFillThreads, CeilDiv(entries, kItems));
  ForEachTile<kItems>(tile, rows, entries, Thread() / tile.columns, Thread() % tile.columns, [&](const Rounds& rounds) {
    if (rounds.row >= rows) return;
    const i64 member = rounds.row / tables, table = rounds.row % tables;
    const Member at = MemberOf(p.call.batch, member);
    const auto dests = DestsOf<g>(p.call, at);
    const bool result = table < p.in_place;
    char* row = result ? reinterpret_cast<char*>(OutsOf<g>(p.call, at).o0) : TableOf<g>(p, member, table);
#pragma unroll 1
    for (int round = 0; round < rounds.count; ++round) {
      const i64 entry = rounds.entry + round * rounds.step;
      const int items = static_cast<int>(Least<i64>(kItems, entries - entry));
      char* to = row + entry * Part::kEntryBytes;
      if (Part::kDest && (result || !Part::kHasIdentity)) {
        for (int k = 0; k < items; ++k) Part::Write(to + k * Part::kEntryBytes, Part::FromDest(dests, entry + k));
      } else if constexpr (Part::kHasIdentity) {
        if (items == kItems) {
          FillRun<Part, kItems>(to);
        } else {
          for (int k = 0; k < items; ++k) Part::Write(to + k * Part::kEntryBytes, Part::Identity());
        }
      }
    }
  });
}

JP_KERNEL(HistFill, HistParams, kFillThreads, 1) {
  const i64 tables = WorkOf(p).subhistograms;
  ForEachPart([&](auto part) { FillPart<decltype(part)::value>(p, tables); });
}

// A part's values are handed over in shared memory if they are small enough for that.
template <int g>
constexpr bool kHandsOver = sizeof(typename spec::Part<g>::Value) <= 128;

template <int g = 0>
constexpr int MostHanded() {
  if constexpr (g == spec::kParts) {
    return 16;
  } else {
    return Greatest(kHandsOver<g> ? static_cast<int>(sizeof(typename spec::Part<g>::Value)) : 0, MostHanded<g + 1>());
  }
}
struct alignas(16) Handed {
  char bytes[kFoldThreads * MostHanded()];
};

// The tables of each entry in the order of their numbers, then dest from the left. Several threads share an entry's tables where
// there are more threads than entries: how many depends on the sizes alone.
template <int g>
JP_DEVICE void FoldPart(const HistParams& p, i64 tables, Handed& handed) {
  using Part = spec::Part<g>;
  using Value = typename Part::Value;
  const i64 entries = EntriesOf<g>(p.call), members = p.call.batch.members;
  const i64 folders = kHandsOver<g> ? FoldersOf(entries * members, tables, p.fold_threads) : 1;
  const Tile tile(kFoldThreads / folders, entries);
  // Of a thread: column fastest, then folder, then row.
  const i64 column = Thread() % tile.columns, folder = Thread() / tile.columns % folders;
  const i64 first = tables * folder / folders, last = tables * (folder + 1) / folders;
  const i64 row_of_tile = Thread() / (tile.columns * folders);
  ForEachTile(tile, members, entries, row_of_tile, column, [&](const Rounds& rounds) {
    const i64 member = Least(rounds.row, members - 1);
    const HistRow row = RowOf(p.call, member);
    const auto outs = OutsOf<g>(p.call, row.at);
    const auto dests = DestsOf<g>(p.call, row.at);
    const char* result = reinterpret_cast<const char*>(outs.o0);
    const char* in_tables = TableOf<g>(p, member, 0);
#pragma unroll 1
    for (int round = 0; round < rounds.count; ++round) {
      const i64 entry = rounds.entry + round * rounds.step;
      const bool valid = rounds.row < members && entry < entries;
      Value sum = {};
      if (valid) {
        const auto read = [&](i64 table) {
          return Part::Read((table < p.in_place ? result : in_tables + table * p.table_bytes) + entry * Part::kEntryBytes);
        };
        sum = read(first);
#pragma unroll 4
        for (i64 table = first + 1; table < last; ++table) sum = Part::Op(row.uniforms, sum, read(table));
      }
      if constexpr (kHandsOver<g>) {
        Value* values = reinterpret_cast<Value*>(handed.bytes);
        for (i64 step = 1; step < folders; step *= 2) {
          values[Thread()] = sum;
          BlockBarrier();
          if (valid && folder % (2 * step) == 0) sum = Part::Op(row.uniforms, sum, values[Thread() + step * tile.columns]);
          BlockBarrier();
        }
      }
      if (valid && folder == 0) {
        const bool with_dest = Part::kDest && Part::kHasIdentity && p.in_place == 0;
        Part::Finish(outs, dests, row.uniforms, entry, sum, with_dest);
      }
    }
  });
}

JP_KERNEL(HistCombine, HistParams, kFoldThreads, 1) {
  const i64 tables = p.partials > 0 ? p.partials : WorkOf(p).subhistograms;
  if (tables <= p.in_place) return;
  JP_SHARED(Handed, handed);
  ForEachPart([&](auto part) { FoldPart<decltype(part)::value>(p, tables, handed); });
}

}  // namespace jp
