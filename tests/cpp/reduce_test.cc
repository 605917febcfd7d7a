// RunReduce: every plan on every pool gives the result of a plain loop, floats with the same bits on every pool and for any
// number of threads.

#include "reduce.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "check.h"
#include "pools.h"
#include "reduce_kernels.h"

namespace jaxprims::test::reduce_test {
namespace {

AffineResult Reduce(Pool& pool, const AffineProblem& p, const ReducePlan& plan) {
  AffineResult out(p.Members(3) * p.lanes);
  RunReduce(pool, AffineKernel::Shape("reduce", p.across), p.Call(out, p.lanes), AffineKernel::Kernel(p.across), plan);
  return out;
}

ReduceProblem Described(const AffineProblem& p) {
  AffineResult none;
  return DescribeReduce(AffineKernel::Shape("reduce", p.across), p.Call(none, p.lanes));
}

// The plan, not of short rows, with other sizes, as far as the problem allows.
ReducePlan Forced(const ReduceProblem& p, ReducePlan plan, int64_t block, int64_t strip, int64_t grain) {
  plan.periodic = false;
  plan.leaf = p.across ? kReduceLeafAcross : kReduceLeaf;
  const auto leaves = static_cast<uint64_t>(std::clamp<int64_t>(block / plan.leaf, 1, int64_t{1} << 40));
  plan.block = plan.leaf * static_cast<int64_t>(std::bit_ceil(leaves));
  plan.strip = std::clamp<int64_t>(strip, 1, std::max<int64_t>(1, p.lanes));
  plan.grain = std::max<int64_t>(1, grain);
  return plan;
}

ReducePlan PlanOf(const AffineProblem& p, int threads) {
  Machine machine;
  machine.threads = threads;
  return MakeReducePlan(Described(p), machine);
}

AffineResult PlainReduce(const AffineProblem& p) {
  AffineResult out(p.Members(3) * p.lanes);
  for (int64_t m = 0; m < p.Members(3); ++m) {
    for (int64_t lane = 0; lane < p.lanes; ++lane) {
      AffineState s = kAffineIdentity;
      if (p.init) {
        const auto at = static_cast<size_t>(p.Member(p.init_mask, m) * p.lanes + lane);
        s = {p.init_maps[2 * at], p.init_maps[2 * at + 1], p.init_sums[at]};
      }
      for (int64_t i = 0; i < p.n; ++i) s = Compose(s, p.Element(m, i, lane));
      out.Set(m * p.lanes + lane, s);
    }
  }
  return out;
}

// The planned and some forced ways, on pools of every temper.
void CheckReduce(const AffineProblem& p) {
  const AffineResult want = PlainReduce(p);
  NeverPool never;
  InlinePool at_once;
  QueuePool queue(3);
  const AffineResult first = Reduce(never, p, PlanOf(p, 1));
  CHECK(first.SameMaps(want));
  for (const int threads : {1, 4}) {
    for (Pool* pool : {static_cast<Pool*>(&never), static_cast<Pool*>(&at_once), static_cast<Pool*>(&queue)}) {
      if (threads == 1 && pool != &never) continue;
      if (kRacesOnly && (threads == 1 || pool != &queue)) continue;
      ReducePlan plan = PlanOf(p, threads);
      CHECK(Reduce(*pool, p, plan) == first);
      plan.threads = threads;
      for (const int64_t block : {0, 1000, 40'000}) {
        for (const int64_t strip : {1, 48, 1000}) {
          if (strip < 48 && p.lanes > 100) continue;
          const AffineResult got = Reduce(*pool, p, Forced(Described(p), plan, block, strip, block / 100 + strip));
          CHECK(got.SameMaps(want));
          CHECK(plan.periodic || got == first);
        }
      }
    }
  }
}

AffineProblem Rows(int64_t rows, int64_t n, bool init = false) {
  AffineProblem p;
  p.batch = {1, rows};
  p.n = n;
  p.init = init;
  p.Draw(static_cast<unsigned>(rows + n));
  return p;
}

TEST(ReduceOfOneRow) {
  for (const int64_t n : {0, 1, 2, 17, 8191, 8192, 8193, 50'000}) {
    for (const bool init : {false, true}) CheckReduce(Rows(1, n, init));
  }
}

TEST(ReduceOfManyRows) {
  for (const int64_t n : {0, 1, 3, 8, 64, 65, 1000}) {
    for (const int64_t rows : {0, 2, 70, 700}) CheckReduce(Rows(rows, n));
  }
  CheckReduce(Rows(3, 40'000, true));
  CheckReduce(Rows(5000, 7));
}

TEST(ReduceAcross) {
  for (const int64_t lanes : {0, 1, 16, 100, 3000}) {
    for (const int64_t n : {0, 1, 2, 8, 40, 255, 256, 257, 2000}) {
      if (lanes * n > 300'000) continue;
      AffineProblem p;
      p.batch = {2, 3};
      p.across = true;
      p.n = n;
      p.lanes = lanes;
      p.init = n % 2 == 1;
      p.Draw(static_cast<unsigned>(lanes));
      CheckReduce(p);
    }
  }
}

TEST(ReduceOfABatchWhoseOperandsLackAxes) {
  for (int value_mask = 0; value_mask < 4; ++value_mask) {
    for (int scale_mask = 0; scale_mask < 4; ++scale_mask) {
      for (const int64_t n : {5, 40, 100}) {
        AffineProblem p;
        p.batch = {n == 40 ? 90 : 3, n == 40 ? 7 : 80};
        p.n = n;
        p.value_mask = value_mask;
        p.scale_mask = scale_mask;
        p.init = n == 100;
        p.init_mask = 3 - value_mask;
        p.Draw(7);
        CheckReduce(p);
      }
    }
  }
}

TEST(ReduceJoinsRowsThatLieEndToEnd) {
  AffineProblem p = Rows(80, 5);
  p.batch = {3, 80};
  p.value.clear();
  p.Draw(1);
  const auto joined = [&] { return Described(p).joined; };
  CHECK_EQ(joined(), int64_t{240});
  p.scale_mask = 1;
  CHECK_EQ(joined(), int64_t{80});
  p.scale_mask = 2;
  CHECK_EQ(joined(), int64_t{1});
  p.scale_mask = 0;
  p.value_mask = 2;
  CHECK_EQ(joined(), int64_t{80});
  p.value_mask = 1;
  CHECK_EQ(joined(), int64_t{1});
  p.n = 40;
  const auto spaced = [&](int value_mask, int scale_mask) {
    p.value_mask = value_mask, p.scale_mask = scale_mask;
    const ReduceProblem found = Described(p);
    CHECK(found.inner == 1 || (found.spaced && found.joined % found.inner == 0 && found.inner < kReduceRows));
    return found.spaced ? found.joined : -found.joined;
  };
  CHECK_EQ(spaced(3, 0), int64_t{-240});
  CHECK_EQ(spaced(3, 3), int64_t{240});
  CHECK_EQ(spaced(2, 3), int64_t{80});
  CHECK_EQ(spaced(1, 3), int64_t{80});
  CHECK_EQ(spaced(0, 0), int64_t{240});
  p.batch = {80, 3};
  for (const int mask : {0, 1, 2, 3}) CHECK_EQ(spaced(mask, 3), int64_t{240});
}

TEST(ReducePairwiseSumIsAccurate) {
  const AffineProblem p = Rows(1, 1'000'000);
  double sum = 0;
  for (int64_t i = 0; i < p.n; ++i) sum += static_cast<double>(p.Element(0, i, 0).sum);
  NeverPool pool;
  const AffineResult out = Reduce(pool, p, PlanOf(p, 1));
  float got;
  std::memcpy(&got, out.leaves[1].data(), 4);
  CHECK(std::abs(got - sum) < 1.0);  // of terms up to 300
}

TEST(ReducePlanOfRandomProblems) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20'000; ++round) {
    ReduceProblem p;
    p.n = Size(random, 28);
    p.rows = Size(random, 14);
    p.joined = std::max<int64_t>(1, Size(random, 10));
    p.across = random() % 2 == 0;
    p.lanes = p.across ? Size(random, 14) : 1;
    p.slots = 1 + Size(random, 5);
    p.state_bytes = p.slots * (1 + Size(random, 3));
    p.init = random() % 2 == 0;
    p.folds_rows = random() % 2 == 0;
    p.spaced = random() % 2 == 0;
    Machine m;
    m.threads = static_cast<int>(1 + random() % 64);
    const ReducePlan plan = MakeReducePlan(p, m);
    const int before = failures;
    CHECK(plan.threads >= 1 && plan.threads <= m.threads && plan.grain >= 1);
    CHECK(plan.strip >= 1 && (plan.strip <= p.lanes || p.lanes == 0));
    if (plan.periodic) {
      CHECK(!p.init && p.n >= 1 && plan.leaf == p.n && (!p.across || p.folds_rows));
      CHECK(p.n <= (p.folds_rows ? kReduceLeaf : kReducePeriod));
      CHECK(!p.spaced || p.across || (p.folds_rows && p.n >= kReduceSpaced));
      CHECK(!p.across || p.n <= kReduceSteps || p.n * p.lanes <= kReduceTogether);
    } else {
      CHECK(plan.leaf == (p.across ? kReduceLeafAcross : kReduceLeaf));
      CHECK(plan.block % plan.leaf == 0 && std::has_single_bit(static_cast<uint64_t>(plan.block / plan.leaf)));
      // Aggregates of blocks are a small part of what is read.
      CHECK(plan.block >= p.n || plan.block >= 8 * p.slots);
    }
    CHECK_EQ(WorkspaceBytes(p, plan) == 0, plan.periodic || p.rows == 0 || p.lanes == 0);
    Machine one;
    CHECK_EQ(MakeReducePlan(p, one).leaf, plan.leaf);
    if (failures != before) Fail(__FILE__, __LINE__, "n=", p.n, " rows=", p.rows, " lanes=", p.lanes, " slots=", p.slots);
  }
}

TEST(ReduceWorkspaceOfExamples) {
  const auto bytes = [](int64_t n, int64_t rows, int64_t joined) {
    ReduceProblem p;
    p.n = n, p.rows = rows, p.joined = joined;
    return WorkspaceBytes(p, MakeReducePlan(p, Machine{}));
  };
  CHECK_EQ(bytes(1'000'000, 1, 1), (1 + 5) * 64 + 16 * 64);  // init's state, those of a fold of 16 blocks; the blocks'
  CHECK_EQ(bytes(10'000, 1, 1), (1 + 2) * 64);               // one block of two leaves
  CHECK_EQ(bytes(8, 1000, 1000), 0);                         // short rows: the kernel's own
  CHECK_EQ(bytes(1'000'000, 0, 1), 0);
}

}  // namespace
}  // namespace jaxprims::test::reduce_test
