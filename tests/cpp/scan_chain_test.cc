// RunChain: on every pool, with any number of threads, what plain loops give.

#include "scan_chain.h"

#include <cstdint>
#include <vector>

#include "check.h"
#include "pools.h"

namespace jaxprims::test::scan_chain_test {
namespace {

// Sums modulo 2^32, which tell any order but the right one where they are scanned twice: of the elements, or of position +
// element.
template <bool kPositions>
struct Sum {
  static int64_t Run(const void* const* arrays, void* const* outs, const OrderedRange& range, const void* prefix, void* aggregate,
                     int64_t progress) {
    const auto* in = static_cast<const uint32_t*>(arrays[0]);
    CHECK(range.lo % kScanStep == 0 && range.lo < range.hi && range.hi <= range.n);
    uint32_t sum = (progress & kStarted) != 0 ? *static_cast<uint32_t*>(aggregate) : 0;
    const uint32_t before = prefix == nullptr ? 0 : *static_cast<const uint32_t*>(prefix);
    for (int64_t i = range.lo; i < range.hi; ++i) {
      sum += in[i] + (kPositions ? static_cast<uint32_t>(i) : 0);
      if (outs != nullptr) static_cast<uint32_t*>(outs[0])[i] = before + sum;
    }
    *static_cast<uint32_t*>(aggregate) = sum;
    return kStarted;
  }
  static int64_t Scan(const void* const* arrays, const void* const*, void* const* outs, const uint8_t*, const OrderedRange* range,
                      const void* prefix, void* aggregate, int64_t progress) {
    return Run(arrays, outs, *range, prefix, aggregate, progress);
  }
  static int64_t Reduce(const void* const* arrays, const void* const*, const uint8_t*, const OrderedRange* range, void* aggregate,
                        int64_t progress) {
    return Run(arrays, nullptr, *range, nullptr, aggregate, progress);
  }
  static void Combine(const void* const*, const void* a, const void* b, void* out, int64_t) {
    *static_cast<uint32_t*>(out) = *static_cast<const uint32_t*>(a) + *static_cast<const uint32_t*>(b);
  }
  static void Finish(const void* const*, const void* state, void* const* outs, int64_t) {
    *static_cast<uint32_t*>(outs[0]) = *static_cast<const uint32_t*>(state);
  }
};

OrderedShape ShapeOf(const char* kind) {
  OrderedShape shape;
  shape.kind = kind;
  shape.array_bytes = shape.leaf_bytes = shape.slot_bytes = {4};
  return shape;
}

TEST(Chains) {
  const OrderedShape scan = ShapeOf("scan"), reduce = ShapeOf("reduce");
  const OrderedKernel plain{Sum<false>::Scan, Sum<false>::Reduce, Sum<false>::Combine, Sum<false>::Finish};
  const OrderedKernel placed{Sum<true>::Scan, Sum<true>::Reduce, Sum<true>::Combine, Sum<true>::Finish};
  for (const int64_t n : {int64_t{1}, kScanStep, kScanStep + 1, 40 * kScanStep - 3, 300 * kScanStep + 7}) {
    std::vector<uint32_t> in(static_cast<size_t>(n)), twice(in.size()), expected(in.size());
    uint32_t once = 0, again = 0, total = 0;
    for (size_t i = 0; i < in.size(); ++i) {
      in[i] = static_cast<uint32_t>(i * 2654435761U);
      once += in[i];
      again += once + static_cast<uint32_t>(i);
      expected[i] = again;
      total += again;
    }
    const auto run = [&](Pool& pool, int threads) {
      uint32_t sum = 0;
      ChainCall call;
      call.n = n;
      call.places = {reinterpret_cast<char*>(in.data()), reinterpret_cast<char*>(twice.data()), reinterpret_cast<char*>(&sum)};
      call.buffers = {4};
      call.members = {{&scan, &plain, {0}, {}, {3}}, {&scan, &placed, {3}, {}, {1}}, {&reduce, &plain, {1}, {}, {2}}};
      RunChain(pool, call, threads);
      CHECK(twice == expected);
      CHECK_EQ(sum, total);
    };
    BurstPool burst;
    InlinePool inline_pool;
    NeverPool never;
    for (int round = 0; round < 5; ++round) run(burst, 4);
    run(burst, 2);
    run(inline_pool, 3);
    run(never, 4);
    run(never, 1);
  }
}

}  // namespace
}  // namespace jaxprims::test::scan_chain_test
