// The arguments of the FFI handlers, read into calls: operands with batch axes, results, attributes. For every platform.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hist_call.h"
#include "operand.h"
#include "ordered_call.h"
#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace jaxprims {

namespace ffi = xla::ffi;

using Dims = std::span<const int64_t>;

inline Dims DimsOf(const ffi::AnyBuffer& buffer) {
  const auto dims = buffer.dimensions();
  return {dims.begin(), dims.size()};
}

inline int64_t Product(Dims dims) {
  int64_t product = 1;
  for (const int64_t size : dims) product *= size;
  return product;
}

// An operand's data and its strides over the batch axes that it has (bit a of `mask`: axis a).
inline ffi::ErrorOr<Operand> BatchedOperand(void* data, Dims dims, size_t bytes, int64_t mask, int64_t rank) {
  Operand operand;
  operand.data = static_cast<char*>(data);
  size_t present = 0;
  for (int64_t axis = 0; axis < rank; ++axis) present += mask >> axis & 1;
  if (present > dims.size()) return ffi::Unexpected(ffi::Error::InvalidArgument("jaxprims: an operand lacks its batch axes"));
  int64_t stride = static_cast<int64_t>(bytes);
  for (int64_t axis = 0, dim = 0; axis < rank; ++axis) {
    if ((mask >> axis & 1) == 0) continue;
    const int64_t size = dims[static_cast<size_t>(dim++)];
    stride = size ? stride / size : 0;
    operand.strides[static_cast<size_t>(axis)] = stride;
  }
  return operand;
}

// The attributes that all handlers of the ordered family have. masks: for each operand, which batch axes it has.
struct OrderedAttributes {
  std::string_view spec;
  int64_t key, batch_rank, inner_rank;
  ffi::Span<const int64_t> masks;
  int64_t init;                   // 1: the last operands are init's leaves
  ffi::Span<const int64_t> plan;  // empty, or what tests and benchmarks force
};

// The attributes of the histogram.
struct HistAttributes {
  std::string_view spec;
  int64_t key, batch_rank, elements_of;  // elements_of: the array that tells their number
  ffi::Span<const int64_t> masks;
  int64_t sorted;                 // the array of sorted indices, + 2^16 if they have 8 bytes; or -1
  ffi::Span<const int64_t> plan;  // empty, or what tests and benchmarks force
};

// Binds what all handlers of the ordered family have, behind what `binding` has: ffi::RemainingArgs, ffi::RemainingRets, spec,
// key, batch_rank, inner_rank, masks, `flag`, plan, with OrderedAttributes' types. flag: init, or, of segments, by.
template <class Binding>
auto BindOrdered(Binding binding, const char* flag) {
  return std::move(binding)
      .RemainingArgs()
      .RemainingRets()
      .template Attr<std::string_view>("spec")
      .template Attr<int64_t>("key")
      .template Attr<int64_t>("batch_rank")
      .template Attr<int64_t>("inner_rank")
      .template Attr<ffi::Span<const int64_t>>("masks")
      .template Attr<int64_t>(flag)
      .template Attr<ffi::Span<const int64_t>>("plan");
}

// Likewise of the histogram, with HistAttributes' types.
template <class Binding>
auto BindHist(Binding binding) {
  return std::move(binding)
      .RemainingArgs()
      .RemainingRets()
      .template Attr<std::string_view>("spec")
      .template Attr<int64_t>("key")
      .template Attr<int64_t>("batch_rank")
      .template Attr<int64_t>("elements_of")
      .template Attr<ffi::Span<const int64_t>>("masks")
      .template Attr<int64_t>("sorted")
      .template Attr<ffi::Span<const int64_t>>("plan");
}

// Takes operands one after the other.
class OperandReader {
 public:
  OperandReader(const ffi::RemainingArgs& args, ffi::Span<const int64_t> masks, int64_t batch_rank)
      : args_(args), masks_(masks), batch_rank_(batch_rank) {}

  // The next operand; where wanted, `dims` get the axes behind its batch axes and `item_bytes` the size of a number.
  ffi::Error Take(Operand& operand, Dims* dims = nullptr, int64_t* item_bytes = nullptr) {
    if (next_ >= masks_.size()) return ffi::Error::InvalidArgument("jaxprims: too few masks of batch axes");
    auto buffer = args_.get<ffi::AnyBuffer>(next_);
    if (buffer.has_error()) return buffer.error();
    const int64_t mask = masks_[next_++];
    auto placed = BatchedOperand(buffer->untyped_data(), DimsOf(*buffer), buffer->size_bytes(), mask, batch_rank_);
    if (placed.has_error()) return placed.error();
    operand = *placed;
    size_t axes = 0;
    for (int64_t axis = 0; axis < batch_rank_; ++axis) axes += mask >> axis & 1;
    if (dims != nullptr) *dims = DimsOf(*buffer).subspan(axes);
    if (item_bytes != nullptr) *item_bytes = static_cast<int64_t>(ffi::ByteWidth(buffer->element_type()));
    return ffi::Error::Success();
  }

 private:
  const ffi::RemainingArgs& args_;
  const ffi::Span<const int64_t> masks_;
  const int64_t batch_rank_;
  size_t next_ = 0;
};

// Operands in their order (arrays, flags, uniforms, init; `reader` stands behind them afterwards) and results. A row's length and
// the inner axes are the first array's, or, where all arrays are positions, a scan's result's.
inline ffi::Error ReadOrderedCall(OperandReader& reader, const ffi::RemainingRets& rets, const OrderedAttributes& attributes,
                                  const OrderedShape& shape, OrderedCall& call) {
  if (attributes.batch_rank > kMaxBatchRank) return ffi::Error::InvalidArgument("jaxprims: more than 16 batch axes");
  const auto batch_rank = static_cast<size_t>(attributes.batch_rank), inner_rank = static_cast<size_t>(attributes.inner_rank);
  Dims dims;
  bool sized = false;
  auto size_by = [&](Dims axes) {  // [N, *inner, *element]
    if (sized || axes.size() < 1 + inner_rank) return;
    sized = true;
    call.n = axes[0];
    call.lanes = shape.across ? Product(axes.subspan(1, inner_rank)) : 1;  // along, elements side by side are one struct
  };
  for (const int64_t bytes : shape.array_bytes) {
    Operand& array = call.arrays.emplace_back();
    if (bytes == 0) continue;
    if (ffi::Error e = reader.Take(array, &dims); e.failure()) return e;
    size_by(dims);
  }
  if (shape.restarts || shape.kind == "segments") {
    if (ffi::Error e = reader.Take(call.flags); e.failure()) return e;
  }
  for (int64_t k = 0; k < shape.uniforms; ++k) {
    if (ffi::Error e = reader.Take(call.uniforms.emplace_back()); e.failure()) return e;
  }
  for (size_t slot = 0; attributes.init != 0 && slot < shape.slot_bytes.size();) {
    OrderedInit& init = call.init.emplace_back();
    int64_t bytes = 0;
    if (ffi::Error e = reader.Take(init.operand, &dims, &bytes); e.failure()) return e;
    if (dims.size() < inner_rank) return ffi::Error::InvalidArgument("jaxprims: init lacks its inner axes");
    // A complex number is two slots.
    init.slots = Product(dims.subspan(shape.across ? inner_rank : 0)) * bytes / shape.slot_bytes[slot];
    slot += static_cast<size_t>(init.slots);
    if (init.slots < 1 || slot > shape.slot_bytes.size()) return ffi::Error::InvalidArgument("jaxprims: init has other slots");
  }
  const int64_t all = (int64_t{1} << batch_rank) - 1;
  for (size_t leaf = 0; leaf < shape.leaf_bytes.size(); ++leaf) {
    auto out = rets.get<ffi::AnyBuffer>(leaf);
    if (out.has_error()) return out.error();
    dims = DimsOf(**out);
    if (dims.size() < batch_rank) return ffi::Error::InvalidArgument("jaxprims: a result lacks its batch axes");
    if (leaf == 0) call.batch.assign(dims.begin(), dims.begin() + batch_rank);
    if (shape.kind == "scan") size_by(dims.subspan(batch_rank));
    auto placed = BatchedOperand((*out)->untyped_data(), dims, (*out)->size_bytes(), all, attributes.batch_rank);
    if (placed.has_error()) return placed.error();
    call.outs.push_back(*placed);
  }
  return sized ? ffi::Error::Success() : ffi::Error::InvalidArgument("jaxprims: no operand tells the number of elements");
}

// The segments of a call: the operand behind the arrays, of s32 or s64, and the axis of the result.
inline ffi::Error ReadSegments(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets, int64_t batch_rank, int64_t by,
                               const OrderedShape& shape, const OrderedCall& call, Segments& segments) {
  size_t at = 0;
  for (const int64_t bytes : shape.array_bytes) at += bytes != 0 ? 1 : 0;
  const auto operand = args.get<ffi::AnyBuffer>(at);
  auto result = rets.get<ffi::AnyBuffer>(0);
  if (operand.has_error()) return operand.error();
  if (result.has_error()) return result.error();
  const auto sizes = operand->dimensions(), results = (*result)->dimensions();
  const auto axis = static_cast<size_t>(batch_rank);
  if (sizes.size() == 0 || results.size() <= axis) return ffi::Error::InvalidArgument("jaxprims: segments lack their axis");
  segments = {results[axis], by != 0, operand->element_type() == ffi::DataType::S64};
  if ((!segments.wide && operand->element_type() != ffi::DataType::S32) ||
      sizes.back() != (segments.ids ? call.n : segments.count + 1)) {
    return ffi::Error::InvalidArgument("jaxprims: segments want s32 or s64, an offset more than segments or an id an element");
  }
  return ffi::Error::Success();
}

// Operands: arrays (without positions), uniforms, then the dests of each histogram that has them; and results.
inline ffi::Error ReadHistCall(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets, const HistAttributes& attributes,
                               const HistShape& shape, const std::vector<bool>& positions, int64_t uniforms, HistCall& call) {
  const int64_t batch_rank = attributes.batch_rank;
  if (batch_rank > kMaxBatchRank) return ffi::Error::InvalidArgument("jaxprims: more than 16 batch axes");
  OperandReader reader(args, attributes.masks, batch_rank);
  for (size_t k = 0; k < positions.size(); ++k) {
    Operand& operand = call.arrays.emplace_back();
    if (positions[k]) continue;
    Dims dims;
    if (ffi::Error e = reader.Take(operand, &dims); e.failure()) return e;
    if (static_cast<int64_t>(k) == attributes.elements_of) call.elements = dims[0];
  }
  for (int64_t k = 0; k < uniforms; ++k) {
    if (ffi::Error e = reader.Take(call.uniforms.emplace_back()); e.failure()) return e;
  }
  size_t result = 0;
  const int64_t all = (int64_t{1} << batch_rank) - 1;
  for (const auto& bins : shape.bins) {
    for (size_t k = 0; k < bins.leaf_bytes.size(); ++k, ++result) {
      auto out = rets.get<ffi::AnyBuffer>(result);
      if (out.has_error()) return out.error();
      const Dims dims = DimsOf(**out);
      if (call.batch.empty() && batch_rank > 0) call.batch.assign(dims.begin(), dims.begin() + batch_rank);
      const int64_t batch = Product(call.batch), bytes = static_cast<int64_t>((*out)->size_bytes());
      if (k == 0) call.bins.push_back(batch ? bytes / batch / bins.leaf_bytes[0] : 0);
      auto placed = BatchedOperand((*out)->untyped_data(), dims, (*out)->size_bytes(), all, batch_rank);
      if (placed.has_error()) return placed.error();
      call.outs.push_back(*placed);
      Operand& dest = call.dests.emplace_back();
      if (!bins.dest) continue;
      if (ffi::Error e = reader.Take(dest); e.failure()) return e;
    }
  }
  if (attributes.sorted >= 0) {
    call.sorted_array = static_cast<int>(attributes.sorted & 0xffff);
    call.sorted_bytes = (attributes.sorted >> 16) != 0 ? 8 : 4;
  }
  return ffi::Error::Success();
}

inline ffi::Error Internal(const std::exception& e) { return ffi::Error::Internal(std::string("jaxprims: ") + e.what()); }

}  // namespace jaxprims
