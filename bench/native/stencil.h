// Stencils as an expert would write them by hand: rows are dealt out to threads, the inside of a row is a loop over pointers to it
// and its neighbours, which the compiler makes vectors of, and the cells at its ends see copies of what lies around them.
#pragma once

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace bench {

// What is read beyond the grid. With kKeep nothing is: cells at the border keep their value.
enum class Beyond { kZero, kWrap, kEdge, kKeep };

// The row, or the cell of a row, that is read for `i`; -1: zeros.
template <Beyond B>
int64_t place(int64_t i, int64_t n) {
  if (0 <= i && i < n) return i;
  if (B == Beyond::kWrap) return i < 0 ? i + n : i - n;
  if (B == Beyond::kEdge) return i < 0 ? 0 : n - 1;
  return -1;
}

template <class T, int K>
using Rows = std::array<const T*, K>;  // the middle one is the cell's own

// y[j] = f(rows, j) for cells [lo, hi), all of whose neighbours are there.
template <class T, int K, class F>
void inside(Rows<T, K> rows, T* y, int64_t lo, int64_t hi, F f) {
#pragma omp simd
  for (int64_t j = lo; j < hi; ++j) y[j] = f(rows, j);
}

// The first and the last R cells of a row of n >= 2 R.
template <Beyond B, int R, class T, int K, class F>
void ends(Rows<T, K> rows, T* y, int64_t n, F f) {
  for (const int64_t begin : {int64_t{0}, n - R}) {
    if (B == Beyond::kKeep) {
      std::copy_n(rows[K / 2] + begin, R, y + begin);
      continue;
    }
    T cells[K][3 * R];
    Rows<T, K> around;
    for (int k = 0; k < K; ++k) {
      for (int64_t c = 0; c < 3 * R; ++c) {
        const int64_t j = place<B>(begin - R + c, n);
        cells[k][c] = j < 0 ? T(0) : rows[k][j];
      }
      around[k] = cells[k];
    }
    for (int64_t c = 0; c < R; ++c) y[begin + c] = f(around, R + c);
  }
}

template <Beyond B, int R, class T, int K, class F>
void row(Rows<T, K> rows, T* y, int64_t n, F f) {
  ends<B, R, T, K>(rows, y, n, f);
  inside<T, K>(rows, y, R, n - R, f);
}

// A grid [n]: f of one row.
template <Beyond B, int R, class T, class F>
void stencil(const T* x, T* y, std::array<int64_t, 1> n, F f, int threads) {
  ends<B, R, T, 1>({x}, y, n[0], f);
#pragma omp parallel num_threads(threads)
  {
    const int64_t t = omp_get_thread_num(), cells = n[0] - 2 * R;
    inside<T, 1>({x}, y, R + cells * t / threads, R + cells * (t + 1) / threads, f);
  }
}

// A grid [h, w]: f of 2 R + 1 rows.
template <Beyond B, int R, class T, class F>
void stencil(const T* x, T* y, std::array<int64_t, 2> n, F f, int threads) {
  const std::vector<T> zeros(B == Beyond::kZero ? n[1] : 0);
#pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < n[0]; ++i) {
    if (B == Beyond::kKeep && (i < R || i >= n[0] - R)) {
      std::copy_n(x + i * n[1], n[1], y + i * n[1]);
      continue;
    }
    Rows<T, 2 * R + 1> rows;
    for (int k = 0; k <= 2 * R; ++k) {
      const int64_t at = place<B>(i + k - R, n[0]);
      rows[k] = at < 0 ? zeros.data() : x + at * n[1];
    }
    row<B, R, T, 2 * R + 1>(rows, y + i * n[1], n[1], f);
  }
}

// A grid [d, h, w], R = 1: f of the rows before on the first and on the second axis, the cell's own, and those after.
template <Beyond B, int R, class T, class F>
void stencil(const T* x, T* y, std::array<int64_t, 3> n, F f, int threads) {
  static_assert(R == 1);
  const std::vector<T> zeros(B == Beyond::kZero ? n[2] : 0);
#pragma omp parallel for collapse(2) num_threads(threads)
  for (int64_t i = 0; i < n[0]; ++i) {
    for (int64_t j = 0; j < n[1]; ++j) {
      T* to = y + (i * n[1] + j) * n[2];
      if (B == Beyond::kKeep && (i == 0 || i == n[0] - 1 || j == 0 || j == n[1] - 1)) {
        std::copy_n(x + (i * n[1] + j) * n[2], n[2], to);
        continue;
      }
      auto at = [&](int64_t a, int64_t b) {
        a = place<B>(a, n[0]), b = place<B>(b, n[1]);
        return a < 0 || b < 0 ? zeros.data() : x + (a * n[1] + b) * n[2];
      };
      row<B, R, T, 5>({at(i - 1, j), at(i, j - 1), at(i, j), at(i, j + 1), at(i + 1, j)}, to, n[2], f);
    }
  }
}

// Step after step, from one buffer to the other; `y` has the last.
template <Beyond B, int R, class T, size_t A, class F>
void stencil_steps(const T* x, T* y, T* other, std::array<int64_t, A> n, F f, int64_t steps, int threads) {
  for (int64_t s = steps; s > 0; --s) {
    T* to = s % 2 ? y : other;
    stencil<B, R>(x, to, n, f, threads);
    x = to;
  }
}

}  // namespace bench
