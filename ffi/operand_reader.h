// The operands and results of a call of an FFI handler, compared with what the spec says of them. For every platform.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "arena.h"
#include "numbers.h"
#include "operand.h"
#include "signature.h"
#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace jaxprims {

namespace ffi = xla::ffi;

using Dims = std::span<const int64_t>;

inline Dims DimsOf(const ffi::AnyBuffer& buffer) {
  const auto dims = buffer.dimensions();
  return {dims.begin(), dims.size()};
}

// A complex number is two scalars.
inline Scalars ScalarsOf(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::PRED:
      return {Dtype::kB1, 1};
    case ffi::DataType::S8:
      return {Dtype::kS8, 1};
    case ffi::DataType::S16:
      return {Dtype::kS16, 1};
    case ffi::DataType::S32:
      return {Dtype::kS32, 1};
    case ffi::DataType::S64:
      return {Dtype::kS64, 1};
    case ffi::DataType::U8:
      return {Dtype::kU8, 1};
    case ffi::DataType::U16:
      return {Dtype::kU16, 1};
    case ffi::DataType::U32:
      return {Dtype::kU32, 1};
    case ffi::DataType::U64:
      return {Dtype::kU64, 1};
    case ffi::DataType::F16:
      return {Dtype::kF16, 1};
    case ffi::DataType::BF16:
      return {Dtype::kBf16, 1};
    case ffi::DataType::F32:
      return {Dtype::kF32, 1};
    case ffi::DataType::F64:
      return {Dtype::kF64, 1};
    case ffi::DataType::C64:
      return {Dtype::kF32, 2};
    case ffi::DataType::C128:
      return {Dtype::kF64, 2};
    default:
      return {};
  }
}

// What is not as the spec says.
struct Wrong : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// An operand, or a result, by number.
inline ffi::AnyBuffer BufferOf(const ffi::RemainingArgs& args, size_t k) {
  const auto buffer = args.get<ffi::AnyBuffer>(k);
  if (buffer.has_error()) throw Wrong(buffer.error().message());
  return *buffer;
}
inline ffi::AnyBuffer BufferOf(const ffi::RemainingRets& rets, size_t k) {
  auto buffer = rets.get<ffi::AnyBuffer>(k);
  if (buffer.has_error()) throw Wrong(buffer.error().message());
  return **buffer;
}

// What an operand or result has behind its batch axes: an axis of `rows`, unless that is kNoRows, and axes of `scalars` together.
struct Wanted {
  static constexpr int64_t kNoRows = -1;
  const char* what;
  int64_t rows;
  Scalars scalars;
  bool or_more = false;  // scalars
};

// Takes operands, and results, one after the other.
class OperandReader {
 public:
  OperandReader(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets, ffi::Span<const int64_t> masks,
                int64_t batch_rank)
      : args_(args), rets_(rets), masks_(masks), rank_(batch_rank) {}

  // Before all else. results: those that the spec tells of; `others` follow. batch: gets the sizes of the batch axes, which all
  // results have.
  void Start(size_t results, size_t others, List<int64_t>& batch) {
    if (rank_ < 0 || rank_ > kMaxBatchRank) throw Wrong("a call has 0 to 16 batch axes, not " + std::to_string(rank_));
    if (masks_.size() != args_.size()) throw WrongNumber("masks", masks_.size(), args_.size());
    if (rets_.size() != results + others) throw WrongNumber("results", rets_.size(), results + others);
    for (const int64_t mask : masks_) {
      if (mask < 0 || BatchAxes(mask) > All())
        throw Wrong("the mask of batch axes " + std::to_string(mask) + " names none of them");
    }
    const Dims dims = DimsOf(BufferOf(rets_, 0));
    if (dims.size() < static_cast<size_t>(rank_)) throw Wrong("a result lacks its batch axes");
    batch.assign(dims.begin(), dims.begin() + rank_);
    batch_ = batch;
  }

  // The axes of the operand that comes next, or of the first result, behind its batch axes: that of its elements is one.
  Dims NextAxes() {
    if (operand_ >= args_.size()) throw Wrong("an operand is missing");
    const auto buffer = BufferOf(args_, operand_);
    const int64_t mask = masks_[operand_];
    const auto batch = static_cast<size_t>(std::popcount(static_cast<uint64_t>(BatchAxes(mask)))), more = MoreAxes(mask);
    if (buffer.dimensions().size() < batch + more) throw Wrong("an operand lacks its batch axes");
    const Dims axes = DimsOf(buffer).subspan(batch);
    if (more == 0) return axes;
    if (axes.size() <= more) throw Wrong("an operand lacks axes of its elements");
    axes_.assign(1, Product(axes.first(more + 1)));
    axes_.insert(axes_.end(), axes.begin() + static_cast<ptrdiff_t>(more) + 1, axes.end());
    return Dims(axes_);
  }
  Dims ResultAxes() const { return DimsOf(BufferOf(rets_, 0)).subspan(static_cast<size_t>(rank_)); }

  Scalars NextScalars() const {
    const auto buffer = args_.get<ffi::AnyBuffer>(operand_);
    return buffer.has_value() ? ScalarsOf(buffer->element_type()) : Scalars{};
  }

  void Take(const Wanted& wanted, Operand& operand) {
    if (operand_ >= args_.size()) throw Wrong(std::string("an operand is missing: ") + wanted.what);
    Place(BufferOf(args_, operand_), masks_[operand_], wanted, operand);
    ++operand_;
  }

  // The captured arrays.
  template <class Operands>
  void TakeCaptured(std::span<const Scalars> wanted, Operands& operands) {
    for (const Scalars& scalars : wanted) TakeCaptured(scalars, operands.emplace_back());
  }

  void TakeCaptured(const Scalars& wanted, Operand& operand) {
    Take({"a captured array", Wanted::kNoRows, wanted, true}, operand);
  }

  void TakeResult(const Wanted& wanted, Operand& operand) {
    const auto buffer = BufferOf(rets_, result_++);
    empty_ = empty_ && buffer.element_count() == 0;
    Place(buffer, All(), wanted, operand);
  }

  // No result that was taken has an element.
  bool empty() const { return empty_; }

  // After all operands.
  void End() const {
    if (operand_ != args_.size()) throw WrongNumber("operands", args_.size(), operand_);
  }

 private:
  int64_t All() const { return (int64_t{1} << rank_) - 1; }

  // A mask's bits behind those of the batch axes: how many axes more than one the elements have in memory.
  static int64_t BatchAxes(int64_t mask) { return mask & ((int64_t{1} << kMaxBatchRank) - 1); }
  static size_t MoreAxes(int64_t mask) { return static_cast<size_t>(mask >> kMaxBatchRank); }

  static Wrong WrongNumber(const char* what, size_t found, size_t wanted) {
    return Wrong("a call has " + std::to_string(found) + " " + what + "; wanted " + std::to_string(wanted));
  }

  void Place(const ffi::AnyBuffer& buffer, int64_t mask, const Wanted& wanted, Operand& operand) const {
    operand.data = static_cast<char*>(buffer.untyped_data());
    Dims dims = DimsOf(buffer);
    auto stride = static_cast<int64_t>(buffer.size_bytes());
    for (int64_t axis = 0; axis < rank_; ++axis) {
      if ((mask >> axis & 1) == 0) continue;
      const int64_t size = batch_[static_cast<size_t>(axis)];
      if (dims.empty() || dims[0] != size) throw Unfit(buffer, mask, wanted);
      stride = size ? stride / size : 0;
      operand.strides[static_cast<size_t>(axis)] = stride;
      dims = dims.subspan(1);
    }
    if (wanted.rows != Wanted::kNoRows) {
      const size_t axes = MoreAxes(mask) + 1;
      if (dims.size() < axes || Product(dims.first(axes)) != wanted.rows) throw Unfit(buffer, mask, wanted);
      dims = dims.subspan(axes);
    }
    const Scalars scalars = ScalarsOf(buffer.element_type());
    const int64_t count = Product(dims) * scalars.count;
    const bool fits = wanted.or_more ? count >= wanted.scalars.count : count == wanted.scalars.count;
    if (!fits || scalars.dtype != wanted.scalars.dtype) throw Unfit(buffer, mask, wanted);
  }

  Wrong Unfit(const ffi::AnyBuffer& buffer, int64_t mask, const Wanted& wanted) const {
    auto list = [](Dims dims) {
      std::string text;
      for (const int64_t size : dims) text += (text.empty() ? "" : ", ") + std::to_string(size);
      return "[" + text + "]";
    };
    std::vector<int64_t> axes;
    for (int64_t axis = 0; axis < rank_; ++axis) {
      if ((mask >> axis & 1) != 0) axes.push_back(batch_[static_cast<size_t>(axis)]);
    }
    if (wanted.rows != Wanted::kNoRows) axes.push_back(wanted.rows);
    const Scalars found = ScalarsOf(buffer.element_type());
    const auto name = [](Dtype dtype) { return std::string(kDtypeNames[static_cast<size_t>(dtype)]); };
    return Wrong(std::string(wanted.what) + " is " + list(DimsOf(buffer)) + " of " + name(found.dtype) +
                 (found.count == 2 ? " in pairs" : "") + "; wanted " + list(axes) + " and " +
                 (wanted.or_more ? "at least " : "") + std::to_string(wanted.scalars.count) + " of " +
                 name(wanted.scalars.dtype) + " in each");
  }

  const ffi::RemainingArgs& args_;
  const ffi::RemainingRets& rets_;
  const ffi::Span<const int64_t> masks_;
  const int64_t rank_;
  Dims batch_;
  size_t operand_ = 0, result_ = 0;
  std::vector<int64_t> axes_;  // of the operand that comes next, if its elements have several
  bool empty_ = true;
};

}  // namespace jaxprims
