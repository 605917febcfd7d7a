// RunSegments: whatever the segments look like, on every pool, the result of a plain loop; and operands that are not
// what they should be are never a reason to touch memory out of bounds.

#include "segments.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "pools.h"
#include "reduce_kernels.h"

namespace jaxprims::test::segments_test {
namespace {

// A call: lengths of the segments of each member, made into offsets or ids.
struct SegmentsCase : AffineProblem {
  int64_t segments = 0;
  bool ids = false, wide = false;
  std::vector<int32_t> narrow_operand;
  std::vector<int64_t> wide_operand;
  std::vector<std::vector<int64_t>> offsets;  // by member of the operand

  // Makes the operand; `first` elements lie before the first segment, and what is left behind the last.
  void Cut(const std::function<int64_t()>& length, int64_t first = 0) {
    for (int64_t m = 0; m < Members(segments_mask); ++m) {
      std::vector<int64_t> at = {std::min(first, n)};
      for (int64_t s = 0; s < segments; ++s) at.push_back(std::min(n, at.back() + length()));
      offsets.push_back(at);
      if (!ids) {
        for (const int64_t offset : at) Add(offset);
        continue;
      }
      for (int64_t i = 0, s = -1; i < n; ++i) {
        while (s < segments && i >= (s < segments - 1 || s < 0 ? at[static_cast<size_t>(s + 1)] : at.back())) ++s;
        Add(s);
      }
    }
  }
  void Add(int64_t number) { wide ? wide_operand.push_back(number) : narrow_operand.push_back(static_cast<int32_t>(number)); }

  OrderedCall SegmentsCall(AffineResult& out) const {
    OrderedCall call = Call(out, segments * lanes);
    const int64_t count = ids ? n : segments + 1;
    call.flags = wide ? At(wide_operand.data(), segments_mask, count * 8) : At(narrow_operand.data(), segments_mask, count * 4);
    return call;
  }
  Segments Described() const { return {segments, ids, wide}; }

  SegmentsPlan Plan(int threads) const {
    AffineResult none;
    Machine machine;
    machine.threads = threads;
    return MakeSegmentsPlan(DescribeSegments(AffineKernel::Shape("segments", across), SegmentsCall(none), Described()), machine);
  }

  AffineResult Run(Pool& pool, const SegmentsPlan& plan) const {
    AffineResult out(Members(3) * segments * lanes);
    RunSegments(pool, AffineKernel::Shape("segments", across), SegmentsCall(out), Described(), AffineKernel::Kernel(across),
                plan);
    return out;
  }

  AffineResult Expected() const {
    AffineResult out(Members(3) * segments * lanes);
    for (int64_t m = 0; m < Members(3); ++m) {
      const auto& at = offsets[static_cast<size_t>(Member(segments_mask, m))];
      for (int64_t s = 0; s < segments; ++s) {
        for (int64_t lane = 0; lane < lanes; ++lane) {
          AffineState state = kAffineIdentity;
          for (int64_t i = at[static_cast<size_t>(s)]; i < at[static_cast<size_t>(s + 1)]; ++i) {
            state = Compose(state, Element(m, i, lane));
          }
          out.Set((m * segments + s) * lanes + lane, state);
        }
      }
    }
    return out;
  }
};

// The plan with small tasks and chunks, so that little data has all kinds of borders.
SegmentsPlan Small(const SegmentsCase& c, SegmentsPlan plan, int64_t items, int64_t chunk, int64_t strip) {
  plan.items = items;
  plan.tasks = std::max<int64_t>(1, CeilDiv(c.n + c.segments, items));
  plan.chunk = chunk;
  plan.strip = std::min(strip, std::max<int64_t>(1, c.lanes));
  plan.grain = 2;
  return plan;
}

void CheckSegments(const SegmentsCase& c) {
  const AffineResult want = c.Expected();
  NeverPool never;
  QueuePool queue(3);
  const AffineResult first = c.Run(queue, c.Plan(4));
  CHECK(first.SameMaps(want));
  if (!kRacesOnly) CHECK(c.Run(never, c.Plan(1)) == first);
  for (const int64_t items : {3, 64, 1000}) {
    const SegmentsPlan plan = Small(c, c.Plan(1), items, items == 1000 ? 100 : 16, 40);
    SegmentsPlan threads = plan;
    threads.threads = 4;
    const AffineResult got = c.Run(queue, threads);
    CHECK(got.SameMaps(want));
    if (!kRacesOnly) CHECK(c.Run(never, plan) == got);
  }
}

template <class Change>
void EachOperand(Change change) {
  for (const bool ids : {false, true}) {
    for (const bool wide : {false, true}) {
      SegmentsCase c;
      c.ids = ids;
      c.wide = wide;
      change(c);
    }
  }
}

TEST(SegmentsOfEveryLength) {
  std::mt19937 random(1);
  const std::vector<std::function<int64_t()>> lengths = {
      [] { return 1; },
      [] { return 3; },
      [] { return 20; },
      [] { return 700; },
      [] { return 0; },
      [] { return 1 << 20; },
      [&] { return static_cast<int64_t>(random() % 40); },
      [&] { return static_cast<int64_t>(random() % 4 == 0 ? random() % 12 : 0); },
      [&] { return static_cast<int64_t>(random() % 50 == 0 ? random() % 3000 : random() % 3); },
  };
  for (const auto& length : lengths) {
    for (const int64_t n : {0, 1, 100, 3000}) {
      for (const int64_t segments : {1, 7, 900}) {
        EachOperand([&](SegmentsCase& c) {
          c.n = n;
          c.segments = segments;
          c.Draw(3);
          c.Cut(length, n == 100 ? 5 : 0);
          CheckSegments(c);
        });
      }
    }
  }
}

TEST(SegmentsOfManyTasks) {
  std::mt19937 random(1);
  for (const int64_t limit : {1, 6, 60, 9000, 400'000}) {
    EachOperand([&](SegmentsCase& c) {
      c.n = 150'000;
      c.segments = limit == 6 ? 60'000 : limit == 1 ? 200'000 : 3000;
      c.Draw(3);
      c.Cut([&] { return static_cast<int64_t>(random() % limit); });
      NeverPool never;
      QueuePool queue(2);
      const AffineResult got = c.Run(queue, c.Plan(3));
      CHECK(got.SameMaps(c.Expected()));
      if (!kRacesOnly) CHECK(c.Run(never, c.Plan(1)) == got);
    });
  }
}

TEST(SegmentsAcross) {
  std::mt19937 random(1);
  for (const int64_t lanes : {1, 16, 200}) {
    EachOperand([&](SegmentsCase& c) {
      c.across = true;
      c.lanes = lanes;
      c.n = 300;
      c.segments = 40;
      c.Draw(3);
      c.Cut([&] { return static_cast<int64_t>(random() % 20); }, 2);
      CheckSegments(c);
    });
  }
}

TEST(SegmentsOfABatch) {
  std::mt19937 random(1);
  for (int mask = 0; mask < 4; ++mask) {
    EachOperand([&](SegmentsCase& c) {
      c.batch = {3, 4};
      c.segments_mask = mask;
      c.value_mask = 3 - mask;
      c.scale_mask = mask;
      c.n = 200;
      c.segments = 30;
      c.Draw(3);
      c.Cut([&] { return static_cast<int64_t>(random() % 12); });
      CheckSegments(c);
    });
  }
}

TEST(SegmentsNone) {
  SegmentsCase c;
  c.n = 100;
  c.Draw(1);
  c.Cut([] { return 1; });
  CheckSegments(c);
}

// Anything at all: the sanitizers watch, and every result is written.
TEST(SegmentsOfOperandsThatAreNotWhatTheyShouldBe) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 150; ++round) {
    EachOperand([&](SegmentsCase& c) {
      c.n = static_cast<int64_t>(random() % 3000);
      c.segments = 1 + static_cast<int64_t>(random() % 400);
      c.Draw(static_cast<unsigned>(round));
      const int64_t count = c.ids ? c.n : c.segments + 1;
      for (int64_t i = 0; i < count; ++i) {
        const auto any = static_cast<int64_t>(random());
        switch (round % 5) {
          case 0:  // anything
            c.Add(any);
            break;
          case 1:  // in range, in no order
            c.Add(any & 255);
            break;
          case 2:  // descending
            c.Add(count - i);
            break;
          case 3:  // increasing but for some
            c.Add(random() % 20 == 0 ? any : i * (c.ids ? c.segments : c.n) / count);
            break;
          default:
            c.Add(random() % 2 == 0 ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min());
        }
      }
      QueuePool queue(2);
      c.Run(queue, c.Plan(2));
      SegmentsPlan plan = Small(c, c.Plan(2), 50, 16, 1);
      plan.threads = 3;
      const AffineResult a = c.Run(queue, plan);
      plan.threads = 1;
      if (!kRacesOnly) CHECK(c.Run(queue, plan) == a);  // nothing is left as it was by chance
      for (size_t i = 1; i < a.leaves[2].size(); i += 2) CHECK((a.leaves[2][i - 1] & 1) == 1);  // an odd factor: all are written
    });
  }
}

TEST(SegmentsPlanOfRandomProblems) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20'000; ++round) {
    SegmentsProblem p;
    p.n = Size(random, 28);
    p.segments = Size(random, 28);
    p.members = Size(random, 14);
    p.across = random() % 2 == 0;
    p.lanes = p.across ? Size(random, 14) : 1;
    p.leaf_bytes = {1 + Size(random, 8), 1};
    p.slots = 1 + Size(random, 5);
    p.state_bytes = p.slots * (1 + Size(random, 3));
    Machine m;
    m.threads = static_cast<int>(1 + random() % 64);
    const SegmentsPlan plan = MakeSegmentsPlan(p, m);
    CHECK(plan.threads >= 1 && plan.threads <= m.threads && plan.grain >= 1 && plan.strip >= 1 && plan.tasks >= 1);
    CHECK(plan.items * plan.tasks >= p.n + p.segments && plan.items <= kSegmentsTask);
    CHECK(plan.chunk >= kRunsChunk * 256 && plan.chunk <= kRunsChunk * kScanBufferElements);
    Machine one;
    const SegmentsPlan alone = MakeSegmentsPlan(p, one);
    CHECK(alone.items == plan.items && alone.chunk == plan.chunk);
  }
}

TEST(SegmentsWorkspaceOfExamples) {
  const auto bytes = [](int64_t n, int64_t segments, int64_t members) {
    SegmentsProblem p;
    p.n = n, p.segments = segments, p.members = members;
    return WorkspaceBytes(p, MakeSegmentsPlan(p, Machine{}));
  };
  // What a worker has beside states: a list of the runs in 4 chunks of 2048, as many results of 4 bytes, an identity.
  const int64_t four = 4, chunks = four * 2048, lists = internal::RunList::Bytes(chunks) + chunks * 4 + 64;
  const int64_t ten = 10, n = ten * 16'384 - 10, line = 64;
  CHECK_EQ(bytes(1000, 10, 1), line + lists);
  CHECK_EQ(bytes(n, 10, 1), (1 + four) * line + lists + 2 * ten * line);  // 10 tasks and a fold of 11 states
  CHECK_EQ(bytes(n, 10, 3), (1 + four) * line + lists + 6 * ten * line);
  CHECK_EQ(bytes(1000, 0, 1), 0);
}

}  // namespace
}  // namespace jaxprims::test::segments_test
