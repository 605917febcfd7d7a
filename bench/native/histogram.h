// Histograms as an expert would write them by hand: a sequential loop, or OpenMP with a private table for each thread.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace bench {

// element(i, update) calls update(index, value) as often as it likes; indices are trusted, as hand-written loops do.
template <class Bin, class Op, class Element>
void sequential(int64_t begin, int64_t end, Op op, Element element, Bin* bins) {
  for (int64_t i = begin; i < end; ++i) {
    element(i, [&](int64_t index, Bin value) { bins[index] = op(bins[index], value); });
  }
}

template <class Bin, class Op, class Element>
void histogram(int64_t n, int64_t num_bins, Bin identity, Op op, Element element, Bin* out, int threads) {
  std::fill_n(out, num_bins, identity);
  if (threads == 1) {
    sequential(0, n, op, element, out);
    return;
  }
  // The first thread's table is the output; the others' are not touched before their owners fill them.
  std::unique_ptr<Bin[]> others(new Bin[(threads - 1) * num_bins]);
#pragma omp parallel num_threads(threads)
  {
    const int64_t t = omp_get_thread_num();
    Bin* mine = out;
    if (t > 0) {
      mine = others.get() + (t - 1) * num_bins;
      std::fill_n(mine, num_bins, identity);
    }
    sequential(n * t / threads, n * (t + 1) / threads, op, element, mine);
#pragma omp barrier
#pragma omp for
    for (int64_t b = 0; b < num_bins; ++b) {
      for (int k = 0; k + 1 < threads; ++k) out[b] = op(out[b], others[k * num_bins + b]);
    }
  }
}

// x % m by two multiplications (Lemire's method), as compilers do where m is known.
struct FastMod {
  uint64_t m, c;
  explicit FastMod(uint64_t m) : m(m), c(UINT64_MAX / m + 1) {}
  uint32_t operator()(uint32_t x) const { return static_cast<uint32_t>((static_cast<unsigned __int128>(c * x) * m) >> 64); }
};

template <class T>
struct Indexed {
  T value;
  int32_t index;
};

// The larger value; of equal ones the one with the smaller index.
struct Argmax {
  template <class T>
  Indexed<T> operator()(Indexed<T> a, Indexed<T> b) const {
    const bool first = a.value > b.value || (a.value == b.value && a.index < b.index);
    return first ? a : b;
  }
};

// Count, mean, sum of squared deviations (Chan's merge).
struct Moments {
  float count, mean, m2;
};

struct Merge {
  Moments operator()(Moments a, Moments b) const {
    const float n = a.count + b.count;
    const float d = b.mean - a.mean;
    const float w = b.count / std::max(n, 1.0f);
    return {n, a.mean + d * w, a.m2 + b.m2 + d * d * a.count * w};
  }
};

struct Add {
  template <class T>
  T operator()(T a, T b) const {
    return a + b;
  }
  Moments operator()(Moments a, Moments b) const { return {a.count + b.count, a.mean + b.mean, a.m2 + b.m2}; }
};

// Weights of the four cubic B-splines over x.
inline void spline(float x, float w[4]) {
  const float t = x - static_cast<float>(static_cast<int>(x));
  const float t2 = t * t, t3 = t2 * t;
  w[0] = (1 - t3 + 3 * t2 - 3 * t) / 6;
  w[1] = (3 * t3 - 6 * t2 + 4) / 6;
  w[2] = (1 - 3 * t3 + 3 * t2 + 3 * t) / 6;
  w[3] = t3 / 6;
}

}  // namespace bench
