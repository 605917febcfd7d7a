// The operators of scans and reductions, a struct each so that loops inline them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace bench {

struct Plus {
  template <class T>
  T operator()(T a, T b) const {
    return a + b;
  }
};

struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// A sum of exponentials, without its factor exp(most).
struct Exponentials {
  float most;
  double sum;
};

struct AddExponentials {
  Exponentials operator()(Exponentials a, Exponentials b) const {
    if (b.most <= a.most) return {a.most, a.sum + b.sum * std::exp(b.most - a.most)};
    return {b.most, a.sum * std::exp(a.most - b.most) + b.sum};
  }
};

// The last one that is not zero.
struct Last {
  float operator()(float a, float b) const { return b != 0 ? b : a; }
};

// The one that is larger in magnitude, the earlier one of equals.
struct Farther {
  float operator()(float a, float b) const { return std::abs(b) > std::abs(a) ? b : a; }
};

// x -> a x + b; the left one is applied first.
struct Map {
  float a, b;
};

struct Compose {
  Map operator()(Map f, Map g) const { return {g.a * f.a, g.a * f.b + g.b}; }
};

template <int K>
struct Matrix {
  float m[K][K];
};

template <int K>
struct Product {
  Matrix<K> operator()(const Matrix<K>& a, const Matrix<K>& b) const {
    Matrix<K> c;
    for (int i = 0; i < K; ++i) {
      for (int j = 0; j < K; ++j) {
        float sum = 0;
        for (int k = 0; k < K; ++k) sum += a.m[i][k] * b.m[k][j];
        c.m[i][j] = sum;
      }
    }
    return c;
  }
};

}  // namespace bench
