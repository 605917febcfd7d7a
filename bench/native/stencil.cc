// Stencils; the result's array is given, and so is a second one for several steps.
#include "stencil.h"

#include <pybind11/stl.h>

#include "arrays.h"

namespace bench {
namespace {

constexpr float kHeat = 0.1f;

// Heat on a grid: the neighbours' difference to the cell, of 2-D by three rows, of 3-D by five.
struct Heat {
  float operator()(const Rows<float, 3>& r, int64_t j) const {
    return r[1][j] + kHeat * (r[0][j] + r[2][j] + r[1][j - 1] + r[1][j + 1] - 4 * r[1][j]);
  }
  float operator()(const Rows<float, 5>& r, int64_t j) const {
    return r[2][j] + kHeat * (r[0][j] + r[4][j] + r[1][j] + r[3][j] + r[2][j - 1] + r[2][j + 1] - 6 * r[2][j]);
  }
};

struct Life {
  uint8_t operator()(const Rows<uint8_t, 3>& r, int64_t j) const {
    const uint8_t around = r[0][j - 1] + r[0][j] + r[0][j + 1] + r[1][j - 1] + r[1][j + 1] + r[2][j - 1] + r[2][j] + r[2][j + 1];
    return (around == 3) | ((around == 2) & r[1][j]);
  }
};

struct Box {
  float operator()(const Rows<float, 5>& r, int64_t j) const {
    float sum = 0;
    for (int a = 0; a < 5; ++a) {
      for (int b = -2; b <= 2; ++b) sum += r[a][j + b];
    }
    return sum * (1 / 25.0f);
  }
};

struct Largest {
  float operator()(const Rows<float, 5>& r, int64_t j) const {
    float most = r[2][j];
    for (int a = 0; a < 5; ++a) {
      for (int b = -2; b <= 2; ++b) most = r[a][j + b] > most ? r[a][j + b] : most;
    }
    return most;
  }
};

template <size_t A, class T>
std::array<int64_t, A> shape(const Array<T>& x) {
  std::array<int64_t, A> n;
  std::copy_n(x.shape(), A, n.begin());
  return n;
}

template <size_t A, Beyond B, int R, class F, class T = float>
void once(Array<T> x, Array<T> y, int threads) {
  const T* from = x.data();
  T* to = y.mutable_data();
  py::gil_scoped_release release;
  stencil<B, R>(from, to, shape<A>(x), F{}, threads);
}

template <size_t A, Beyond B, int R, class F, class T = float>
void often(Array<T> x, Array<T> y, Array<T> other, int64_t steps, int threads) {
  const T* from = x.data();
  T *to = y.mutable_data(), *also = other.mutable_data();
  py::gil_scoped_release release;
  stencil_steps<B, R>(from, to, also, shape<A>(x), F{}, steps, threads);
}

void nine_points(Array<float> x, Array<float> y, std::array<float, 9> w, int threads) {
  const float* from = x.data();
  float* to = y.mutable_data();
  auto f = [w](const Rows<float, 1>& r, int64_t j) {
    float sum = 0;
    for (int k = 0; k < 9; ++k) sum += w[k] * r[0][j + k - 4];
    return sum;
  };
  py::gil_scoped_release release;
  stencil<Beyond::kZero, 4>(from, to, shape<1>(x), f, threads);
}

void convolve(Array<float> x, Array<float> weights, Array<float> y, int threads) {
  const float* from = x.data();
  float* to = y.mutable_data();
  std::array<float, 9> w;
  std::copy_n(weights.data(), 9, w.begin());
  auto f = [w](const Rows<float, 3>& r, int64_t j) {
    float sum = 0;
    for (int a = 0; a < 3; ++a) {
      for (int b = 0; b < 3; ++b) sum += w[3 * a + b] * r[a][j + b - 1];
    }
    return sum;
  };
  py::gil_scoped_release release;
  stencil<Beyond::kZero, 1>(from, to, shape<2>(x), f, threads);
}

// Of 32 cells from each one on, as far as there are so many.
void moving_average(Array<float> x, Array<float> y, int threads) {
  const int64_t n = y.size();
  const float* from = x.data();
  float* to = y.mutable_data();
  py::gil_scoped_release release;
#pragma omp parallel for simd num_threads(threads)
  for (int64_t j = 0; j < n; ++j) {
    float sum = 0;
    for (int k = 0; k < 32; ++k) sum += from[j + k];
    to[j] = sum * (1 / 32.0f);
  }
}

}  // namespace

void add_stencils(py::module_& m) {
  m.def("nine_points", &nine_points);
  m.def("five_points_zero", &once<2, Beyond::kZero, 1, Heat>);
  m.def("five_points_wrap", &once<2, Beyond::kWrap, 1, Heat>);
  m.def("five_points_keep", &once<2, Beyond::kKeep, 1, Heat>);
  m.def("box", &once<2, Beyond::kZero, 2, Box>);
  m.def("largest", &once<2, Beyond::kEdge, 2, Largest>);
  m.def("convolve", &convolve);
  m.def("seven_points", &once<3, Beyond::kZero, 1, Heat>);
  m.def("moving_average", &moving_average);
  m.def("heat_2d", &often<2, Beyond::kKeep, 1, Heat>);
  m.def("heat_3d", &often<3, Beyond::kKeep, 1, Heat>);
  m.def("life", &often<2, Beyond::kWrap, 1, Life, uint8_t>);
}

}  // namespace bench
