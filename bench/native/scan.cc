// Scans. The result's array is given: it may be the input's.
#include "scan.h"

#include "arrays.h"
#include "operators.h"

#ifdef BENCH_TBB
#include <execution>
#include <numeric>
#endif

namespace bench {
namespace {

template <class T>
void cumsum(Array<T> x, Array<T> y, int64_t outer, int64_t n, int64_t inner, int threads) {
  const T* from = x.data();
  T* to = y.mutable_data();
  py::gil_scoped_release release;
  scan_axis(from, to, outer, n, inner, Plus{}, threads);
}

template <class Op>
void scan(Array<float> x, Array<float> y, int threads) {
  const float* from = x.data();
  float* to = y.mutable_data();
  py::gil_scoped_release release;
  scan_row(x.size(), Op{}, [=](int64_t i) { return from[i]; }, [=](int64_t i, float v) { to[i] = v; }, threads);
}

void exclusive(Array<float> x, Array<float> y, int threads) {
  const float* from = x.data();
  float* to = y.mutable_data();
  auto load = [=](int64_t i) { return i == 0 ? 0.0f : from[i - 1]; };
  py::gil_scoped_release release;
  scan_row(x.size(), Plus{}, load, [=](int64_t i, float v) { to[i] = v; }, threads);
}

void reversed(Array<float> x, Array<float> y, int threads) {
  const int64_t last = x.size() - 1;
  const float* from = x.data();
  float* to = y.mutable_data();
  py::gil_scoped_release release;
  scan_row(x.size(), Plus{}, [=](int64_t i) { return from[last - i]; }, [=](int64_t i, float v) { to[last - i] = v; }, threads);
}

void cumlogsumexp(Array<float> x, Array<float> y, int threads) {
  const float* from = x.data();
  float* to = y.mutable_data();
  auto store = [=](int64_t i, Exponentials v) { to[i] = v.most + std::log(static_cast<float>(v.sum)); };
  py::gil_scoped_release release;
  scan_row(x.size(), AddExponentials{}, [=](int64_t i) { return Exponentials{from[i], 1}; }, store, threads);
}

struct Flagged {
  float value;
  bool starts;
};

// The sum starts anew where a flag is set.
void segmented(Array<float> x, Array<bool> starts, Array<float> y, int threads) {
  const float* from = x.data();
  const bool* flag = starts.data();
  float* to = y.mutable_data();
  auto op = [](Flagged a, Flagged b) { return Flagged{b.starts ? b.value : a.value + b.value, a.starts || b.starts}; };
  py::gil_scoped_release release;
  scan_row(
      x.size(), op, [=](int64_t i) { return Flagged{from[i], flag[i]}; }, [=](int64_t i, Flagged v) { to[i] = v.value; }, threads);
}

void affine(Array<float> as, Array<float> bs, Array<float> out_a, Array<float> out_b, int threads) {
  const float *a = as.data(), *b = bs.data();
  float *to_a = out_a.mutable_data(), *to_b = out_b.mutable_data();
  auto store = [=](int64_t i, Map v) { to_a[i] = v.a, to_b[i] = v.b; };
  py::gil_scoped_release release;
  scan_row(as.size(), Compose{}, [=](int64_t i) { return Map{a[i], b[i]}; }, store, threads);
}

// y[t] = a[t] y[t - 1] + b[t]
void recurrence(Array<float> as, Array<float> bs, Array<float> out, int threads) {
  const float *a = as.data(), *b = bs.data();
  float* y = out.mutable_data();
  py::gil_scoped_release release;
  if (threads == 1) {
    float state = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(as.size()); ++i) y[i] = state = a[i] * state + b[i];
    return;
  }
  scan_row(as.size(), Compose{}, [=](int64_t i) { return Map{a[i], b[i]}; }, [=](int64_t i, Map v) { y[i] = v.b; }, threads);
}

template <int K>
void products(Array<float> x, Array<float> y, int threads) {
  const auto* from = reinterpret_cast<const Matrix<K>*>(x.data());
  auto* to = reinterpret_cast<Matrix<K>*>(y.mutable_data());
  auto load = [=](int64_t i) { return from[i]; };
  py::gil_scoped_release release;
  scan_row(x.shape(0), Product<K>{}, load, [=](int64_t i, const Matrix<K>& v) { to[i] = v; }, threads);
}

#ifdef BENCH_TBB
template <class T, class Op>
void standard(Array<T> x, Array<T> y) {
  const T* from = x.data();
  T* to = y.mutable_data();
  py::gil_scoped_release release;
  std::inclusive_scan(std::execution::par_unseq, from, from + x.size(), to, Op{});
}
#endif

}  // namespace

void add_scans(py::module_& m) {
  m.def("cumsum", &cumsum<float>);
  m.def("cumsum_wide", &cumsum<int64_t>);
  m.def("cummax", &scan<Max>);
  m.def("cumlogsumexp", &cumlogsumexp);
  m.def("last_nonzero", &scan<Last>);
  m.def("cumsum_exclusive", &exclusive);
  m.def("cumsum_reversed", &reversed);
  m.def("cumsum_segmented", &segmented);
  m.def("affine", &affine);
  m.def("recurrence", &recurrence);
  m.def("products_2x2", &products<2>);
  m.def("products_3x3", &products<3>);
#ifdef BENCH_TBB
  m.def("tbb_cumsum", &standard<float, Plus>);
  m.def("tbb_cumsum_wide", &standard<int64_t, Plus>);
  m.def("tbb_cummax", &standard<float, Max>);
  m.def("tbb_last_nonzero", &standard<float, Last>);
#endif
}

}  // namespace bench
