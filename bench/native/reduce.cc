// Reductions.
#include "reduce.h"

#include "arrays.h"
#include "histogram.h"
#include "operators.h"

namespace bench {
namespace {

float sum(Array<float> xs, int threads) {
  const float* x = xs.data();
  py::gil_scoped_release release;
  auto part = [=](int64_t lo, int64_t hi) {
    float s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t i = lo; i < hi; ++i) s += x[i];
    return s;
  };
  return reduce(xs.size(), Plus{}, part, threads);
}

float largest(const float* x, int64_t lo, int64_t hi) {
  float m = x[lo];
#pragma omp simd reduction(max : m)
  for (int64_t i = lo; i < hi; ++i) m = x[i] > m ? x[i] : m;
  return m;
}

float maximum(Array<float> xs, int threads) {
  const float* x = xs.data();
  py::gil_scoped_release release;
  return reduce(xs.size(), Max{}, [=](int64_t lo, int64_t hi) { return largest(x, lo, hi); }, threads);
}

// The position of the largest one: the maximum of a block, and where it is only if it is larger than all before.
int64_t argmax(Array<float> xs, int threads) {
  constexpr int64_t kBlock = 4096;
  const float* x = xs.data();
  py::gil_scoped_release release;
  auto part = [=](int64_t lo, int64_t hi) {
    Indexed<float> best{x[lo], static_cast<int32_t>(lo)};
    for (int64_t b = lo; b < hi; b += kBlock) {
      const int64_t end = std::min(b + kBlock, hi);
      const float m = largest(x, b, end);
      if (m > best.value) best = {m, static_cast<int32_t>(std::find(x + b, x + end, m) - x)};
    }
    return best;
  };
  return reduce(xs.size(), Argmax{}, part, threads).index;
}

float logsumexp(Array<float> xs, int threads) {
  const float* x = xs.data();
  py::gil_scoped_release release;
  const float m = reduce(xs.size(), Max{}, [=](int64_t lo, int64_t hi) { return largest(x, lo, hi); }, threads);
  auto part = [=](int64_t lo, int64_t hi) {
    double s = 0;
    for (int64_t i = lo; i < hi; ++i) s += std::exp(x[i] - m);
    return s;
  };
  return m + static_cast<float>(std::log(reduce(xs.size(), Plus{}, part, threads)));
}

Array<float> product(Array<float> xs, int threads) {
  const auto* x = reinterpret_cast<const Matrix<2>*>(xs.data());
  auto out = empty<float>(2, 2);
  auto* to = reinterpret_cast<Matrix<2>*>(out.mutable_data());
  py::gil_scoped_release release;
  *to = reduce(xs.shape(0), Product<2>{}, in_order(Product<2>{}, [=](int64_t i) { return x[i]; }), threads);
  return out;
}

py::tuple moments(Array<float> xs, int threads) {
  const float* x = xs.data();
  Moments r;
  {
    py::gil_scoped_release release;
    r = reduce(xs.size(), Merge{}, in_order(Merge{}, [=](int64_t i) { return Moments{1, x[i], 0}; }), threads);
  }
  return py::make_tuple(r.count, r.mean, r.m2);
}

// Along the middle axis of [outer, n, inner].
template <class Op>
Array<float> along(Array<float> xs, int64_t outer, int64_t n, int64_t inner, int threads) {
  const float* x = xs.data();
  auto out = empty<float>(outer, inner);
  float* to = out.mutable_data();
  py::gil_scoped_release release;
  if (inner == 1) {
#pragma omp parallel for num_threads(threads)
    for (int64_t o = 0; o < outer; ++o) {
      const float* row = x + o * n;
      float s = row[0];
      if constexpr (std::is_same_v<Op, Max>) {
        s = largest(row, 0, n);
      } else {
#pragma omp simd reduction(+ : s)
        for (int64_t i = 1; i < n; ++i) s += row[i];
      }
      to[o] = s;
    }
    return out;
  }
#pragma omp parallel num_threads(threads)
  {
    const int64_t t = omp_get_thread_num(), lo = inner * t / threads, hi = inner * (t + 1) / threads;
    for (int64_t o = 0; o < outer; ++o) {
      float* row = to + o * inner;
      for (int64_t k = lo; k < hi; ++k) row[k] = x[o * n * inner + k];
      for (int64_t i = 1; i < n; ++i) {
        const float* from = x + (o * n + i) * inner;
#pragma omp simd
        for (int64_t k = lo; k < hi; ++k) row[k] = Op{}(row[k], from[k]);
      }
    }
  }
  return out;
}

}  // namespace

void add_reductions(py::module_& m) {
  m.def("reduce_sum", &sum);
  m.def("reduce_max", &maximum);
  m.def("reduce_argmax", &argmax);
  m.def("reduce_logsumexp", &logsumexp);
  m.def("reduce_product", &product);
  m.def("reduce_moments", &moments);
  m.def("sum_along", &along<Plus>);
  m.def("max_along", &along<Max>);
}

}  // namespace bench
