// The model of a GPU that histograms are planned by: Table I of Henriksen et al. 2020, and what must hold on any device.

#include "hist_model.h"

#include <cstdint>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "check.h"

namespace jaxprims::test::hist_model_test {
namespace {

using namespace jp;  // NOLINT(google-build-using-namespace): the names of the file that is tested

constexpr i64 kK = 1024, kN = 50'000'000;
constexpr ModelDevice kRtx2080Ti{48 * kK, 11 * kK * kK / 2, 64, 69'632, 1024};  // the paper's
constexpr ModelElement kHdw{4, 1, kClassHdw}, kCas{4, 1, kClassCas}, kXcg{8, 1, kClassXcg};

// "M,S" for each number of bins.
template <class Choose>
std::string Table(const std::vector<i64>& bins, Choose choose) {
  std::ostringstream text;
  for (const i64 h : bins) {
    const ModelChoice choice = choose(h);
    text << (text.tellp() > 0 ? " " : "") << choice.subhistograms << "," << choice.passes;
  }
  return text.str();
}

TEST(TableOneInSharedMemory) {
  const std::vector<i64> bins = {31, 127, 505, 2 * kK, 6 * kK, 12 * kK, 24 * kK, 48 * kK};
  const auto table = [&](const ModelElement& e) {
    return Table(bins, [&](i64 h) { return SharedChoice(kRtx2080Ti, kN, h, e); });
  };
  CHECK_EQ(table(kHdw), "396,1 96,1 24,1 6,1 2,1 1,1 1,2 1,4");
  CHECK_EQ(table(kCas), table(kHdw));  // printed as one row
  CHECK_EQ(table(kXcg), "132,1 32,1 8,1 2,1 1,2 1,3 1,6 1,12");
}

TEST(TableOneInGlobalMemory) {
  const std::vector<i64> bins = {12 * kK, 24 * kK, 48 * kK, 192 * kK, 384 * kK, 768 * kK, 1536 * kK};
  const auto table = [&](const ModelElement& e, double race_factor) {
    return Table(bins, [&](i64 h) { return GlobalChoice(kRtx2080Ti, kN, h, e, race_factor); });
  };
  CHECK_EQ(table(kHdw, 1), "23,1 11,1 5,1 1,1 1,1 1,2 1,3");
  CHECK_EQ(table(kHdw, 63), "69,1 34,1 17,1 4,1 2,1 1,1 1,1");
  CHECK_EQ(table(kCas, 1), "46,1 23,1 11,1 2,1 1,1 1,2 1,3");
  CHECK_EQ(table(kCas, 63), "138,1 69,1 34,1 8,1 4,1 2,1 1,1");
  CHECK_EQ(table(kXcg, 1), "15,1 7,1 3,1 1,1 1,2 1,3 1,5");
  CHECK_EQ(table(kXcg, 63), "69,1 34,1 17,1 4,1 2,1 1,1 1,1");
}

TEST(SizesOfElements) {
  CHECK_EQ(ElementSize(kCas), 4);
  CHECK_EQ(ElementSize(kXcg), 12);
  CHECK_EQ(AverageSize(kXcg), 6);
  CHECK_EQ(AverageSize({8, 2, kClassXcg}), 4);  // a tuple of arrays: section III-D, item 3
  CHECK_EQ(AverageSize({8, 2, kClassCas}), 4);
}

TEST(RaceExpansionOfElements) {
  CHECK_EQ(RaceExpansion(kRtx2080Ti, 1, kCas), 1);
  CHECK_EQ(RaceExpansion(kRtx2080Ti, 63, kCas), 0.75 * 63 / 16);
  CHECK_EQ(RaceExpansion(kRtx2080Ti, 63, {64, 1, kClassXcg}), 0.75 * 63 / (64. / 34));
  CHECK_EQ(RaceExpansion(kRtx2080Ti, 63, {256, 1, kClassXcg}), 0.75 * 63);  // a bin wider than a line wastes nothing
}

TEST(SharedMemoryUpToSomePasses) {
  for (const ModelElement& e : {kHdw, kCas, kXcg}) {
    const i64 last = MaxSharedPasses(e.atomic), fit = kRtx2080Ti.shared_bytes / ElementSize(e);
    CHECK_EQ(SharedChoice(kRtx2080Ti, kN, last * fit, e).passes, last);
    CHECK_EQ(SharedChoice(kRtx2080Ti, kN, last * fit + 1, e).passes, last + 1);
  }
  CHECK(MaxSharedPasses(kClassHdw) == 3 && MaxSharedPasses(kClassCas) == 4 && MaxSharedPasses(kClassXcg) == 6);
  CHECK_EQ(SharedChoice(kRtx2080Ti, kN, 10, {64 * kK, 1, kClassXcg}).passes, 0);  // not even one bin fits
}

TEST(ChoicesOfRandomProblemsArePossible) {
  std::mt19937_64 random(1);
  const auto one_of = [&](std::initializer_list<i64> of) { return of.begin()[random() % of.size()]; };
  for (int round = 0; round < 20'000; ++round) {
    const ModelDevice d{one_of({16 * kK, 48 * kK, 227 * kK}), one_of({kK * kK, 6 * kK * kK, 50 * kK * kK}), one_of({32, 64, 128}),
                        one_of({2048, 69'632, 270'336}), one_of({256, 512, 1024})};
    ModelElement e{0, one_of({1, 2, 4}), one_of({kClassHdw, kClassCas, kClassXcg})};
    for (i64 k = 0; k < e.arrays; ++k) e.bytes += one_of({1, 2, 4, 8, 16, 100});
    const auto size = [&] { return 1 + static_cast<i64>(random() >> (24 + random() % 40)); };
    const i64 n = size(), h = size();
    const double race_factor = 1 + static_cast<double>(random() % 1'000'000);
    const ModelChoice in_shared = SharedChoice(d, n, h, e), in_global = GlobalChoice(d, n, h, e, race_factor);
    for (const ModelChoice& c : {in_shared, in_global}) {
      CHECK(c.subhistograms >= 1 && c.passes >= 1 && c.cooperation >= 1 && c.passes * c.chunk >= h);
    }
    CHECK(in_shared.subhistograms * in_shared.chunk * ElementSize(e) <= d.shared_bytes && in_shared.subhistograms <= d.block);
    CHECK(in_global.subhistograms * in_global.cooperation <= AtLeast1(Least(d.threads, n)));
    CHECK(in_global.passes <= GlobalChoice(d, n, h, e, 1).passes);  // a sparser histogram gets no more
  }
}

TEST(CopiesThatPayForThemselves) {
  constexpr ModelDevice kH200{0, 50 * kK * kK, 64, 270'336, 256};
  // Rows of 32 by index, slower than XLA's scatter when there were four: 15 updates a number do not wait for a launch's time.
  CHECK_EQ(GlobalChoice(kH200, 9'600'000, 640'000, kHdw, 1.6).subhistograms, 1);
  CHECK_EQ(CopiesThatPay(kH200, kN, 384 * kK, kHdw, 1), 1);
  CHECK(CopiesThatPay(kH200, kN, 192 * kK, kHdw, 63) > 100);  // of one bin in 63
  CHECK(CopiesThatPay(kH200, kN, 192 * kK, kCas, 1) > 100);
  std::mt19937_64 random(2);
  for (int round = 0; round < 20'000; ++round) {
    const auto size = [&] { return 1 + static_cast<i64>(random() >> (24 + random() % 40)); };
    const ModelElement e = std::vector{kHdw, kCas, kXcg}[random() % 3];
    const i64 n = size(), h = size();
    const double race_factor = 1 + static_cast<double>(random() % 1000);
    const i64 most = CopiesThatPay(kH200, n, h, e, race_factor);
    CHECK(most >= 1 && most <= CopiesThatPay(kH200, 2 * n, h, e, race_factor));
    CHECK(most <= CopiesThatPay(kH200, n, h, e, 2 * race_factor) && most >= CopiesThatPay(kH200, n, 2 * h, e, race_factor));
    const double waiting = Turn(e.atomic) * static_cast<double>(n) * race_factor / static_cast<double>(h);
    const double moved = 2.0 * static_cast<double>(most) * static_cast<double>(h * e.bytes) / (132 * kBytesPerClock);
    CHECK(most == 1 || kLaunchClocks + moved <= 1.001 * waiting);
    CHECK(GlobalChoice(kH200, n, h, e, race_factor).subhistograms <= most);
  }
}

TEST(RaceFactorOfSamples) {
  const auto of = [](const std::vector<i64>& indices, i64 bins) {
    const auto n = static_cast<i64>(indices.size());
    const i64 size = RaceGroupSize(n, bins), groups = RaceGroups(n, bins);
    i64 distinct = 0;
    for (i64 k = 0; k < groups; ++k) {
      const auto first = indices.begin() + RaceStart(n, size, groups, k);
      std::set<i64> hit(first, first + size);
      hit.erase(bins);  // what is out of range hits none
      distinct += static_cast<i64>(hit.size());
    }
    return RaceFactor(size, groups, distinct);
  };
  std::vector<i64> indices(1000);
  for (size_t k = 0; k < indices.size(); ++k) indices[k] = static_cast<i64>(k % 10 * 100);
  CHECK_EQ(of(indices, 1000), 100);  // as jaxprims.race_factor says of these
  CHECK_EQ(of(indices, 10), 1);
  CHECK_EQ(of(indices, 5000), 100);  // one group, shorter than the bins
  CHECK_EQ(of({7, 7, 7}, 7), 3);
  CHECK_EQ(of({}, 7), 1);
  CHECK_EQ(RaceGroups(1'000'000, 100), kRaceGroups);
  CHECK_EQ(RaceStart(1'000'000, 100, kRaceGroups, kRaceGroups - 1), 1'000'000 - 100);
}

}  // namespace
}  // namespace jaxprims::test::hist_model_test
