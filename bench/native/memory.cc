// What memory gives at most: every work is held against it.
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include <omp.h>

#include <pybind11/stl.h>

#include <cstring>
#include <utility>

#include "arrays.h"

namespace bench {
namespace {

// Reads every array and fills `out`: the least that any implementation must do.
int64_t touch(const std::vector<py::array>& arrays, py::array out, int threads) {
  int64_t sum = 0;
  std::vector<std::pair<const int32_t*, int64_t>> parts;
  for (const auto& a : arrays) parts.emplace_back(static_cast<const int32_t*>(a.data()), a.nbytes() / 4);
  char* o = static_cast<char*>(out.mutable_data());
  const int64_t bytes = out.nbytes();
  py::gil_scoped_release release;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
  {
    const int64_t t = omp_get_thread_num();
    for (const auto& part : parts) {
      const int32_t* p = part.first;
      uint32_t partial = 0;
      for (int64_t i = part.second * t / threads; i < part.second * (t + 1) / threads; ++i) partial += p[i];
      sum += partial;
    }
    const int64_t begin = bytes * t / threads, end = bytes * (t + 1) / threads;
    std::memset(o + begin, static_cast<int>(t), end - begin);
  }
  return sum;
}

// Copies 16 bytes at a time; streaming stores do not read the line that they write.
template <bool kStreaming>
void copy_range(const char* from, char* to, int64_t bytes) {
#ifdef __SSE2__
  int64_t i = 0;
  for (; i < bytes && reinterpret_cast<uintptr_t>(to + i) % 16; ++i) to[i] = from[i];
  for (; i + 16 <= bytes; i += 16) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    if constexpr (kStreaming) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), v);
    } else {
      _mm_store_si128(reinterpret_cast<__m128i*>(to + i), v);
    }
  }
  for (; i < bytes; ++i) to[i] = from[i];
  if constexpr (kStreaming) _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}

template <bool kStreaming>
void copy(py::array from, py::array to, int threads) {
  const char* f = static_cast<const char*>(from.data());
  char* o = static_cast<char*>(to.mutable_data());
  const int64_t bytes = from.nbytes();
  py::gil_scoped_release release;
#pragma omp parallel num_threads(threads)
  {
    const int64_t t = omp_get_thread_num();
    const int64_t begin = bytes * t / threads, end = bytes * (t + 1) / threads;
    copy_range<kStreaming>(f + begin, o + begin, end - begin);
  }
}

}  // namespace

void add_memory(py::module_& m) {
  m.def("touch", &touch);
  m.def("copy", &copy<false>);
  m.def("copy_streaming", &copy<true>);
}

}  // namespace bench
