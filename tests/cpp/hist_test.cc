// RunHist: every plan on every pool gives the result of a plain loop, for floats with the same bits on every pool.

#include "hist.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <sstream>
#include <vector>

#include "batches.h"
#include "check.h"
#include "kernels.h"
#include "pools.h"

namespace jaxprims::test::hist_test {
namespace {

// A call with its memory. Vectors are as long as the operand: the address sanitizer sees an access past its end.
template <class T, class Index>
struct Problem : Batch {
  int index_mask = 3, value_mask = 3, scale_mask = 0, dest_mask = 3;
  int64_t n = 0;
  std::vector<int64_t> bins = {1, 1};
  bool dest = false;
  std::vector<Index> index;
  std::vector<T> value, scale;
  Results<T> dests{0, bins};

  template <class MakeIndex>
  void Draw(unsigned seed, MakeIndex make_index) {
    std::mt19937 random(seed);
    for (int64_t i = 0; i < Members(index_mask) * n; ++i) index.push_back(static_cast<Index>(make_index(random)));
    for (int64_t i = 0; i < Members(value_mask) * n; ++i) value.push_back(static_cast<T>(random() % 1000) / T{3});
    for (int64_t i = 0; i < Members(scale_mask); ++i) scale.push_back(static_cast<T>(random() % 5 + 1));
    if (!dest) return;
    dests = Results<T>(Members(dest_mask), bins);
    for (auto& sum : dests.sums) sum = static_cast<T>(random() % 100);
    for (auto& count : dests.counts) count = random() % 100;
    for (auto& last : dests.last) last = random() % std::max<int64_t>(1, n);
  }

  HistCall Call(Results<T>& out) const {
    HistCall call;
    call.elements = n;
    call.batch.assign(batch.begin(), batch.end());
    call.bins.assign(bins.begin(), bins.end());
    call.arrays = {
        At(index.data(), index_mask, n * int64_t{sizeof(Index)}), At(value.data(), value_mask, n * int64_t{sizeof(T)}), {}};
    call.uniforms = {At(scale.data(), scale_mask, sizeof(T))};
    const auto leaves = [&](const Results<T>& results, int mask) {
      return List<Operand>{At(results.sums.data(), mask, bins[0] * int64_t{sizeof(T)}),
                           At(results.counts.data(), mask, bins[0] * int64_t{sizeof(int64_t)}),
                           At(results.last.data(), mask, bins[1] * int64_t{sizeof(int64_t)})};
    };
    call.outs = leaves(out, 3);
    call.dests = dest ? leaves(dests, dest_mask) : List<Operand>(3);
    return call;
  }

  Results<T> Empty() const {
    Results<T> out(Members(3), bins);
    std::fill(out.sums.begin(), out.sums.end(), T{-77});  // what must be overwritten
    std::fill(out.counts.begin(), out.counts.end(), -77);
    std::fill(out.last.begin(), out.last.end(), -77);
    return out;
  }

  Results<T> Run(Pool& pool, const HistPlan& plan, bool sorted = false) const {
    Results<T> out = Empty();
    HistCall call = Call(out);
    if (sorted) {
      call.sorted_array = 0;
      call.sorted_bytes = sizeof(Index);
    }
    const HistShape shape = ShapeOfSumCountLast<T>(dest);
    int64_t bytes = 0;
    for (size_t g = 0; g < bins.size(); ++g)
      bytes += Tables(plan) * internal::HistMember::TableBytes(shape, call, g, plan.copies);
    CHECK(bytes <= WorkspaceBytes(DescribeHist(shape, call), plan));
    RunHist(pool, shape, call, KernelOf<T, Index>(plan), plan);
    return out;
  }

  // The plain loop.
  Results<T> Expected() const {
    Results<T> out(Members(3), bins);
    for (int64_t at = 0; at < Members(3); ++at) {
      const int64_t from = Member(dest_mask, at);
      T* sums = out.sums.data() + at * bins[0];
      int64_t* counts = out.counts.data() + at * bins[0];
      int64_t* last = out.last.data() + at * bins[1];
      std::fill_n(last, bins[1], kNone);
      if (dest) {
        std::copy_n(dests.sums.data() + from * bins[0], bins[0], sums);
        std::copy_n(dests.counts.data() + from * bins[0], bins[0], counts);
        std::copy_n(dests.last.data() + from * bins[1], bins[1], last);
      }
      for (int64_t k = 0; k < n; ++k) {
        const int64_t b = index[static_cast<size_t>(Member(index_mask, at) * n + k)];
        if (b >= 0 && b < bins[0]) {
          sums[b] +=
              scale[static_cast<size_t>(Member(scale_mask, at))] * value[static_cast<size_t>(Member(value_mask, at) * n + k)];
          counts[b] += 1;
        }
        if (b >= 0 && b < bins[1]) last[b] = std::max(last[b], k);
      }
    }
    return out;
  }
};

HistPlan Plan(int64_t subhistograms, int64_t ranges, int64_t copies, bool soa, int threads) {
  HistPlan plan;
  plan.subhistograms = subhistograms;
  plan.ranges = ranges;
  plan.copies = copies;
  plan.soa = soa;
  plan.threads = threads;
  return plan;
}

// Every strategy: copies, subhistograms, ranges of a table, the result itself whole and in ranges; with one thread and with many.
std::vector<HistPlan> Plans(int64_t bins) {
  std::vector<HistPlan> plans;
  for (const int threads : {1, 4, 16}) {
    for (const int64_t copies : {1, 2, 8}) {
      plans.push_back(Plan(1, 1, copies, false, threads));
      plans.push_back(Plan(threads, 1, copies, false, threads));
      plans.push_back(Plan(kPartsPerThread * threads, 1, copies, false, threads));
    }
    const int64_t ranges = std::clamp<int64_t>(threads, 1, std::max<int64_t>(1, bins));
    plans.push_back(Plan(1, ranges, 1, false, threads));
    plans.push_back(Plan(1, ranges, 1, true, threads));
    plans.push_back(Plan(1, 1, 1, true, threads));
  }
  return plans;
}

// The sum of each bin of a plan's result, which for floats is the plain loop's up to rounding.
template <class T>
bool Near(const Results<T>& got, const Results<T>& want) {
  if (got.counts != want.counts || got.last != want.last || got.sums.size() != want.sums.size()) return false;
  for (size_t i = 0; i < got.sums.size(); ++i) {
    const auto a = static_cast<double>(got.sums[i]), b = static_cast<double>(want.sums[i]);
    if (a > b + 1e-4 * b || a < b - 1e-4 * b) return false;
  }
  return true;
}

// Every plan on every pool; all pools give the same bits.
template <class T, class Index>
void CheckAllPlans(const Problem<T, Index>& problem, bool sorted = false) {
  const Results<T> want = problem.Expected();
  QueuePool queue(3);
  for (const HistPlan& plan : Plans(std::max(problem.bins[0], problem.bins[1]))) {
    if (kRacesOnly && plan.threads == 1) continue;
    const int before = failures;
    NeverPool never;
    const Results<T> got = problem.Run(never, plan, sorted);
    CHECK(Near(got, want));
    CHECK(problem.Run(queue, plan, sorted) == got);
    BurstPool burst;
    CHECK(problem.Run(burst, plan, sorted) == got);
    if (!kRacesOnly) {
      InlinePool at_once;
      CHECK(problem.Run(at_once, plan, sorted) == got);
      LatePool late;
      CHECK(problem.Run(late, plan, sorted) == got);
      late.RunLate();
    }
    if (failures != before) {
      Fail(__FILE__, __LINE__, "N=", problem.n, " H=", problem.bins[0], ",", problem.bins[1], " batch=", problem.batch[0], "x",
           problem.batch[1], " M=", plan.subhistograms, " S=", plan.ranges, " C=", plan.copies, " soa=", plan.soa,
           " threads=", plan.threads, " sorted=", sorted, " dest=", problem.dest);
    }
  }
}

// Indices in and around the bins.
auto Around(int64_t bins) {
  return [bins](std::mt19937& random) { return static_cast<int64_t>(random() % static_cast<uint64_t>(bins + 4)) - 2; };
}

template <class T>
void CheckSizes() {
  for (const int64_t n : {0, 1, 37, 3000}) {
    for (const std::vector<int64_t>& bins : std::vector<std::vector<int64_t>>{{1, 1}, {2, 0}, {16, 4}, {7, 400}}) {
      for (const bool dest : {false, true}) {
        Problem<T, int32_t> problem;
        problem.n = n;
        problem.bins = bins;
        problem.dest = dest;
        problem.Draw(static_cast<unsigned>(n), Around(std::max(bins[0], bins[1])));
        CheckAllPlans(problem);
      }
    }
  }
}

TEST(HistOfIntegers) { CheckSizes<int64_t>(); }

TEST(HistOfFloatsHasTheSameBitsOnEveryPool) { CheckSizes<float>(); }

TEST(HistOfExtremeIndices) {
  using Limits = std::numeric_limits<int32_t>;
  Problem<float, int32_t> problem;
  problem.n = 2000;
  problem.bins = {50, 60};
  problem.Draw(3, [](std::mt19937& random) {
    const int32_t extreme[] = {Limits::min(), Limits::min() + 1, -1, 0, 49, 50, 59, 60, Limits::max() - 1, Limits::max()};
    return extreme[random() % std::size(extreme)];
  });
  CheckAllPlans(problem);
}

TEST(HistBatchesWhereEachOperandHasItsOwnAxes) {
  for (const std::vector<int64_t>& batch : std::vector<std::vector<int64_t>>{{3, 2}, {1, 5}, {9, 1}, {0, 4}}) {
    for (const int mask : {0, 1, 2, 3}) {
      Problem<float, int32_t> problem;
      problem.batch = batch;
      problem.index_mask = mask;
      problem.value_mask = 3 - mask;
      problem.scale_mask = mask ^ 1;
      problem.dest_mask = mask ^ 2;
      problem.dest = true;
      problem.n = 100;
      problem.bins = {20, 33};
      problem.Draw(static_cast<unsigned>(mask), Around(33));
      CheckAllPlans(problem);
    }
  }
}

// Results that are their own subhistograms, with dropped elements, whose spare bin is the next member's first.
TEST(HistOfManyTinyMembers) {
  for (const int64_t batch : {1, 2, 5, 3000}) {
    for (const int64_t bins : {1, 5, 40}) {
      const int64_t n = 7;
      std::mt19937 random(static_cast<unsigned>(batch + bins));
      std::vector<int32_t> index(static_cast<size_t>(batch * n));
      std::vector<int64_t> got(static_cast<size_t>(batch * bins), -77), want(got.size(), 0);
      for (size_t i = 0; i < index.size(); ++i) {
        index[i] = static_cast<int32_t>(Around(bins)(random));
        if (index[i] >= 0 && index[i] < bins) want[i / n * static_cast<size_t>(bins) + static_cast<size_t>(index[i])] += 1;
      }
      HistCall call;
      call.elements = n;
      call.batch = {batch};
      call.bins = {bins};
      call.arrays.resize(1);
      call.arrays[0].data = reinterpret_cast<char*>(index.data());
      call.arrays[0].strides[0] = n * int64_t{sizeof(int32_t)};
      call.dests.resize(1);
      call.outs.resize(1);
      call.outs[0].data = reinterpret_cast<char*>(got.data());
      call.outs[0].strides[0] = bins * int64_t{sizeof(int64_t)};
      for (const bool soa : {false, true}) {
        for (const int threads : {1, 2, 16}) {
          std::fill(got.begin(), got.end(), -77);
          BurstPool pool;
          RunHist(pool, Count<true>::Shape(), call, soa ? Count<true>::Kernel() : Count<false>::Kernel(),
                  Plan(1, 1, 1, soa, threads));
          CHECK(got == want);
        }
      }
    }
  }
}

TEST(HistOfAPlanForItsSize) {
  for (const int64_t bins : {int64_t{10}, int64_t{3000}, int64_t{300'000}}) {
    for (const int64_t batch : {1, 3, 9}) {
      Problem<int64_t, int32_t> problem;
      problem.n = 20'000;
      problem.batch = {batch, 1};
      problem.bins = {bins, bins};
      problem.Draw(5, Around(bins));
      Results<int64_t> out = problem.Empty();
      Machine machine;
      machine.threads = 4;
      const HistPlan plan = MakePlan(DescribeHist(ShapeOfSumCountLast<int64_t>(false), problem.Call(out)), machine);
      QueuePool pool(3);
      if (plan.copies == 4) continue;  // has no kernel here
      CHECK(problem.Run(pool, plan) == problem.Expected());
    }
  }
}

// Sorted indices, from one value for all to one element for each bin, with dropped ones at both ends.
template <class Index>
void CheckSorted() {
  for (const int64_t bins : {int64_t{1}, int64_t{3}, int64_t{1000}}) {
    for (const int64_t spread : {int64_t{1}, int64_t{4}, bins + 20}) {
      Problem<float, Index> problem;
      problem.n = 2500;
      problem.bins = {bins, bins};
      problem.dest = spread == 4;
      problem.Draw(7, [&](std::mt19937& random) {
        return static_cast<int64_t>(random() % static_cast<uint64_t>(spread)) - 10 + bins / 2;
      });
      std::sort(problem.index.begin(), problem.index.end());
      CheckAllPlans(problem, true);
    }
  }
}

TEST(HistOfSortedIndices) {
  CheckSorted<int32_t>();
  CheckSorted<int64_t>();
}

// One thread, as ranges may overlap then: a wrong result is allowed, an access out of bounds or a bin left as it was is not.
TEST(HistOfIndicesThatAreNotSortedAsPromised) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    Problem<float, int64_t> problem;
    problem.n = int64_t{50} * (seed % 7);
    problem.bins = {100, 100};
    problem.Draw(seed, [](std::mt19937& random) {
      const int64_t extreme = random() % 2 == 0 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
      return random() % 10 == 0 ? extreme : static_cast<int64_t>(random() % 140) - 20;
    });
    for (const int64_t ranges : {2, 3, 16}) {
      NeverPool pool;
      const Results<float> out = problem.Run(pool, Plan(1, ranges, 1, true, 16), true);
      CHECK(std::find(out.sums.begin(), out.sums.end(), -77.0F) == out.sums.end());
      CHECK(std::find(out.counts.begin(), out.counts.end(), -77) == out.counts.end());
      CHECK(std::find(out.last.begin(), out.last.end(), -77) == out.last.end());
    }
  }
}

}  // namespace
}  // namespace jaxprims::test::hist_test
