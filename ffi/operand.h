// Operands with batch axes that some of them lack, and the way through the members of a batch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace jaxprims {

inline constexpr int kMaxBatchRank = 16;

// An operand or result; `strides` in bytes by batch axis, 0 where it is not batched (and so never copied).
struct Operand {
  char* data = nullptr;
  std::array<int64_t, kMaxBatchRank> strides{};
};

// A member of a batch: its position on each axis. The sizes must outlive it.
class BatchIndex {
 public:
  explicit BatchIndex(std::span<const int64_t> sizes) : sizes_(sizes) {}

  void Select(int64_t member) {
    for (size_t axis = sizes_.size(); axis-- > 0;) {
      at_[axis] = member % sizes_[axis];
      member /= sizes_[axis];
    }
  }

  // Goes to the next member; true if only the last axis moved, so that a pointer moves by its stride there. With a hundred
  // thousand tiny members, divisions would count.
  bool Next() {
    for (size_t axis = sizes_.size(); axis-- > 0;) {
      if (++at_[axis] < sizes_[axis]) return axis + 1 == sizes_.size();
      at_[axis] = 0;
    }
    return false;
  }

  char* Place(const Operand& operand) const {
    char* p = operand.data;
    for (size_t axis = 0; axis < sizes_.size(); ++axis) p += at_[axis] * operand.strides[axis];
    return p;
  }
  int64_t Stride(const Operand& operand) const { return sizes_.empty() ? 0 : operand.strides[sizes_.size() - 1]; }

 private:
  std::span<const int64_t> sizes_;
  std::array<int64_t, kMaxBatchRank> at_{};
};

}  // namespace jaxprims
