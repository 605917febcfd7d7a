// Reductions that keep the order: a chunk a thread, the chunks' results combined in order.
#pragma once

#include <omp.h>

#include <cstdint>
#include <vector>

namespace bench {

// part(lo, hi) reduces elements [lo, hi), of which there is at least one.
template <class Op, class Part>
auto reduce(int64_t n, Op op, Part part, int threads) {
  if (threads == 1 || n < 8192) return part(0, n);
  std::vector<decltype(part(0, n))> parts(threads);
#pragma omp parallel num_threads(threads)
  {
    const int64_t t = omp_get_thread_num();
    parts[t] = part(n * t / threads, n * (t + 1) / threads);
  }
  auto result = parts[0];
  for (int t = 1; t < threads; ++t) result = op(result, parts[t]);
  return result;
}

// One element after the other.
template <class Op, class Load>
auto in_order(Op op, Load load) {
  return [=](int64_t lo, int64_t hi) {
    auto result = load(lo);
    for (int64_t i = lo + 1; i < hi; ++i) result = op(result, load(i));
    return result;
  };
}

}  // namespace bench
