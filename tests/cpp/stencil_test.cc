// RunStencil: whatever the plan, the pool and the boundaries, every step is what a plain loop over the whole grid makes of it.

#include "stencil.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "pools.h"

namespace jaxprims::test::stencil_test {
namespace {

using Grid = std::vector<uint32_t>;

constexpr int64_t kWidth = 4;

// A stencil of numbers of 32 bits: the sum of what is read, each times its number, of the coordinates, and of a captured number.
// The kernel below has no state of its own: which stencil it is, it knows from here, which no thread changes while it runs.
struct Problem {
  StencilShape shape;
  StencilCall call;
  std::vector<Grid> arrays;  // by array, with all batch members that it has
  Grid out, scale;
  std::vector<int64_t> extent;
  bool rings_are_lines = false;
};
const Problem* running = nullptr;

bool Within(const Grid& grid, intptr_t place) {
  const auto begin = reinterpret_cast<intptr_t>(grid.data());
  return place >= begin && place < begin + static_cast<intptr_t>(4 * grid.size());
}

// read(r): what the r-th read reads.
template <class Read>
uint32_t Cell(const Read& read, const int64_t* at, uint32_t scale) {
  uint32_t sum = scale;
  for (size_t r = 0; r < running->shape.reads.size(); ++r) sum += (2 * static_cast<uint32_t>(r) + 3) * read(r);
  if (running->shape.coordinates) {
    for (size_t a = 0; a < running->call.window.size(); ++a) sum = sum * 31 + static_cast<uint32_t>(at[a]);
  }
  return sum;
}

uint32_t Load(const void* p) {
  uint32_t value = 0;
  std::memcpy(&value, p, 4);
  return value;
}

void RowKernel(const void* const* rows, const int64_t* row_steps, const void* const* uniforms, void* const* outs,
               const int64_t* out_steps, const int64_t* at, int64_t n, int64_t count, int64_t listed, int64_t /*stream*/,
               int64_t /*alone*/, const int64_t* ahead) {
  const StencilShape& shape = running->shape;
  CHECK(n >= kWidth);
  if (ahead[5] > 0) CHECK(Within(running->arrays[1], ahead[3]));  // which is what it is in all passes
  for (int64_t i = 0; running->rings_are_lines && i < count; ++i) {
    const auto place = reinterpret_cast<intptr_t>(outs[i * listed]) + i * out_steps[0];
    CHECK(Within(running->out, place) || place % kLine == 0);
  }
  std::vector<int64_t> here(at, at + running->call.window.size());
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      auto read = [&](size_t k) {
        const auto& r = shape.reads[k];
        const auto row = static_cast<size_t>(r.row);
        const void* first = rows[row + static_cast<size_t>(i * listed) * shape.rows.size()];
        return Load(static_cast<const char*>(first) + i * row_steps[row] + 4 * (j + r.offset * shape.unit));
      };
      here.back() = at[here.size() - 1] + j / shape.unit;
      const uint32_t value = Cell(read, here.data(), Load(uniforms[0]));
      std::memcpy(static_cast<char*>(outs[i * listed]) + i * out_steps[0] + 4 * j, &value, 4);
    }
    ++here[here.size() - 2];
  }
}

void CellKernel(const void* const* reads, const int64_t* read_steps, const void* const* uniforms, void* const* outs,
                const int64_t* out_steps, const int64_t* at, int64_t count) {
  std::vector<int64_t> here(at, at + running->call.window.size());
  for (int64_t i = 0; i < count; ++i) {
    auto read = [&](size_t r) { return Load(static_cast<const char*>(reads[r]) + i * read_steps[r]); };
    const uint32_t value = Cell(read, here.data(), Load(uniforms[0]));
    std::memcpy(static_cast<char*>(outs[0]) + i * out_steps[0], &value, 4);
    ++here[here.size() - 2];
  }
}

// Where coordinate x lies among n cells, by going back one cell at a time.
int64_t Walked(Boundary boundary, int64_t x, int64_t n) {
  while (x < 0 || x >= n) {
    switch (boundary) {
      case Boundary::kEdge:
        x = x < 0 ? 0 : n - 1;
        break;
      case Boundary::kWrap:
        x += x < 0 ? n : -n;
        break;
      case Boundary::kReflect:
        x = n == 1 ? 0 : x < 0 ? -x : 2 * (n - 1) - x;
        break;
      case Boundary::kSymmetric:
        x = x < 0 ? -x - 1 : 2 * n - 1 - x;
        break;
      default:
        return -1;
    }
  }
  return x;
}

// Steps over the whole grid of one member of the batch.
Grid Plain(const Problem& p, std::vector<Grid> arrays, uint32_t scale) {
  const auto& window = p.call.window;
  const size_t rank = window.size();
  auto row = [&](size_t r) { return static_cast<size_t>(p.shape.reads[r].row); };
  const std::vector<int64_t> here(rank, 0);
  std::vector<std::vector<int64_t>> offsets;  // by read
  for (size_t r = 0; r < p.shape.reads.size(); ++r) {
    auto& offset = offsets.emplace_back(p.shape.rows[row(r)].offset);
    if (offset.empty()) offset.push_back(0);
    offset.push_back(p.shape.reads[r].offset);
  }
  std::vector<int64_t> begin(rank, 0), end = p.extent;  // of what the steps change; what does not is always whole
  for (int64_t step = 0; step < p.call.steps; ++step) {
    std::vector<int64_t> first(rank), last(rank);
    int64_t cells = p.shape.unit;
    for (size_t a = 0; a < rank; ++a) {
      first[a] = begin[a] + window[a].shrink_lo;
      last[a] = end[a] - window[a].shrink_hi;
      cells *= last[a] - first[a];
    }
    Grid next(static_cast<size_t>(cells));
    std::vector<int64_t> at(rank);
    for (int64_t cell = 0; cell < cells; ++cell) {
      const int64_t lane = cell % p.shape.unit;
      int64_t rest = cell / p.shape.unit;
      bool kept = false;
      for (size_t a = rank; a-- > 0;) {
        at[a] = first[a] + rest % (last[a] - first[a]);
        rest /= last[a] - first[a];
        kept = kept || at[a] < first[a] + window[a].keep_lo || at[a] >= last[a] - window[a].keep_hi;
      }
      auto value = [&](size_t array, const std::vector<int64_t>& offset) {
        int64_t place = 0;
        for (size_t a = 0; a < rank; ++a) {
          const int64_t b = array == 0 ? begin[a] : 0, e = array == 0 ? end[a] : p.extent[a];
          const int64_t x = Walked(p.call.axes[array][a].boundary, at[a] + offset[a] - b, e - b);
          if (x < 0) return static_cast<uint32_t>(p.call.fills[array][0]);
          place = place * (e - b) + x;
        }
        return arrays[array][static_cast<size_t>(place * p.shape.unit + lane)];
      };
      auto read = [&](size_t r) { return value(static_cast<size_t>(p.shape.rows[row(r)].array), offsets[r]); };
      next[static_cast<size_t>(cell)] = kept ? value(0, here) : Cell(read, at.data(), scale);
    }
    arrays[0] = next;
    begin = first;
    end = last;
  }
  return arrays[0];
}

int64_t Draw(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

// A batch of three members. Array 0 is what steps change, array 1 does not have the batch axis.
Problem Drawn(std::mt19937& random) {
  Problem p;
  p.shape.rank = Draw(random, 1, 4);
  const auto rank = static_cast<size_t>(p.shape.rank);
  p.shape.unit = Draw(random, 0, 3) == 0 ? 3 : 1;
  p.shape.width = kWidth;
  p.shape.coordinates = p.shape.unit == 1 && Draw(random, 0, 2) == 0;
  p.shape.may_not_end = Draw(random, 0, 4) == 0;
  p.shape.array_bytes = {4, 4};
  p.shape.leaf_bytes = {4};
  const int64_t most = rank == 1 ? 60 : rank == 2 ? 17 : rank == 3 ? 9 : 6;
  p.extent.assign(rank == 1 ? 1 : 0, 1);
  for (size_t a = 0; a < rank; ++a) p.extent.push_back(Draw(random, 1, most));
  const int64_t reads = Draw(random, 0, 6);
  std::vector<std::vector<int64_t>> offsets;
  for (int64_t r = 0; r < reads; ++r) {
    const int64_t array = Draw(random, 0, 3) == 0 ? 1 : 0;
    std::vector<int64_t> offset;
    for (size_t a = 0; a < rank; ++a) offset.push_back(Draw(random, -2, 2));
    StencilShape::Row row{array, {offset.begin(), offset.end() - 1}};
    auto same = [&](const auto& other) { return other.array == row.array && other.offset == row.offset; };
    auto known = std::ranges::find_if(p.shape.rows, same);
    if (known == p.shape.rows.end()) known = p.shape.rows.insert(known, row);
    p.shape.reads.push_back({known - p.shape.rows.begin(), offset.back()});
    offsets.push_back(offset);
  }
  p.call.steps = Draw(random, 1, 7);
  p.call.batch = {3};
  p.call.axes.resize(2);
  if (rank == 1) {
    for (auto& axes : p.call.axes) axes.push_back({});
    p.call.window.push_back({});
  }
  const size_t outer = rank == 1 ? 1 : 0;
  for (size_t a = 0; a < rank; ++a) {
    const int64_t kind = Draw(random, 0, 6);  // a boundary; valid; keep
    int64_t low = 0, high = 0;
    for (const auto& offset : offsets) {
      low = std::max(low, -offset[a]);
      high = std::max(high, offset[a]);
    }
    StencilWindow w;
    const int64_t size = p.extent[a + outer];
    w.size = size;
    if (kind == 5) {
      w.shrink_lo = low;
      w.shrink_hi = high;
      w.start = p.call.steps * low;
      w.size = std::max<int64_t>(0, size - p.call.steps * (low + high));
    }
    if (kind == 6) {
      w.keep_lo = low;
      w.keep_hi = high;
    }
    p.call.window.push_back(w);
    const Boundary boundary = kind < 5 ? static_cast<Boundary>(kind) : Boundary::kNothing;
    for (auto& axes : p.call.axes) axes.push_back({boundary, size, 0, 0, 0});
  }
  int64_t cells = p.shape.unit, results = p.shape.unit;
  for (size_t a = 0; a < p.extent.size(); ++a) {
    cells *= p.extent[a];
    results *= p.call.window[a].size;
  }
  for (const int64_t members : {int64_t{3}, int64_t{1}}) {
    Grid& grid = p.arrays.emplace_back(static_cast<size_t>(members * cells));
    for (auto& value : grid) value = static_cast<uint32_t>(random());
  }
  p.out.resize(static_cast<size_t>(3 * results));
  p.scale = {static_cast<uint32_t>(random())};
  p.call.fills = {{7 + (int64_t{7} << 32), 7 + (int64_t{7} << 32)}, {9 + (int64_t{9} << 32), 9 + (int64_t{9} << 32)}};
  return p;
}

Operand At(const Grid& grid, int64_t stride) {
  Operand operand;
  operand.data = reinterpret_cast<char*>(const_cast<uint32_t*>(grid.data()));
  operand.strides[0] = 4 * stride;
  return operand;
}

Grid Run(Problem& p, Pool& pool, const StencilPlan& plan) {
  std::ranges::fill(p.out, 0xABABABAB);
  const auto members = static_cast<int64_t>(p.arrays[0].size()) / 3;
  p.call.arrays = {At(p.arrays[0], members), At(p.arrays[1], 0)};
  p.call.uniforms = {At(p.scale, 0)};
  p.call.outs = {At(p.out, static_cast<int64_t>(p.out.size()) / 3)};
  const StencilGrid grid(p.shape, p.call);
  const StencilKernel kernel{RowKernel, CellKernel};
  running = &p;
  RunStencil(pool, p.shape, p.call, grid, grid.Problem(), kernel, plan);
  return p.out;
}

TEST(StencilsOfEveryKindArePlainLoops) {
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    Problem p = Drawn(random);
    if (p.out.empty()) continue;
    const StencilGrid grid(p.shape, p.call);
    const StencilProblem problem = grid.Problem();
    Machine machine;
    machine.threads = 3;
    const StencilPlan chosen = MakeStencilPlan(problem, machine);
    StencilPlan plan =
        ForcedStencil(problem, chosen, Draw(random, 1, 5), Draw(random, 1, 7), Draw(random, 1, 4), Draw(random, 1, 20), -1);
    plan.threads = 4;
    plan.ahead = round % 2 == 0;
    const bool by_threads = round % 4 == 0;
    if (kRacesOnly && !by_threads) continue;
    Grid want;
    const size_t cells = p.arrays[0].size() / 3;
    running = &p;
    for (size_t member = 0; member < 3; ++member) {
      const auto first = p.arrays[0].begin() + static_cast<std::ptrdiff_t>(member * cells);
      const Grid made = Plain(p, {Grid(first, first + static_cast<std::ptrdiff_t>(cells)), p.arrays[1]}, p.scale[0]);
      want.insert(want.end(), made.begin(), made.end());
    }
    if (!kRacesOnly) {
      InlinePool inline_pool;
      CHECK(Run(p, inline_pool, chosen) == want);
      NeverPool never;
      CHECK(Run(p, never, plan) == want);
    }
    if (by_threads) {
      QueuePool threads(3);
      CHECK(Run(p, threads, plan) == want);
    }
  }
}

TEST(RowsThatKeepTheirEndsAreLinesInRings) {
  Problem p;
  p.shape.rank = 2;
  p.shape.unit = 1;
  p.shape.width = kWidth;
  p.shape.array_bytes = {4, 4};
  p.shape.leaf_bytes = {4};
  p.shape.rows = {{0, {0}}, {0, {1}}};
  p.shape.reads = {{0, -1}, {0, 1}, {1, 0}};
  p.extent = {20, 100};
  p.call.steps = 5;
  p.call.batch = {3};
  p.call.axes.resize(2);
  for (const int64_t size : p.extent) {
    StencilWindow w;
    w.size = size;
    w.keep_lo = w.keep_hi = 1;
    p.call.window.push_back(w);
    for (auto& axes : p.call.axes) axes.push_back({Boundary::kNothing, size, 0, 0, 0});
  }
  p.arrays = {Grid(6000, 3), Grid(2000, 5)};
  p.out.resize(6000);
  p.scale = {1};
  p.call.fills.resize(2);
  p.rings_are_lines = true;
  running = &p;
  const Grid made = Plain(p, {Grid(2000, 3), p.arrays[1]}, 1);
  InlinePool pool;
  StencilPlan plan;
  plan.depth = 5;
  for (const int64_t wide : {100, 32}) {
    plan.tile = {20, wide};
    const Grid got = Run(p, pool, plan);
    for (size_t k = 0; k < 3; ++k)
      CHECK(std::equal(made.begin(), made.end(), got.begin() + static_cast<std::ptrdiff_t>(2000 * k)));
  }
}

TEST(WhatIsReadBeyondAnAxis) {
  for (const Boundary b : {Boundary::kEdge, Boundary::kWrap, Boundary::kReflect, Boundary::kSymmetric, Boundary::kConstant}) {
    for (int64_t n = 1; n < 6; ++n) {
      for (int64_t x = -17; x < 23; ++x) {
        const int64_t walked = Walked(b, x, n);
        CHECK_EQ(Mapped(b, x + 5, 5, 5 + n), walked < 0 ? kFillValue : walked + 5);
      }
    }
  }
  CHECK_EQ(Mapped(Boundary::kEdge, 0, 3, 3), kFillValue);
}

TEST(StencilPlansFitTheirProblems) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    StencilProblem p;
    const int64_t rank = Draw(random, 2, 4);
    for (int64_t a = 0; a < rank; ++a) {
      p.size.push_back(int64_t{1} << Draw(random, 0, 60 / rank / 2));
      p.halo.push_back(Draw(random, 0, 3));
      p.span.push_back(2 * p.halo.back() + Draw(random, 0, 2));
      p.wraps.push_back(Draw(random, 0, 1));
    }
    p.widest = p.size;
    p.steps = Draw(random, 1, 100);
    p.array_bytes = p.leaf_bytes = {4};
    p.changed = p.steps > 1 ? 1 : 0;
    p.work = Draw(random, 1, 200);
    p.width = 8;
    Machine machine;
    machine.threads = static_cast<int>(Draw(random, 1, 64));
    const StencilPlan plan = MakeStencilPlan(p, machine);
    CHECK(plan.depth >= 1 && plan.depth <= p.steps);
    CHECK(plan.threads >= 1 && plan.threads <= machine.threads);
    for (size_t a = 0; a < p.size.size(); ++a) CHECK(plan.tile[a] >= 1 && plan.tile[a] <= p.size[a]);
  }
}

TEST(RingsLeaveRoomInTheSecondLevelCache) {
  StencilProblem p;
  p.widest = p.size = {342, 342, 342};
  p.halo = {1, 1, 1};
  p.span = {2, 2, 2};
  p.wraps = {0, 0, 0};
  p.steps = 10;
  p.array_bytes = p.leaf_bytes = {4};
  p.changed = 1;
  p.work = 19;
  p.width = 16;
  Machine machine{2};
  machine.l2 = 2 << 20;
  machine.l3 = 480 << 20;  // as a virtual machine of two cores says
  const StencilPlan plan = MakeStencilPlan(p, machine);
  CHECK(plan.ahead);
  CHECK_EQ(plan.depth, 5);
  CHECK(InUse(p, plan.tile, plan.depth) <= machine.l2 * 3 / 4);
  machine.l3 = 64 << 20;
  CHECK(MakeStencilPlan(p, machine).tile == plan.tile);
}

TEST(ThirdLevelCachesAreNotReadOnceAStep) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    StencilProblem p;
    const int64_t rows = Draw(random, 1500, 4000);
    p.widest = p.size = {rows, Draw(random, 1500, 4000)};
    p.halo = {1, 1};
    p.span = {2, 2};
    p.wraps = {0, 0};
    p.steps = Draw(random, 10, 60);
    p.array_bytes = p.leaf_bytes = {4};
    p.changed = 1;
    p.work = Draw(random, 10, 20);
    p.width = 16;
    Machine machine{static_cast<int>(Draw(random, 1, 4))};
    machine.l2 = 1 << 20;
    machine.l3 = p.Cells() * p.Bytes() * Draw(random, 6, 12) / 8;  // which nearly holds both grids, or does
    machine.byte_l3 = 0.0075;
    CHECK(MakeStencilPlan(p, machine).depth >= 4);
  }
}

TEST(ThreadsSeldomMeetOnSmallGrids) {
  for (const int64_t n : {64, 128, 256, 512}) {
    StencilProblem p;
    p.widest = p.size = {n, n};
    p.halo = {1, 1};
    p.span = {2, 2};
    p.wraps = {0, 0};
    p.steps = 50;
    p.array_bytes = p.leaf_bytes = {4};
    p.changed = 1;
    p.work = 14;
    p.width = 16;
    CHECK(MakeStencilPlan(p, Machine{2}).depth >= 5);
  }
}

TEST(KeptPlansAreThoseThatAreMade) {
  // By several threads at once, of more kernels than are kept, whose grids change.
  std::vector<std::thread> threads;
  std::atomic<int> others{0};
  const std::vector<char> kernels(300);
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::minstd_rand random(seed);
      for (int call = 0; call < 2000; ++call) {
        StencilProblem p;
        p.widest = p.size = {1 + static_cast<int64_t>(random() % 3), 8 * (1 + static_cast<int64_t>(random() % 3))};
        p.halo = p.span = p.wraps = {0, 0};
        p.array_bytes = p.leaf_bytes = {4};
        const Machine machine{1 + static_cast<int>(random() % 2)};
        const size_t kernel = call % 2 == 0 ? random() % 3 : random() % kernels.size();
        if (KeptStencilPlan(&kernels[kernel], p, machine) != MakeStencilPlan(p, machine)) ++others;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(others.load(), 0);
}

TEST(RowsInMemoryAreMadeAloneWhereAPageHasSeveral) {
  auto alone = [](const PerAxis<int64_t>& size, int64_t bytes) {
    StencilProblem p;
    p.halo.assign(size.size(), 1);
    p.span.assign(size.size(), 2);
    p.wraps.assign(size.size(), 0);
    p.widest = p.size = size;
    p.array_bytes = p.leaf_bytes = {bytes};
    p.work = p.width = 8;
    return MakeStencilPlan(p, Machine{2}).alone;
  };
  CHECK(alone({342, 342, 342}, 4));
  CHECK(alone({40000, 512}, 4));
  CHECK(!alone({6400, 6400}, 4));
  CHECK(!alone({342, 342, 1024}, 4));
  CHECK(!alone({342, 342, 512}, 8));
  CHECK(!alone({64, 16, 64}, 4));  // in the second-level cache
}

}  // namespace
}  // namespace jaxprims::test::stencil_test
