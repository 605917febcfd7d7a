// MakePlan: what every plan must satisfy, and what is chosen for the sizes that matter.

#include "hist_plan.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "batches.h"
#include "check.h"

namespace jaxprims::test::hist_plan_test {
namespace {

constexpr int64_t kMillion = 1'000'000;

std::string Text(const HistPlan& plan) {
  std::ostringstream text;
  text << "M=" << plan.subhistograms << " S=" << plan.ranges << " C=" << plan.copies << (plan.soa ? " soa" : "")
       << (plan.prefetch ? " prefetch" : "") << (plan.wide ? " wide" : "") << " threads=" << plan.threads;
  return text.str();
}

std::string Text(const HistProblem& p, const Machine& m) {
  std::ostringstream text;
  text << "N=" << p.elements << " batch=" << p.batch << " H=" << p.bins << " bytes=" << p.bin_bytes << " updates=" << p.updates
       << " slots=" << p.slots << " lanes=" << p.lanes << (p.in_place ? " in place" : "") << (p.sorted ? " sorted" : "")
       << (p.must_in_place ? " must be in place" : "") << " on " << m.threads << " threads";
  return text.str();
}

void CheckPlan(const HistProblem& p, const Machine& m) {
  const HistPlan plan = MakePlan(p, m);
  const int before = failures;
  const int64_t table = (p.bins + 1) * p.bin_bytes;
  CHECK(plan.threads >= 1 && plan.threads <= m.threads);
  CHECK(plan.subhistograms >= 1 && plan.subhistograms <= kPartsPerThread * m.threads);
  CHECK(plan.ranges >= 1 && plan.ranges <= std::max<int64_t>(1, p.bins));
  CHECK(plan.ranges <= (p.map ? kPartsPerThread : 1) * m.threads);
  if (p.map) CHECK(plan.soa && !plan.prefetch);
  CHECK(plan.subhistograms == 1 || plan.ranges == 1);
  // One thread makes one subhistogram of one range.
  CHECK(plan.threads > 1 || (plan.subhistograms == 1 && plan.ranges == 1));
  CHECK(plan.copies >= 1 && plan.copies <= kMaxCopies && (plan.copies & (plan.copies - 1)) == 0);
  CHECK(plan.copies == 1 || plan.copies * table <= m.l1);
  if (plan.soa) CHECK((p.in_place || p.must_in_place) && plan.subhistograms == 1 && plan.copies == 1);
  if (p.must_in_place) CHECK(plan.soa);
  CHECK(plan.soa || plan.wide == (table >= int64_t{1} << 31));
  CHECK(plan.variant() >= 0 && plan.variant() < 64);
  CHECK_EQ(plan.variant() & 1, plan.soa ? 1 : 0);
  CHECK_EQ(plan.variant() >> 1 & 1, plan.soa || plan.ranges > 1 ? 1 : 0);
  CHECK_EQ(int64_t{1} << (plan.variant() >> 4), plan.copies);
  // Subhistograms of one thread each stay in the last-level cache together, a few of them for each thread at most; what cannot,
  // and may not be updated where it lies, has one table for each member of the batch that is being worked on.
  const int64_t bytes = WorkspaceBytes(p, plan);
  const int64_t gaps = 128 * p.updates, cached = kPartsPerThread * (std::max(m.l3, plan.threads * m.l1) + plan.threads * gaps);
  CHECK(bytes >= 0 && (plan.soa ? bytes == 0 : bytes <= std::max(cached, plan.threads * (table + gaps))));
  CHECK_EQ(Text(MakePlan(p, m)), Text(plan));
  if (failures != before) Fail(__FILE__, __LINE__, Text(plan), " for ", Text(p, m));
}

TEST(PlanOfRandomProblems) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 50'000; ++round) {
    HistProblem p;
    p.elements = Size(random, 33);
    p.batch = Size(random, 12);
    p.bins = Size(random, 33);
    p.bin_bytes = 1 + Size(random, 8);
    p.updates = 1 + Size(random, 5);
    p.lanes = std::min(p.bin_bytes, 1 + Size(random, 4));
    p.slots = 1 + Size(random, 3);
    p.in_place = random() % 4 != 0;
    p.sorted = random() % 4 == 0;
    p.must_in_place = random() % 8 == 0;
    p.map = p.in_place && random() % 8 == 0;
    Machine m;
    m.threads = static_cast<int>(1 + Size(random, 8));
    m.l1 = int64_t{16} << (10 + random() % 4);
    m.l2 = int64_t{256} << (10 + random() % 4);
    m.l3 = int64_t{2} << (20 + random() % 8);
    CheckPlan(p, m);
  }
}

struct Example {
  const char* what;
  HistProblem problem;
  int threads;
  const char* plan;
};

HistProblem Problem(int64_t elements, int64_t bins, int64_t bin_bytes = 4) {
  HistProblem p;
  p.elements = elements;
  p.bins = bins;
  p.bin_bytes = bin_bytes;
  return p;
}

template <class Change>
HistProblem With(HistProblem p, Change change) {
  change(p);
  return p;
}

// On a machine with 32 KB of L1, 1 MB of L2 and 32 MB of L3.
TEST(PlanOfExamples) {
  const auto not_in_place = [](HistProblem& p) { p.in_place = false; };
  const auto sorted = [](HistProblem& p) { p.sorted = true; };
  const auto without_identity = [](HistProblem& p) { p.must_in_place = true; };
  const auto batch = [](int64_t size) { return [size](HistProblem& p) { p.batch = size; }; };
  const auto slots = [](int64_t n) { return [n](HistProblem& p) { p.slots = n; }; };
  const auto work = [](int64_t w) { return [w](HistProblem& p) { p.work = w; }; };
  const auto map = [](HistProblem& p) { p.map = true; };
  const auto lanes = [](int64_t n) { return [n](HistProblem& p) { p.lanes = n; }; };
  const std::vector<Example> examples = {
      {"few bins: parts to balance, and copies so that equal neighbours do not wait for each other", Problem(50 * kMillion, 100),
       2, "M=8 S=1 C=8 threads=2"},
      {"the same on one thread", Problem(50 * kMillion, 100), 1, "M=1 S=1 C=8 threads=1"},
      {"a table past L1 has no room for copies", Problem(50 * kMillion, 60'000), 2, "M=8 S=1 C=1 threads=2"},
      {"combining more than a table for each thread would show", Problem(50 * kMillion, 1'500'000), 2,
       "M=2 S=1 C=1 prefetch threads=2"},
      {"tables past the last-level cache: bin ranges in the result", Problem(50 * kMillion, 6 * kMillion), 2,
       "M=1 S=2 C=1 soa prefetch threads=2"},
      {"the same with an accumulator of another type than the result", With(Problem(50 * kMillion, 6 * kMillion), not_in_place),
       2, "M=1 S=2 C=1 prefetch threads=2"},
      {"past 2^31 bytes", With(Problem(50 * kMillion, int64_t{1} << 29), not_in_place), 2, "M=1 S=2 C=1 prefetch wide threads=2"},
      {"a small call is for one thread", Problem(1000, 100), 2, "M=1 S=1 C=1 threads=1"},
      {"so is one of few long rows", With(Problem(1100, 600, 192), lanes(48)), 2, "M=1 S=1 C=1 soa threads=1"},
      {"rows by index, five for each bin: short ones have subhistograms", With(Problem(200'000, 40'000, 16), lanes(4)), 2,
       "M=2 S=1 C=1 threads=2"},
      {"of long ones threads own bins", With(Problem(200'000, 40'000, 256), lanes(64)), 2, "M=1 S=2 C=1 soa threads=2"},
      {"but not if an element takes long", With(Problem(1000, 100), work(100)), 2, "M=2 S=1 C=1 threads=2"},
      {"no elements", Problem(0, 100), 2, "M=1 S=1 C=1 soa threads=1"},
      {"no bins", Problem(1000, 0), 2, "M=1 S=1 C=8 threads=1"},
      {"few elements for many bins: only what they touch", Problem(1000, kMillion), 2, "M=1 S=2 C=1 soa prefetch threads=2"},
      {"tuples past the cache: one table of structs, so that an update touches one cache line",
       With(Problem(50 * kMillion, 2 * kMillion, 16), slots(3)), 2, "M=1 S=2 C=1 prefetch threads=2"},
      {"unless it would be far too large", With(Problem(50 * kMillion, 20 * kMillion, 16), slots(3)), 2,
       "M=1 S=2 C=1 soa prefetch threads=2"},
      {"or neighbours are updated one after the other anyway",
       With(With(Problem(50 * kMillion, 2 * kMillion, 16), slots(3)), sorted), 2, "M=1 S=2 C=1 soa threads=2"},
      {"sorted indices that hardly repeat: threads own the bins of their elements", With(Problem(5 * kMillion, kMillion), sorted),
       2, "M=1 S=2 C=1 soa threads=2"},
      {"sorted indices in runs", With(Problem(6 * kMillion, kMillion), sorted), 2, "M=2 S=1 C=1 threads=2"},
      {"no identity: bins can only start from dest", With(Problem(50 * kMillion, 100), without_identity), 2,
       "M=1 S=2 C=1 soa threads=2"},
      {"a batch that keeps all threads busy", With(Problem(kMillion, 100), batch(64)), 2, "M=1 S=1 C=8 threads=2"},
      {"a batch of tiny ones", With(Problem(100, 10), batch(100'000)), 2, "M=1 S=1 C=1 threads=2"},
      {"three on eight threads: three threads for each", With(Problem(4 * kMillion, 100), batch(3)), 8, "M=12 S=1 C=8 threads=8"},
      {"each element has a bin of its own: parts of the elements", With(With(Problem(kMillion, kMillion, 32), lanes(8)), map), 2,
       "M=1 S=8 C=1 soa threads=2"},
      {"array-valued bins are updated lane by lane", With(Problem(kMillion, 100, 128), lanes(32)), 2, "M=8 S=1 C=1 threads=2"},
  };
  for (const Example& example : examples) {
    Machine machine;
    machine.threads = example.threads;
    const std::string plan = Text(MakePlan(example.problem, machine));
    if (plan != example.plan) Fail(__FILE__, __LINE__, example.what, ": ", plan, ", not ", example.plan);
  }
}

// Numbers of a forced plan may be any: what comes out is a plan that its kernel and its workspace are made for.
TEST(ForcedPlanOfRandomNumbers) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 50'000; ++round) {
    HistProblem p;
    p.elements = Size(random, 20);
    p.bins = Size(random, 33);
    p.bin_bytes = 1 + Size(random, 8);
    p.in_place = random() % 2 == 0;
    p.lanes = random() % 4 == 0 ? 8 : 1;
    p.must_in_place = p.in_place && random() % 4 == 0;
    const auto number = [&] { return static_cast<int64_t>(random() % 2 == 0 ? random() % 20 : random() >> random() % 64) - 2; };
    const HistPlan plan = Forced(p, MakePlan(p, Machine()), number(), number(), number(), random() % 2 == 0, random() % 2 == 0);
    CHECK(plan.subhistograms >= 1 && plan.ranges >= 1 && plan.copies >= 1);
    CHECK_EQ(int64_t{1} << (plan.variant() >> 4), plan.copies);
    CHECK(plan.variant() >= 0 && plan.variant() < 128);
    CHECK(!plan.soa || p.in_place);
    CHECK(plan.soa || !p.must_in_place);
    CHECK(plan.soa || plan.wide == ((p.bins + 1) * p.bin_bytes * plan.copies >= int64_t{1} << 31));
    CHECK(WorkspaceBytes(p, plan) >= 0);
  }
}

}  // namespace
}  // namespace jaxprims::test::hist_plan_test
