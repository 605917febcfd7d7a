// A number, or another small thing, for each axis of a grid. It lies where it is declared: a call of a small stencil would spend
// half of its time on the heap otherwise.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <stdexcept>

namespace jaxprims {

inline constexpr int kMaxGridRank = 16;

template <class T>
class PerAxis {
 public:
  using value_type = T;

  PerAxis() = default;
  PerAxis(size_t rank, const T& value) { assign(rank, value); }
  PerAxis(std::initializer_list<T> values) { assign(values.begin(), values.end()); }
  PerAxis(const PerAxis& other) noexcept { *this = other; }
  PerAxis& operator=(const PerAxis& other) noexcept {
    size_ = other.size_;
    std::copy(other.begin(), other.end(), begin());
    return *this;
  }
  ~PerAxis() = default;

  template <class It>
  void assign(It first, It last) {
    clear();
    for (; first != last; ++first) push_back(*first);
  }
  void assign(size_t rank, const T& value) {
    clear();
    while (size_ < rank) push_back(value);
  }
  void resize(size_t rank) {
    while (size_ < rank) push_back(T());
    size_ = rank;
  }
  void push_back(const T& value) {
    if (size_ == values_.size()) throw std::length_error("a grid has too many axes");
    values_[size_++] = value;
  }
  void clear() { size_ = 0; }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() { return values_.data(); }
  T* end() { return values_.data() + size_; }
  const T* begin() const { return values_.data(); }
  const T* end() const { return values_.data() + size_; }
  T* data() { return values_.data(); }
  const T* data() const { return values_.data(); }
  T& operator[](size_t axis) { return values_[axis]; }
  const T& operator[](size_t axis) const { return values_[axis]; }
  T& back() { return values_[size_ - 1]; }
  const T& back() const { return values_[size_ - 1]; }
  bool operator==(const PerAxis& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

 private:
  size_t size_ = 0;
  std::array<T, kMaxGridRank> values_;  // NOLINT(cppcoreguidelines-pro-type-member-init): the first `size_` of them are there
};

}  // namespace jaxprims
