// MakeScanPlan: what every plan must satisfy, and what is chosen for the shapes that matter.

#include "scan_plan.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "batches.h"
#include "check.h"

namespace jaxprims::test::scan_plan_test {
namespace {

std::string Text(const ScanPlan& plan) {
  static constexpr const char* kOrders[] = {"assisting", "row-wise", "column-wise", "sequential rows"};
  std::ostringstream text;
  text << kOrders[static_cast<int64_t>(plan.order)] << " block=" << plan.block << " strip=" << plan.strip
       << " rows=" << plan.rows_per_task << (plan.periodic ? " periodic" : "") << (plan.stream ? " stream" : "")
       << " threads=" << plan.threads;
  return text.str();
}

void CheckPlan(const ScanProblem& p, const Machine& m) {
  const int before = failures;
  const ScanPlan plan = MakeScanPlan(p, m);
  CHECK(plan.threads >= 1 && plan.threads <= m.threads);
  CHECK(plan.block >= 1 && plan.strip >= 1 && plan.rows_per_task >= 1);
  CHECK(plan.strip <= std::max<int64_t>(1, p.lanes));
  CHECK(plan.strip == std::max<int64_t>(1, p.lanes) || plan.strip % kStripLanes == 0);
  if (p.across) {
    CHECK(!plan.periodic);
    CHECK(plan.strip == p.lanes || p.lanes == 0 || BlocksOf(p, plan) <= 1);
  } else {
    CHECK(plan.block % kScanStep == 0 && plan.strip == 1);
  }
  if (plan.periodic) CHECK(p.contiguous && p.n >= 1 && p.n <= kPeriodicElements && plan.rows_per_task % kCacheLine == 0);
  if (plan.order != ScanOrder::kSequentialRows) {
    CHECK(plan.threads > 1 && BlocksOf(p, plan) > 1 && !plan.periodic);
    CHECK(p.rows * StripsOf(p, plan) * BlocksOf(p, plan) < int64_t{1} << 32);  // the halves of the work index
  }
  CHECK(plan.order == ScanOrder::kSequentialRows || (plan.order == ScanOrder::kAnyOrder) == p.map);
  if (plan.stream) CHECK(!p.in_place && p.aligned && p.n * p.rows * p.lanes * p.OutBytes() > std::min(m.l3, kStreamBytes));
  CHECK(plan.variant() >= 0 && plan.variant() < 4);
  // What bits depend on is the same on every machine.
  Machine other;
  other.threads = 1;
  other.l1 = other.l2 = other.l3 = 1 << 14;
  const ScanPlan elsewhere = MakeScanPlan(p, other);
  CHECK_EQ(elsewhere.block, plan.block);
  CHECK_EQ(elsewhere.periodic, plan.periodic);
  CHECK(elsewhere.order == ScanOrder::kSequentialRows);
  if (failures != before) {
    Fail(__FILE__, __LINE__, Text(plan), " for n=", p.n, " rows=", p.rows, " lanes=", p.lanes, " across=", p.across,
         " slots=", p.slots, " threads=", m.threads);
  }
}

TEST(ScanPlanOfRandomProblems) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20'000; ++round) {
    ScanProblem p;
    p.n = Size(random, 33);
    p.rows = Size(random, 10);
    p.across = random() % 2 == 0;
    p.lanes = p.across ? Size(random, 11) : 1;
    p.in_bytes = Size(random, 8);
    p.leaf_bytes = {1 + Size(random, 6), Size(random, 6)};
    p.slots = 1 + Size(random, 5);
    p.reverse = random() % 2 == 0;
    p.in_place = random() % 4 == 0;
    p.aligned = random() % 4 != 0;
    p.contiguous = !p.across && random() % 2 == 0;
    p.map = random() % 4 == 0;
    Machine m;
    m.threads = static_cast<int>(1 + Size(random, 8));
    m.l3 = int64_t{2} << (20 + random() % 8);
    CheckPlan(p, m);
  }
}

ScanProblem Along(int64_t rows, int64_t n) {
  ScanProblem p;
  p.n = n, p.rows = rows;
  p.contiguous = true;
  return p;
}

ScanProblem Across(int64_t rows, int64_t n, int64_t lanes) {
  ScanProblem p;
  p.n = n, p.rows = rows, p.lanes = lanes;
  p.across = true;
  return p;
}

template <class Change>
ScanProblem With(ScanProblem p, Change change) {
  change(p);
  return p;
}

struct Example {
  const char* what;
  ScanProblem problem;
  int threads;
  const char* plan;
};

// On a machine with 32 MB of L3.
TEST(ScanPlanOfExamples) {
  constexpr int64_t kMillion = 1'000'000;
  const auto in_place = [](ScanProblem& p) { p.in_place = true; };
  const auto reverse = [](ScanProblem& p) { p.reverse = true; };
  const std::vector<Example> examples = {
      {"one long row", Along(1, 50 * kMillion), 2, "assisting block=65536 strip=1 rows=1 stream threads=2"},
      {"the same on one thread", Along(1, 50 * kMillion), 1, "sequential rows block=65536 strip=1 rows=1 stream threads=1"},
      {"what was just read is written", With(Along(1, 50 * kMillion), in_place), 2,
       "assisting block=65536 strip=1 rows=1 threads=2"},
      {"reversed, a row's end has to be at a cache line", With(Along(1, 50 * kMillion + 1), reverse), 2,
       "assisting block=65536 strip=1 rows=1 threads=2"},
      {"a shorter row has smaller blocks, so that all threads have some", Along(1, kMillion), 2,
       "assisting block=15360 strip=1 rows=1 threads=2"},
      {"a row of one block", Along(1, 5000), 2, "sequential rows block=8192 strip=1 rows=1 threads=1"},
      {"few long rows", Along(5, 10 * kMillion), 2, "assisting block=65536 strip=1 rows=1 stream threads=2"},
      {"rows enough for all threads", Along(10'000, 5000), 2, "sequential rows block=8192 strip=1 rows=3 threads=2"},
      {"whose ends are at cache lines", Along(50'000, 1024), 2, "sequential rows block=8192 strip=1 rows=16 stream threads=2"},
      {"short rows are scanned as one", Along(6 * kMillion, 8), 2,
       "sequential rows block=8192 strip=1 rows=2048 periodic stream threads=2"},
      {"along the first axis of a matrix: as wide as can be", Across(1, 10'000, 5000), 2,
       "sequential rows block=10000 strip=2560 rows=1 threads=2"},
      {"of a narrow one: blocks of rows", Across(1, 500'000, 100), 2, "assisting block=655 strip=100 rows=1 threads=2"},
      {"no rows", Along(0, 100), 2, "sequential rows block=8192 strip=1 rows=1 threads=1"},
      {"no elements", Along(100, 0), 2, "sequential rows block=8192 strip=1 rows=100 threads=1"},
  };
  for (const Example& example : examples) {
    Machine machine;
    machine.threads = example.threads;
    const std::string plan = Text(MakeScanPlan(example.problem, machine));
    if (plan != example.plan) Fail(__FILE__, __LINE__, example.what, ": ", plan, ", not ", example.plan);
  }
}

TEST(ScanWorkspaceOfExamples) {
  const auto bytes = [](const ScanProblem& p, int threads) {
    Machine machine;
    machine.threads = threads;
    return WorkspaceBytes(p, MakeScanPlan(p, machine));
  };
  CHECK_EQ(bytes(Along(1, 50'000'000), 2), 763 * (64 + 2 * 64) + 2 * 2 * 64);  // descriptors of 763 blocks, 2 workers
  CHECK_EQ(bytes(Along(5, 10'000'000), 2), 5 * 153 * (64 + 2 * 64) + 2 * 2 * 64);
  CHECK_EQ(bytes(Along(1, 50'000'000), 1), 2 * 64);
  CHECK_EQ(bytes(Along(10'000, 5000), 2), 2 * 2 * 64);
  CHECK_EQ(bytes(Across(1, 500'000, 100), 2), 764 * (64 + 2 * 832) + 2 * 2 * 832);  // of 100 lanes, 8 bytes each
  CHECK_EQ(bytes(Along(0, 100), 2), 0);
  CHECK_EQ(bytes(Along(100, 0), 2), 0);
}

}  // namespace
}  // namespace jaxprims::test::scan_plan_test
