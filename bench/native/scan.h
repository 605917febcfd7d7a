// Scans as an expert would write them by hand: a sequential loop, or OpenMP in two phases (reduce, then scan), a chunk a thread.
#pragma once

#include <omp.h>

#include <cstdint>
#include <vector>

namespace bench {

inline constexpr int64_t kTooShort = 8192;  // rows below it are not worth a second thread

// Combines elements [lo, hi) after `sum`, and stores each prefix.
template <class T, class Op, class Load, class Store>
T prefixes(int64_t lo, int64_t hi, T sum, Op op, Load load, Store store) {
  for (int64_t i = lo; i < hi; ++i) {
    sum = op(sum, load(i));
    store(i, sum);
  }
  return sum;
}

template <class Op, class Load, class Store>
void scan_row(int64_t n, Op op, Load load, Store store, int threads) {
  if (n == 0) return;
  if (threads == 1 || n < kTooShort) {
    const auto first = load(0);
    store(0, first);
    prefixes(1, n, first, op, load, store);
    return;
  }
  std::vector<decltype(load(0))> totals(threads);
#pragma omp parallel num_threads(threads)
  {
    const int64_t t = omp_get_thread_num(), lo = n * t / threads, hi = n * (t + 1) / threads;
    const bool is_last = t + 1 == threads;
    auto sum = load(lo);
    if (t == 0) {  // has no one to wait for
      store(0, sum);
      totals[0] = prefixes(1, hi, sum, op, load, store);
    } else if (!is_last) {
      for (int64_t i = lo + 1; i < hi; ++i) sum = op(sum, load(i));
      totals[t] = sum;
    }
#pragma omp barrier
    if (t > 0) {
      auto before = totals[0];
      for (int64_t k = 1; k < t; ++k) before = op(before, totals[k]);
      prefixes(lo, hi, before, op, load, store);
    }
  }
}

// Along the middle axis of [outer, n, inner].
template <class T, class Op>
void scan_axis(const T* x, T* y, int64_t outer, int64_t n, int64_t inner, Op op, int threads) {
  auto row = [=](int64_t o, int count) {
    const T* from = x + o * n;
    T* to = y + o * n;
    scan_row(n, op, [=](int64_t i) { return from[i]; }, [=](int64_t i, T v) { to[i] = v; }, count);
  };
  auto columns = [=](int64_t o, int64_t lo, int64_t hi) {
    for (int64_t i = 0; i < n; ++i) {
      const T* from = x + (o * n + i) * inner;
      T* to = y + (o * n + i) * inner;
      const T* before = to - inner;
      if (i == 0) {
        for (int64_t k = lo; k < hi; ++k) to[k] = from[k];
      } else {
#pragma omp simd
        for (int64_t k = lo; k < hi; ++k) to[k] = op(before[k], from[k]);
      }
    }
  };
  if (inner == 1 && outer >= threads && threads > 1) {
#pragma omp parallel for num_threads(threads)
    for (int64_t o = 0; o < outer; ++o) row(o, 1);
  } else if (inner == 1) {
    for (int64_t o = 0; o < outer; ++o) row(o, threads);
  } else if (outer >= threads || inner < 16 * threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t o = 0; o < outer; ++o) columns(o, 0, inner);
  } else {
#pragma omp parallel num_threads(threads)
    {
      const int64_t t = omp_get_thread_num(), lo = inner * t / threads, hi = inner * (t + 1) / threads;
      for (int64_t o = 0; o < outer; ++o) columns(o, lo, hi);
    }
  }
}

}  // namespace bench
