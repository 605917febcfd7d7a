// Whole programs, each written as one loop or as few as it takes: those of bench/cases/fuse.py, by their names.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "arrays.h"
#include "histogram.h"
#include "operators.h"
#include "reduce.h"

namespace bench {
namespace programs {
namespace {

using Floats = Array<float>;

// What `number(i)` gives, in an array of n.
template <class Number>
Floats mapped(int64_t n, Number number, int threads) {
  auto out = empty<float>(n);
  float* to = out.mutable_data();
  py::gil_scoped_release release;
#pragma omp parallel for simd num_threads(threads)
  for (int64_t i = 0; i < n; ++i) to[i] = number(i);
  return out;
}

// The sum of what `number(i)` gives, in double precision.
template <class Number>
double total(int64_t n, Number number, int threads) {
  double sum = 0;
  py::gil_scoped_release release;
#pragma omp parallel for simd num_threads(threads) reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += number(i);
  return sum;
}

// A function of each row of x: row(from, to), with as many results as `width` says.
template <class Row>
Floats rows(Floats x, int64_t width, Row row, int threads) {
  const int64_t n = x.shape(0), m = x.shape(1);
  auto out = width == 1 ? empty<float>(n) : empty<float>(n, width);
  const float* from = x.data();
  float* to = out.mutable_data();
  py::gil_scoped_release release;
#pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < n; ++i) row(from + i * m, m, to + i * width);
  return out;
}

float sum(const float* x, int64_t n) {
  float s = 0;
#pragma omp simd reduction(+ : s)
  for (int64_t i = 0; i < n; ++i) s += x[i];
  return s;
}

float largest(const float* x, int64_t n) {
  float m = x[0];
#pragma omp simd reduction(max : m)
  for (int64_t i = 0; i < n; ++i) m = x[i] > m ? x[i] : m;
  return m;
}

int32_t clip(float x, float high) { return static_cast<int32_t>(x < 0 ? 0 : x > high ? high : x); }

template <class Bin, class Element>
Array<Bin> bins(int64_t n, int64_t num_bins, Bin identity, Element element, int threads) {
  auto out = empty<Bin>(num_bins);
  Bin* to = out.mutable_data();
  py::gil_scoped_release release;
  histogram(n, num_bins, identity, Add{}, element, to, threads);
  return out;
}

Floats saxpy(Floats x, Floats y, int threads) {
  const float *a = x.data(), *b = y.data();
  return mapped(x.size(), [=](int64_t i) { return 2.5f * a[i] + b[i]; }, threads);
}

float sdot(Floats x, Floats y, int threads) {
  const float *a = x.data(), *b = y.data();
  return static_cast<float>(total(x.size(), [=](int64_t i) { return a[i] * b[i]; }, threads));
}

float rmse(Floats x, Floats y, int threads) {
  const float *a = x.data(), *b = y.data();
  auto square = [=](int64_t i) { return (a[i] - b[i]) * (a[i] - b[i]); };
  return static_cast<float>(std::sqrt(total(x.size(), square, threads) / static_cast<double>(x.size())));
}

py::tuple black_scholes(Floats price, Floats strike, Floats years, int threads) {
  const float *p = price.data(), *k = strike.data(), *t = years.data();
  double calls = 0, puts = 0;
  {
    py::gil_scoped_release release;
    auto phi = [](float x) { return 0.5f * std::erfc(-x * 0.70710678f); };
#pragma omp parallel for simd num_threads(threads) reduction(+ : calls, puts)
    for (int64_t i = 0; i < static_cast<int64_t>(price.size()); ++i) {
      const float spread = 0.3f * std::sqrt(t[i]), d1 = (std::log(p[i] / k[i]) + 0.065f * t[i]) / spread;
      const float discounted = k[i] * std::exp(-0.02f * t[i]), call = p[i] * phi(d1) - discounted * phi(d1 - spread);
      calls += call;
      puts += call - p[i] + discounted;
    }
  }
  return py::make_tuple(static_cast<float>(calls), static_cast<float>(puts));
}

Floats forward_difference(Floats x, int threads) {
  const float* a = x.data();
  return mapped(x.size() - 1, [=](int64_t i) { return a[i + 1] - a[i]; }, threads);
}

Floats weighted_moving_average(Floats x, int threads) {
  const float* a = x.data();
  return mapped(x.size() - 2, [=](int64_t i) { return 0.25f * a[i] + 0.5f * a[i + 1] + 0.25f * a[i + 2]; }, threads);
}

Floats jacobi(Floats u, int threads) {
  const int64_t n = u.shape(0), m = u.shape(1);
  auto out = empty<float>(n, m);
  const float* from = u.data();
  float* to = out.mutable_data();
  py::gil_scoped_release release;
#pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < n; ++i) {
    const float* row = from + i * m;
    std::copy_n(row, m, to + i * m);
    if (i == 0 || i == n - 1) continue;
    for (int64_t j = 1; j < m - 1; ++j) to[i * m + j] = 0.25f * (row[j - m] + row[j + m] + row[j - 1] + row[j + 1]);
  }
  return out;
}

Floats matrix_vector(Floats x, int threads) {
  const int64_t m = x.shape(1);
  std::vector<float> v(m);
  for (int64_t j = 0; j < m; ++j) v[j] = static_cast<float>(j) / static_cast<float>(m - 1);
  auto row = [&](const float* from, int64_t width, float* to) {
    float s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t j = 0; j < width; ++j) s += from[j] * v[j];
    *to = s;
  };
  return rows(x, 1, row, threads);
}

py::tuple moments(Floats x, int threads) {
  const float* a = x.data();
  const int64_t n = x.size();
  double s = 0;
  float low = a[0], high = a[0];
  int32_t positive = 0, first = std::numeric_limits<int32_t>::max();
#pragma omp parallel for simd num_threads(threads) reduction(+ : s, positive) reduction(min : low) reduction(max : high)
  for (int64_t i = 0; i < n; ++i) {
    s += a[i];
    positive += a[i] > 0;
    low = a[i] < low ? a[i] : low;
    high = a[i] > high ? a[i] : high;
  }
  const auto mean = static_cast<float>(s / static_cast<double>(n));
  double squares = 0;
#pragma omp parallel for simd num_threads(threads) reduction(+ : squares) reduction(min : first)
  for (int64_t i = 0; i < n; ++i) {
    squares += (a[i] - mean) * (a[i] - mean);
    first = a[i] == high && i < first ? static_cast<int32_t>(i) : first;
  }
  return py::make_tuple(mean, static_cast<float>(squares / static_cast<double>(n)), low, high, first, positive);
}

float kurtosis(Floats x, int threads) {
  const float* a = x.data();
  const auto n = static_cast<double>(x.size());
  const auto mean = static_cast<float>(total(x.size(), [=](int64_t i) { return a[i]; }, threads) / n);
  double fourth = 0, second = 0;
#pragma omp parallel for simd num_threads(threads) reduction(+ : fourth, second)
  for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
    const float s = (a[i] - mean) * (a[i] - mean);
    second += s;
    fourth += s * s;
  }
  return static_cast<float>(fourth / n / (second / n * (second / n)));
}

py::tuple two_histograms(Floats x, Floats y, int threads) {
  const float *a = x.data(), *b = y.data();
  auto bin = [](float t) { return clip((t + 4) * 12.5f, 99); };
  auto element = [=](int64_t i, auto update) {
    update(bin(a[i]), 1);
    update(100 + bin(a[i] * b[i]), 1);
  };
  auto both = bins<int32_t>(x.size(), 200, 0, element, threads);
  return py::make_tuple(both[py::slice(0, 100, 1)], both[py::slice(100, 200, 1)]);
}

py::array joint_counts(Floats x, Floats y, int threads) {
  const float *a = x.data(), *b = y.data();
  auto cell = [](float t) { return clip((t + 4) * 8, 63); };
  auto element = [=](int64_t i, auto update) { update(64 * cell(a[i]) + cell(b[i]), 1); };
  return bins<int32_t>(x.size(), 64 * 64, 0, element, threads).reshape({64, 64});
}

Floats energy_histogram(Floats x, Floats y, int threads) {
  const float *a = x.data(), *b = y.data();
  auto element = [=](int64_t i, auto update) {
    const float energy = 0.5f * (a[i] * a[i] + b[i] * b[i]);
    update(clip(energy * 25, 255), energy);
  };
  return bins<float>(x.size(), 256, 0, element, threads);
}

struct Summary {
  float sum = 0, count = 0, squares = 0, largest = -std::numeric_limits<float>::infinity();
};

py::tuple group_summaries(Floats x, Array<int32_t> group, int threads) {
  constexpr int64_t kGroups = 1000;
  const float* a = x.data();
  const int32_t* at = group.data();
  auto op = [](Summary s, Summary t) {
    return Summary{s.sum + t.sum, s.count + t.count, s.squares + t.squares, std::max(s.largest, t.largest)};
  };
  std::vector<Summary> found(kGroups);
  auto element = [=](int64_t i, auto update) { update(at[i], Summary{a[i], 1, a[i] * a[i], a[i]}); };
  histogram(x.size(), kGroups, Summary{}, op, element, found.data(), threads);
  auto mean = empty<float>(kGroups), variance = empty<float>(kGroups), top = empty<float>(kGroups);
  for (int64_t g = 0; g < kGroups; ++g) {
    const float count = std::max(found[g].count, 1.0f), m = found[g].sum / count;
    mean.mutable_data()[g] = m;
    variance.mutable_data()[g] = found[g].squares / count - m * m;
    top.mutable_data()[g] = found[g].largest;
  }
  return py::make_tuple(mean, variance, top);
}

Floats k_means(Floats points, Floats centres, int threads) {
  const int64_t k = centres.shape(0);
  const float *p = points.data(), *c = centres.data();
  auto element = [=](int64_t i, auto update) {
    float best = std::numeric_limits<float>::infinity();
    int64_t nearest = 0;
    for (int64_t j = 0; j < k; ++j) {
      const float dx = p[2 * i] - c[2 * j], dy = p[2 * i + 1] - c[2 * j + 1], d = dx * dx + dy * dy;
      nearest = d < best ? j : nearest;
      best = d < best ? d : best;
    }
    update(3 * nearest, p[2 * i]);
    update(3 * nearest + 1, p[2 * i + 1]);
    update(3 * nearest + 2, 1.0f);
  };
  const auto sums = bins<float>(points.shape(0), 3 * k, 0, element, threads);
  auto out = empty<float>(k, int64_t{2});
  for (int64_t j = 0; j < 2 * k; ++j) {
    const float* s = sums.data() + j / 2 * 3;
    out.mutable_data()[j] = s[j % 2] / std::max(s[2], 1.0f);
  }
  return out;
}

// The carry is one number, and one thread is at the speed of its additions.
float drawdown(Floats x, int) {
  float wealth = 0, top = -std::numeric_limits<float>::infinity(), worst = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
    wealth += 0.01f * x.data()[i];
    top = std::max(top, wealth);
    worst = std::max(worst, top - wealth);
  }
  return worst;
}

Floats cumulative_of_function(Floats x, int threads) {
  const float* a = x.data();
  auto out = mapped(x.size(), [=](int64_t i) { return std::exp(-a[i] * a[i]); }, threads);
  float s = 0, *to = out.mutable_data();
  for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) to[i] = s += to[i];
  return out;
}

Floats discounted_returns(Floats reward, Array<bool> done, int) {
  auto out = empty<float>(reward.size());
  float later = 0, *to = out.mutable_data();
  for (int64_t i = reward.size() - 1; i >= 0; --i) {
    to[i] = later = reward.data()[i] + (done.data()[i] ? 0 : 0.99f * later);
  }
  return out;
}

Floats sparse_matrix_vector(Floats w, Floats h, Array<int32_t> source, Array<int32_t> target, int threads) {
  const float *a = w.data(), *b = h.data();
  const int32_t *from = source.data(), *to = target.data();
  auto element = [=](int64_t i, auto update) { update(to[i], a[i] * b[from[i]]); };
  return bins<float>(w.size(), h.size(), 0, element, threads);
}

float exponentials(const float* x, int64_t n, float top, float* to) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) to[j] = std::exp(x[j] - top);
  return sum(to, n);
}

Floats logsumexp(Floats x, int threads) {
  auto row = [](const float* from, int64_t n, float* to) {
    std::vector<float> e(n);
    const float top = largest(from, n);
    *to = top + std::log(exponentials(from, n, top, e.data()));
  };
  return rows(x, 1, row, threads);
}

Floats softmax(Floats x, int threads) {
  auto row = [](const float* from, int64_t n, float* to) {
    const float s = exponentials(from, n, largest(from, n), to);
    for (int64_t j = 0; j < n; ++j) to[j] /= s;
  };
  return rows(x, x.shape(1), row, threads);
}

Floats layer_norm(Floats x, int threads) {
  auto row = [](const float* from, int64_t n, float* to) {
    const float mean = sum(from, n) / static_cast<float>(n);
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t j = 0; j < n; ++j) squares += (from[j] - mean) * (from[j] - mean);
    const float scale = 1 / std::sqrt(squares / static_cast<float>(n) + 1e-5f);
    for (int64_t j = 0; j < n; ++j) to[j] = (from[j] - mean) * scale;
  };
  return rows(x, x.shape(1), row, threads);
}

}  // namespace
}  // namespace programs

void add_programs(py::module_& m) {
  m.def("fuse_saxpy", &programs::saxpy);
  m.def("fuse_sdot", &programs::sdot);
  m.def("fuse_rmse", &programs::rmse);
  m.def("fuse_black_scholes", &programs::black_scholes);
  m.def("fuse_forward_difference", &programs::forward_difference);
  m.def("fuse_weighted_moving_average", &programs::weighted_moving_average);
  m.def("fuse_jacobi", &programs::jacobi);
  m.def("fuse_matrix_vector", &programs::matrix_vector);
  m.def("fuse_moments", &programs::moments);
  m.def("fuse_kurtosis", &programs::kurtosis);
  m.def("fuse_two_histograms", &programs::two_histograms);
  m.def("fuse_joint_counts", &programs::joint_counts);
  m.def("fuse_energy_histogram", &programs::energy_histogram);
  m.def("fuse_group_summaries", &programs::group_summaries);
  m.def("fuse_k_means", &programs::k_means);
  m.def("fuse_drawdown", &programs::drawdown);
  m.def("fuse_cumulative_of_function", &programs::cumulative_of_function);
  m.def("fuse_discounted_returns", &programs::discounted_returns);
  m.def("fuse_sparse_matrix_vector", &programs::sparse_matrix_vector);
  m.def("fuse_logsumexp", &programs::logsumexp);
  m.def("fuse_softmax", &programs::softmax);
  m.def("fuse_layer_norm", &programs::layer_norm);
}

}  // namespace bench
