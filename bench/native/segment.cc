// Segmented reductions: a loop over the segments, each by one thread. Empty segments give `empty`.
#include <omp.h>

#include <limits>

#include "arrays.h"
#include "operators.h"

namespace bench {
namespace {

// Segments are dealt out in pieces of about so many elements.
constexpr int64_t kPiece = 1 << 14;

template <class Each>
void for_each_segment(const int32_t* offsets, int64_t segments, Each each, int threads) {
  const int64_t piece = std::max<int64_t>(1, segments * kPiece / std::max<int64_t>(1, offsets[segments] - offsets[0]));
#pragma omp parallel for num_threads(threads) schedule(dynamic, piece)
  for (int64_t s = 0; s < segments; ++s) each(s, offsets[s], offsets[s + 1]);
}

template <class Op>
Array<float> by_offsets(Array<float> values, Array<int32_t> offsets, float empty_value, int threads) {
  const float* v = values.data();
  const int32_t* offset = offsets.data();
  auto out = empty<float>(offsets.size() - 1);
  float* to = out.mutable_data();
  auto each = [=](int64_t s, int64_t lo, int64_t hi) {
    float result = lo < hi ? v[lo] : empty_value;
    for (int64_t i = lo + 1; i < hi; ++i) result = Op{}(result, v[i]);
    to[s] = result;
  };
  py::gil_scoped_release release;
  for_each_segment(offset, offsets.size() - 1, each, threads);
  return out;
}

// Each thread has the segments that begin in its share of the elements.
template <class Op>
Array<float> by_ids(Array<float> values, Array<int32_t> ids, int64_t segments, float empty_value, int threads) {
  const int64_t n = values.size();
  const float* v = values.data();
  const int32_t* id = ids.data();
  auto out = empty<float>(segments);
  float* to = out.mutable_data();
  py::gil_scoped_release release;
#pragma omp parallel num_threads(threads)
  {
    const int64_t t = omp_get_thread_num();
    auto start = [=](int64_t i) {
      while (0 < i && i < n && id[i] == id[i - 1]) ++i;
      return i;
    };
    const int64_t lo = start(n * t / threads), hi = start(n * (t + 1) / threads);
    int64_t next = lo == 0 ? 0 : id[lo - 1] + 1;  // the first segment that has no result yet
    for (int64_t i = lo; i < hi;) {
      const int32_t segment = id[i];
      while (next < segment) to[next++] = empty_value;
      float result = v[i++];
      for (; i < hi && id[i] == segment; ++i) result = Op{}(result, v[i]);
      to[next++] = result;
    }
    if (hi == n && (lo < n || t == 0)) {
      while (next < segments) to[next++] = empty_value;
    }
  }
  return out;
}

Array<float> softmax(Array<float> values, Array<int32_t> offsets, int threads) {
  const float* v = values.data();
  auto out = empty<float>(values.size());
  float* to = out.mutable_data();
  const int32_t* offset = offsets.data();
  auto each = [=](int64_t, int64_t lo, int64_t hi) {
    float m = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int64_t i = lo; i < hi; ++i) m = std::max(m, v[i]);
    for (int64_t i = lo; i < hi; ++i) sum += to[i] = std::exp(v[i] - m);
    for (int64_t i = lo; i < hi; ++i) to[i] /= sum;
  };
  py::gil_scoped_release release;
  for_each_segment(offset, offsets.size() - 1, each, threads);
  return out;
}

Array<float> csr_times_vector(Array<float> data, Array<int32_t> columns, Array<int32_t> offsets, Array<float> vector, int threads) {
  const float *d = data.data(), *x = vector.data();
  const int32_t* column = columns.data();
  auto out = empty<float>(offsets.size() - 1);
  float* to = out.mutable_data();
  const int32_t* offset = offsets.data();
  auto each = [=](int64_t s, int64_t lo, int64_t hi) {
    float sum = 0;
    for (int64_t i = lo; i < hi; ++i) sum += d[i] * x[column[i]];
    to[s] = sum;
  };
  py::gil_scoped_release release;
  for_each_segment(offset, offsets.size() - 1, each, threads);
  return out;
}

}  // namespace

void add_segments(py::module_& m) {
  m.def("segments_sum", &by_offsets<Plus>);
  m.def("segments_max", &by_offsets<Max>);
  m.def("segments_farthest", &by_offsets<Farther>);
  m.def("ids_sum", &by_ids<Plus>);
  m.def("ids_max", &by_ids<Max>);
  m.def("ids_farthest", &by_ids<Farther>);
  m.def("segments_softmax", &softmax);
  m.def("csr_times_vector", &csr_times_vector);
}

}  // namespace bench
