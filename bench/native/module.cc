// The Python module: one function for each work, on NumPy arrays; threads == 1 is the plain sequential loop.
#include <pybind11/stl.h>

#include <cmath>
#include <limits>
#include <vector>

#include "arrays.h"
#include "histogram.h"

using namespace bench;

namespace {

// Runs the histogram and returns its table as an array of scalars or of structs.
template <class Bin, class Op, class Element>
Array<Bin> table(int64_t n, int64_t num_bins, Bin identity, Op op, Element element, int threads) {
  Array<Bin> out = empty<Bin>(num_bins);
  Bin* bins = out.mutable_data();
  py::gil_scoped_release release;
  histogram(n, num_bins, identity, op, element, bins, threads);
  return out;
}

// --- Henriksen et al. 2020, V-A -----------------------------------------------------------------------------------

struct PaperIndex {
  FastMod residue;
  uint32_t rf;
  PaperIndex(int64_t bins, int64_t rf) : residue(std::max<int64_t>(1, bins / rf)), rf(rf) {}
  int64_t operator()(int32_t x) const { return static_cast<int64_t>(residue(x)) * rf; }
};

// Signed addition that may overflow, without undefined behaviour.
struct Wrap {
  int32_t operator()(int32_t a, int32_t b) const { return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b)); }
};

auto paper_add(Array<int32_t> xs, int64_t bins, int64_t rf, int threads) {
  const int32_t* x = xs.data();
  const PaperIndex index(bins, rf);
  return table<int32_t>(xs.size(), bins, 0, Wrap{}, [=](int64_t i, auto update) { update(index(x[i]), x[i]); }, threads);
}

auto paper_saturating(Array<int32_t> xs, int64_t bins, int64_t rf, int threads) {
  const int32_t* x = xs.data();
  const PaperIndex index(bins, rf);
  auto op = [](uint32_t a, uint32_t b) { return std::min<uint32_t>(a + b, 0xffffff); };
  auto element = [=](int64_t i, auto update) { update(index(x[i]), (x[i] >> 8) & 63); };
  return table<uint32_t>(xs.size(), bins, 0, op, element, threads);
}

auto paper_argmax(Array<int32_t> xs, int64_t bins, int64_t rf, int threads) {
  using Pair = Indexed<int32_t>;
  const int32_t* x = xs.data();
  const PaperIndex index(bins, rf);
  constexpr int32_t low = std::numeric_limits<int32_t>::min(), high = std::numeric_limits<int32_t>::max();
  auto element = [=](int64_t i, auto update) { update(index(x[i]), Pair{x[i], static_cast<int32_t>(i)}); };
  return table<Pair>(xs.size(), bins, {low, high}, Argmax{}, element, threads);
}

// --- 50 million float32 --------------------------------------------------------------------------------------------

Array<int32_t> binned(Array<float> xs, float lo, float hi, int64_t bins, int threads) {
  const float* x = xs.data();
  const float scale = static_cast<float>(bins) / (hi - lo);
  // One more bin takes what is out of range.
  auto element = [=](int64_t i, auto update) {
    const int32_t bin = std::min(static_cast<int32_t>((x[i] - lo) * scale), static_cast<int32_t>(bins - 1));
    update(x[i] >= lo && x[i] <= hi ? bin : bins, 1);
  };
  auto out = table<int32_t>(xs.size(), bins + 1, 0, Add{}, element, threads);
  return py::array(out[py::slice(0, bins, 1)]);
}

Array<int32_t> binned_min_max(Array<float> xs, int64_t bins, int threads) {
  const float* x = xs.data();
  float lo = x[0], hi = x[0];
#pragma omp parallel for simd num_threads(threads) reduction(min : lo) reduction(max : hi)
  for (int64_t i = 0; i < static_cast<int64_t>(xs.size()); ++i) {
    lo = x[i] < lo ? x[i] : lo;
    hi = x[i] > hi ? x[i] : hi;
  }
  return binned(xs, lo, hi, bins, threads);
}

auto count(Array<float> xs, float scale, int64_t bins, int threads) {
  const float* x = xs.data();
  auto element = [=](int64_t i, auto update) { update(static_cast<int32_t>(x[i] * scale), 1); };
  return table<int32_t>(xs.size(), bins, 0, Add{}, element, threads);
}

auto sum_by_index(Array<float> vs, Array<int32_t> is, int64_t bins, int threads) {
  const float* v = vs.data();
  const int32_t* index = is.data();
  return table<float>(vs.size(), bins, 0, Add{}, [=](int64_t i, auto update) { update(index[i], v[i]); }, threads);
}

auto argmax_by_index(Array<float> vs, Array<int32_t> is, int64_t bins, int threads) {
  using Pair = Indexed<float>;
  const float* v = vs.data();
  const int32_t* index = is.data();
  auto element = [=](int64_t i, auto update) { update(index[i], Pair{v[i], static_cast<int32_t>(i)}); };
  const Pair identity{-std::numeric_limits<float>::infinity(), std::numeric_limits<int32_t>::max()};
  return table<Pair>(vs.size(), bins, identity, Argmax{}, element, threads);
}

auto moments_by_index(Array<float> vs, Array<int32_t> is, int64_t bins, int threads) {
  const float* v = vs.data();
  const int32_t* index = is.data();
  auto element = [=](int64_t i, auto update) { update(index[i], Moments{1, v[i], 0}); };
  return table<Moments>(vs.size(), bins, {0, 0, 0}, Merge{}, element, threads);
}

auto sums_by_index(Array<float> vs, Array<int32_t> is, int64_t bins, int threads) {
  const float* v = vs.data();
  const int32_t* index = is.data();
  auto element = [=](int64_t i, auto update) { update(index[i], Moments{1, v[i], v[i] * v[i]}); };
  return table<Moments>(vs.size(), bins, {0, 0, 0}, Add{}, element, threads);
}

auto batched_sum(Array<float> vs, Array<int32_t> is, int64_t bins, int threads) {
  const int64_t batch = vs.shape(0), n = vs.shape(1);
  const float* v = vs.data();
  const int32_t* index = is.data();
  auto out = empty<float>(batch, bins);
  float* o = out.mutable_data();
  py::gil_scoped_release release;
#pragma omp parallel for num_threads(threads) schedule(dynamic, std::max<int64_t>(1, 4096 / n))
  for (int64_t b = 0; b < batch; ++b) {
    auto element = [=](int64_t i, auto update) { update(index[b * n + i], v[b * n + i]); };
    histogram<float>(n, bins, 0, Add{}, element, o + b * bins, 1);
  }
  return out;
}

// --- applications ----------------------------------------------------------------------------------------------------

auto saturating_count(Array<int32_t> is, int64_t bins, int threads) {
  const int32_t* index = is.data();
  auto op = [](uint8_t a, uint8_t b) { return static_cast<uint8_t>(a + std::min<int>(b, 255 - a)); };
  return table<uint8_t>(is.size(), bins, 0, op, [=](int64_t i, auto update) { update(index[i], 1); }, threads);
}

py::tuple pair_separations(Array<float> data, Array<float> random, Array<float> bounds, int64_t bins, int threads) {
  const int64_t sets = random.shape(0), n = data.shape(0), m = bounds.size();
  const float *d = data.data(), *r = random.data(), *bound = bounds.data();
  auto dr = empty<int32_t>(sets, bins), rr = empty<int32_t>(sets, bins);
  int32_t *out_dr = dr.mutable_data(), *out_rr = rr.mutable_data();
  {
    py::gil_scoped_release release;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t s = 0; s < sets; ++s) {
      const float* set = r + s * n * 3;
      std::vector<float> x(n), y(n), z(n), dot(n);
      std::vector<int32_t> index(n);
      for (int64_t j = 0; j < n; ++j) x[j] = set[3 * j], y[j] = set[3 * j + 1], z[j] = set[3 * j + 2];
      auto run = [&](const float* points, int32_t* out) {
        std::fill_n(out, bins, 0);
        for (int64_t i = 0; i < n; ++i) {
          const float* p = points + 3 * i;
          for (int64_t j = 0; j < n; ++j) dot[j] = p[0] * x[j] + p[1] * y[j] + p[2] * z[j];
          std::fill(index.begin(), index.end(), 0);
          for (int64_t k = 0; k < m; ++k) {
            for (int64_t j = 0; j < n; ++j) index[j] += dot[j] < bound[k];
          }
          for (int64_t j = 0; j < n; ++j) ++out[index[j]];
        }
      };
      run(d, out_dr + s * bins);
      run(set, out_rr + s * bins);
    }
  }
  return py::make_tuple(dr, rr);
}

py::tuple cluster_sums(Array<int32_t> membership, Array<float> points, int64_t k, int threads) {
  const int64_t n = points.shape(0), d = points.shape(1);
  const int32_t* cluster = membership.data();
  const float* x = points.data();
  auto counts = empty<int32_t>(k);
  auto sums = empty<float>(k, d);
  int32_t* c = counts.mutable_data();
  float* s = sums.mutable_data();
  {
    py::gil_scoped_release release;
    std::vector<float> private_sums(threads * k * d, 0.0f);
    std::vector<int32_t> private_counts(threads * k, 0);
#pragma omp parallel num_threads(threads)
    {
      const int64_t t = omp_get_thread_num();
      float* mine = private_sums.data() + t * k * d;
      int32_t* my_counts = private_counts.data() + t * k;
      for (int64_t i = n * t / threads; i < n * (t + 1) / threads; ++i) {
        ++my_counts[cluster[i]];
        float* bin = mine + cluster[i] * d;
#pragma omp simd
        for (int64_t j = 0; j < d; ++j) bin[j] += x[i * d + j];
      }
    }
    std::fill_n(c, k, 0);
    std::fill_n(s, k * d, 0.0f);
    for (int64_t t = 0; t < threads; ++t) {
      for (int64_t b = 0; b < k; ++b) c[b] += private_counts[t * k + b];
      for (int64_t b = 0; b < k * d; ++b) s[b] += private_sums[t * k * d + b];
    }
  }
  return py::make_tuple(counts, sums);
}

auto joint_histogram(Array<float> xs, Array<float> ys, int64_t h, int threads) {
  const float *x = xs.data(), *y = ys.data();
  auto element = [=](int64_t k, auto update) {
    float wx[4], wy[4];
    spline(x[k], wx);
    spline(y[k], wy);
    const int64_t corner = static_cast<int64_t>(y[k]) * h + static_cast<int64_t>(x[k]);
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 4; ++j) update(corner + i * h + j, wx[j] * wy[i]);
    }
  };
  return table<float>(xs.size(), h * h, 0, Add{}, element, threads);
}

auto forces(Array<int32_t> is, Array<int32_t> js, Array<float> position, int threads) {
  const int32_t *pi = is.data(), *pj = js.data();
  const float* p = position.data();
  auto element = [=](int64_t k, auto update) {
    const int64_t i = 3 * static_cast<int64_t>(pi[k]), j = 3 * static_cast<int64_t>(pj[k]);
    const float dx = p[i] - p[j], dy = p[i + 1] - p[j + 1], dz = p[i + 2] - p[j + 2];
    const float inv = 1 / std::sqrt(dx * dx + dy * dy + dz * dz + 0.5f);
    const float inv2 = inv * inv, inv6 = inv2 * inv2 * inv2;
    const float force = (12 * inv6 * inv6 - 6 * inv6 + inv) * inv2;
    update(j, -force * dx);
    update(j + 1, -force * dy);
    update(j + 2, -force * dz);
  };
  return table<float>(is.size(), position.size(), 0, Add{}, element, threads);
}

}  // namespace

PYBIND11_MODULE(bench_native, m) {
  PYBIND11_NUMPY_DTYPE(Indexed<int32_t>, value, index);
  PYBIND11_NUMPY_DTYPE(Indexed<float>, value, index);
  PYBIND11_NUMPY_DTYPE(Moments, count, mean, m2);
  m.def("paper_add", &paper_add);
  m.def("paper_saturating", &paper_saturating);
  m.def("paper_argmax", &paper_argmax);
  m.def("histogram", &binned);
  m.def("histogram_min_max", &binned_min_max);
  m.def("count", &count);
  m.def("sum_by_index", &sum_by_index);
  m.def("argmax_by_index", &argmax_by_index);
  m.def("moments_by_index", &moments_by_index);
  m.def("sums_by_index", &sums_by_index);
  m.def("batched_sum", &batched_sum);
  m.def("saturating_count", &saturating_count);
  m.def("pair_separations", &pair_separations);
  m.def("cluster_sums", &cluster_sums);
  m.def("joint_histogram", &joint_histogram);
  m.def("forces", &forces);
  add_programs(m);
  add_scans(m);
  add_reductions(m);
  add_segments(m);
  add_stencils(m);
  add_memory(m);
}
