// RunScan: every order, plan and pool gives the result of a plain loop, and floats with the same bits.

#include "scan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <random>
#include <sstream>
#include <vector>

#include "batches.h"
#include "check.h"
#include "pools.h"
#include "scan_kernels.h"

namespace jaxprims::test::scan_test {
namespace {

struct Results {
  std::vector<uint32_t> maps;
  std::vector<uint8_t> counts;
  bool operator==(const Results&) const = default;
};

// A call with its memory. Vectors are as long as the operand: the address sanitizer sees an access past its end.
struct Problem : Batch {
  int options = 0;
  int64_t n = 0;
  int64_t lanes = 1;
  int value_mask = 3, flag_mask = 3, scale_mask = 0, init_mask = 3;
  bool init = false;
  double restarts = 0.01;
  std::vector<uint32_t> values, scales;
  std::vector<uint8_t> flags;
  std::vector<std::array<uint32_t, 2>> init_maps;
  std::vector<uint64_t> init_counts;

  void Draw(unsigned seed) {
    std::mt19937 random(seed);
    values.resize(static_cast<size_t>(Members(value_mask) * n * lanes));
    for (auto& value : values) value = static_cast<uint32_t>(random());
    scales.resize(static_cast<size_t>(Members(scale_mask)));
    for (auto& scale : scales) scale = static_cast<uint32_t>(random());
    if (options & kRestarts) {
      std::bernoulli_distribution starts(restarts);
      flags.resize(static_cast<size_t>(Members(flag_mask) * n));
      for (auto& flag : flags) flag = starts(random) ? 1 : 0;
    }
    if (!init) return;
    init_maps.resize(static_cast<size_t>(Members(init_mask) * lanes));
    for (auto& map : init_maps) map = {static_cast<uint32_t>(random()), static_cast<uint32_t>(random())};
    init_counts.resize(init_maps.size());
    for (auto& count : init_counts) count = random();
  }

  OrderedCall Call(Results& out) const {
    OrderedCall call;
    call.n = n;
    call.lanes = lanes;
    call.batch.assign(batch.begin(), batch.end());
    call.arrays = {At(values.data(), value_mask, n * lanes * 4), {}};
    if (options & kRestarts) call.flags = At(flags.data(), flag_mask, n);
    call.uniforms = {At(scales.data(), scale_mask, 4)};
    if (init) {
      call.init = {{At(init_maps.data(), init_mask, lanes * 8), 2}, {At(init_counts.data(), init_mask, lanes * 8), 1}};
    }
    out.maps.assign(static_cast<size_t>(Members(3) * n * lanes * 2), 77);
    out.counts.assign(static_cast<size_t>(Members(3) * n * lanes), 77);
    call.outs = {At(out.maps.data(), 3, n * lanes * 8), At(out.counts.data(), 3, n * lanes)};
    return call;
  }

  ScanProblem Described() const {
    Results out;
    return DescribeScan(AffineShape(options), Call(out));
  }

  Results Run(Pool& pool, const ScanPlan& plan) const {
    Results out;
    const OrderedCall call = Call(out);
    RunScan(pool, AffineShape(options), call, AffineScanKernel(options), DescribeScan(AffineShape(options), call), plan);
    return out;
  }

  // The plain loop.
  Results Expected() const {
    Results out;
    (void)Call(out);
    for (int64_t row = 0; row < Members(3); ++row) {
      for (int64_t lane = 0; lane < lanes; ++lane) {
        Affine state;
        if (init) {
          const auto at = static_cast<size_t>(Member(init_mask, row) * lanes + lane);
          state = {init_maps[at][0], init_maps[at][1], init_counts[at]};
        }
        for (int64_t i = 0; i < n; ++i) {
          const int64_t m = options & kReverse ? n - 1 - i : i;
          const int64_t from = (Member(value_mask, row) * n + m) * lanes + lane;
          if (options & kRestarts && flags[static_cast<size_t>(Member(flag_mask, row) * n + m)] != 0) state = Affine{};
          const Affine next =
              state.Then(Affine::Of(values[static_cast<size_t>(from)], m, scales[static_cast<size_t>(Member(scale_mask, row))]));
          const Affine& result = options & kExclusive ? state : next;
          const auto to = static_cast<size_t>((row * n + m) * lanes + lane);
          out.maps[2 * to] = result.a;
          out.maps[2 * to + 1] = result.b;
          out.counts[to] = static_cast<uint8_t>(result.count);
          state = next;
        }
      }
    }
    return out;
  }

  std::string Text(const ScanPlan& plan) const {
    std::ostringstream text;
    text << "options=" << options << " n=" << n << " batch=" << batch[0] << "x" << batch[1] << " lanes=" << lanes
         << " init=" << init << ": order=" << static_cast<int64_t>(plan.order) << " block=" << plan.block
         << " strip=" << plan.strip << " rows=" << plan.rows_per_task << " periodic=" << plan.periodic
         << " threads=" << plan.threads;
    return text.str();
  }
};

void Check(const Problem& problem, const Results& want, Pool& pool, const ScanPlan& plan) {
  if (!(problem.Run(pool, plan) == want)) Fail(__FILE__, __LINE__, problem.Text(plan));
}

// Every order, on pools of every temper.
void CheckOrders(const Problem& problem, int64_t block) {
  const Results want = problem.Expected();
  const Machine machine;
  const ScanProblem described = problem.Described();
  QueuePool queue(3);
  for (const int threads : {1, 2, 16}) {
    for (const int64_t order : {0, 1, 2, 3}) {
      if (kRacesOnly && threads == 1) break;
      const ScanPlan plan = ForcedScan(described, machine, order, block, 0, -1, threads);
      Check(problem, want, queue, plan);
      if (!kRacesOnly) {
        NeverPool never;
        Check(problem, want, never, plan);
        if (threads == 1) break;
        InlinePool at_once;
        Check(problem, want, at_once, plan);
        LatePool late;
        Check(problem, want, late, plan);
        late.RunLate();
      }
      BurstPool burst;
      Check(problem, want, burst, plan);
    }
  }
}

TEST(ScanOfLongRows) {
  for (const int options : {0, kExclusive | kReverse, kRestarts | kExclusive, kRestarts | kReverse}) {
    for (const bool init : {false, true}) {
      Problem problem;
      problem.options = options;
      problem.init = init;
      problem.n = 4 * kScanStep + 77;
      problem.batch = {2, 2};
      problem.restarts = 0.0005;
      problem.Draw(static_cast<unsigned>(options));
      CheckOrders(problem, kScanStep);
    }
  }
}

TEST(ScanOfOneLongRow) {
  for (const int64_t n : {kScanStep - 1, kScanStep, kScanStep + 1, 5 * kScanStep, 40 * kScanStep + 1}) {
    Problem problem;
    problem.n = n;
    problem.Draw(1);
    CheckOrders(problem, kScanStep);
  }
}

TEST(ScanAcross) {
  for (const int options : {0, int{kExclusive}, int{kReverse}, kRestarts | kReverse}) {
    for (const int64_t lanes : {1, 3, 70}) {
      Problem problem;
      problem.options = options | kAcross;
      problem.init = options == 0;
      problem.n = 23;
      problem.lanes = lanes;
      problem.batch = {1, 3};
      problem.value_mask = 2;
      problem.flag_mask = 0;
      problem.init_mask = 0;
      problem.restarts = 0.05;
      problem.Draw(static_cast<unsigned>(options));
      CheckOrders(problem, 4);
      CheckOrders(problem, 1000);
    }
  }
}

TEST(ScanOfShortRows) {
  for (const int options : {0, int{kExclusive}, int{kReverse}, int{kRestarts}}) {
    for (const int64_t n : {1, 2, 7, 100, 1000}) {
      Problem problem;
      problem.options = options;
      problem.n = n;
      problem.batch = {5, 13};
      problem.Draw(static_cast<unsigned>(n));
      CHECK(problem.Described().contiguous);
      const Results want = problem.Expected();
      QueuePool queue(2);
      for (const int64_t periodic : {0, 1}) {
        for (const int threads : {1, 3}) {
          Check(problem, want, queue, ForcedScan(problem.Described(), Machine{}, -1, -1, periodic, -1, threads));
        }
      }
    }
  }
}

TEST(ScanOfOperandsThatLackBatchAxes) {
  for (int masks = 0; masks < 4 * 4 * 4 * 4; masks += 3) {
    Problem problem;
    problem.options = kRestarts;
    problem.init = true;
    problem.n = 1100;
    problem.batch = {2, 3};
    problem.value_mask = masks & 3;
    problem.flag_mask = masks >> 2 & 3;
    problem.scale_mask = masks >> 4 & 3;
    problem.init_mask = masks >> 6;
    problem.Draw(static_cast<unsigned>(masks));
    CHECK(!problem.Described().contiguous);
    NeverPool pool;
    Check(problem, problem.Expected(), pool, ForcedScan(problem.Described(), Machine{}, masks % 4, kScanStep, -1, -1, 2));
  }
}

TEST(ScanOfNothing) {
  for (const int options : {0, int{kAcross}}) {
    for (const std::array<int64_t, 4> sizes : {std::array<int64_t, 4>{0, 2, 2, 1}, {5, 0, 2, 1}, {5, 2, 0, 1}, {5, 2, 2, 0}}) {
      if (sizes[3] == 0 && options == 0) continue;
      Problem problem;
      problem.options = options;
      problem.n = sizes[0];
      problem.batch = {sizes[1], sizes[2]};
      problem.lanes = sizes[3];
      problem.Draw(1);
      NeverPool pool;
      Check(problem, problem.Expected(), pool, MakeScanPlan(problem.Described(), Machine{}));
      Check(problem, problem.Expected(), pool, ForcedScan(problem.Described(), Machine{}, 0, 1, 1, 1, 4));
    }
  }
}

// A kernel that adds floats: each order of additions has other bits.
struct FloatSum {
  static int64_t Scan(const void* const* arrays, const void* const* /*uniforms*/, void* const* outs, const uint8_t* /*flags*/,
                      const OrderedRange* range, const void* prefix, void* aggregate, int64_t progress) {
    const auto* values = static_cast<const float*>(arrays[0]);
    auto& sum = *static_cast<float*>(aggregate);
    for (int64_t i = range->lo; i < range->hi; ++i) {
      sum = (progress & kStarted) != 0 ? sum + values[i] : values[i];
      progress |= kStarted;
      if (outs != nullptr) static_cast<float*>(outs[0])[i] = prefix ? *static_cast<const float*>(prefix) + sum : sum;
    }
    return progress;
  }
  static int64_t Reduce(const void* const* arrays, const void* const* uniforms, const uint8_t* flags, const OrderedRange* range,
                        void* aggregate, int64_t progress) {
    return Scan(arrays, uniforms, nullptr, flags, range, nullptr, aggregate, progress);
  }
  static void Combine(const void* const* /*uniforms*/, const void* a, const void* b, void* out, int64_t /*lanes*/) {
    *static_cast<float*>(out) = *static_cast<const float*>(a) + *static_cast<const float*>(b);
  }
  static OrderedShape Shape() {
    OrderedShape shape;
    shape.kind = "scan";
    shape.array_bytes = shape.leaf_bytes = shape.slot_bytes = {4};
    shape.leaf_slots = {1};
    return shape;
  }
};

TEST(ScanHasTheSameBitsWhateverTheThreads) {
  constexpr int64_t kN = 30 * kScanStep + 5;
  std::mt19937 random(1);
  std::vector<float> values(2 * kN);
  for (auto& value : values) value = static_cast<float>(random() % 1000) / 7.0F;
  auto run = [&](Pool& pool, bool in_place, int64_t order, int threads) {
    std::vector<float> in = values, out(in_place ? 0 : values.size());
    OrderedCall call;
    call.n = kN;
    call.batch = {2};
    Operand operand;
    operand.strides[0] = kN * 4;
    operand.data = reinterpret_cast<char*>(in.data());
    call.arrays = {operand};
    if (!in_place) operand.data = reinterpret_cast<char*>(out.data());
    call.outs = {operand};
    const OrderedShape shape = FloatSum::Shape();
    CHECK_EQ(DescribeScan(shape, call).in_place, in_place);
    const ScanPlan plan = ForcedScan(DescribeScan(shape, call), Machine{}, order, kScanStep, -1, -1, threads);
    RunScan(pool, shape, call, {FloatSum::Scan, FloatSum::Reduce, FloatSum::Combine, nullptr}, DescribeScan(shape, call), plan);
    return in_place ? in : out;
  };
  NeverPool never;
  const std::vector<float> want = run(never, false, -1, 1);
  QueuePool queue(3);
  for (int round = 0; round < 5; ++round) {
    for (const bool in_place : {false, true}) {
      for (const int64_t order : {0, 1, 2, 3}) {
        for (const int threads : {1, 2, 4}) CHECK(run(queue, in_place, order, threads) == want);
      }
      BurstPool burst;
      CHECK(run(burst, in_place, 0, 16) == want);
    }
  }
}

// Each result is made of its own element, and of nothing that another block has: the last one's aggregate is never written.
TEST(MapInAnyOrder) {
  struct Square {
    static int64_t Scan(const void* const* arrays, const void* const* /*uniforms*/, void* const* outs, const uint8_t* /*flags*/,
                        const OrderedRange* range, const void* prefix, void* /*aggregate*/, int64_t progress) {
      CHECK(prefix == nullptr || range->lo > 0);
      for (int64_t i = range->lo; i < range->hi; ++i) {
        const float x = static_cast<const float*>(arrays[0])[i];
        static_cast<float*>(outs[0])[i] += x * x;  // a second time would show
      }
      return progress | kStarted;
    }
    static int64_t Reduce(const void* const*, const void* const*, const uint8_t*, const OrderedRange*, void*, int64_t progress) {
      return progress | kStarted;
    }
    static void Combine(const void* const*, const void*, const void*, void*, int64_t) {}
  };
  constexpr int64_t kN = 20 * kScanStep + 3, kRows = 3;
  std::vector<float> in(kRows * kN);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i % 1000);
  OrderedShape shape = FloatSum::Shape();
  shape.map = true;
  QueuePool queue(3);
  for (const int64_t order : {-1, 0, 1, 2, 3, 4}) {
    for (const int threads : {1, 2, 4}) {
      std::vector<float> out(in.size());
      OrderedCall call;
      call.n = kN;
      call.batch = {kRows};
      Operand operand;
      operand.strides[0] = kN * 4;
      operand.data = reinterpret_cast<char*>(in.data());
      call.arrays = {operand};
      operand.data = reinterpret_cast<char*>(out.data());
      call.outs = {operand};
      const ScanPlan plan = ForcedScan(DescribeScan(shape, call), Machine{}, order, kScanStep, 0, 0, threads);
      CHECK(order != 4 || threads == 1 || plan.order == ScanOrder::kAnyOrder);
      RunScan(queue, shape, call, {Square::Scan, Square::Reduce, Square::Combine, nullptr}, DescribeScan(shape, call), plan);
      for (size_t i = 0; i < in.size(); ++i) CHECK_EQ(out[i], in[i] * in[i]);
    }
  }
}

TEST(ScanWithoutMemory) {
  Problem problem;
  problem.options = kAcross;
  problem.n = 1;
  problem.Draw(1);
  Results out;
  const OrderedCall call = problem.Call(out);
  ScanPlan plan = MakeScanPlan(problem.Described(), Machine{});
  plan.strip = int64_t{1} << 55;  // states that cannot be had
  bool thrown = false;
  try {
    NeverPool pool;
    RunScan(pool, AffineShape(kAcross), call, AffineScanKernel(kAcross), problem.Described(), plan);
  } catch (const std::bad_alloc&) {
    thrown = true;
  }
  CHECK(thrown);
}

}  // namespace
}  // namespace jaxprims::test::scan_test
