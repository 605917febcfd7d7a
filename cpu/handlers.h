// What the FFI handlers share: XLA's pool, compile on demand, operands with batch axes, the arguments of the ordered family.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "hist_plan.h"
#include "kernel_table.h"
#include "operand.h"
#include "scan_call.h"
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

// The handlers of the ordered family, for capsules.
void* ScanHandler();
void* ReduceHandler();
void* SegmentsHandler();

// This machine's caches, and as many threads as told.
Machine MachineWith(int threads);

// Asks `function` of jaxprims.runtime.compiler for a variant of a spec (-1: for its entry in the table alone): the way of an
// executable that came from another process, whose lowering compiled nothing here. Throws what Python raises.
void CompileOnDemand(const char* function, std::string_view spec, int variant);

// XLA's own pool, for WorkAssist.
struct XlaPool {
  ffi::ThreadPool& pool;
  template <class F>
  void Schedule(F&& f) {
    pool.Schedule(std::forward<F>(f));
  }
};

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
struct ScanAttributes {
  std::string_view spec;
  int64_t key, batch_rank, inner_rank;
  ffi::Span<const int64_t> masks;
  int64_t init;                   // 1: the last operands are init's leaves
  ffi::Span<const int64_t> plan;  // empty, or what tests and benchmarks force
};

// Signature: ffi::Error(ffi::ThreadPool, ffi::RemainingArgs, ffi::RemainingRets, spec, key, batch_rank, inner_rank, masks,
// `flag`, plan), with ScanAttributes' types. flag: init, or, of segments, by.
inline auto ScanBinding(const char* flag) {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .RemainingArgs()
      .RemainingRets()
      .Attr<std::string_view>("spec")
      .Attr<int64_t>("key")
      .Attr<int64_t>("batch_rank")
      .Attr<int64_t>("inner_rank")
      .Attr<ffi::Span<const int64_t>>("masks")
      .Attr<int64_t>(flag)
      .Attr<ffi::Span<const int64_t>>("plan");
}

// The function of jaxprims.runtime.compiler that makes a table's kernels.
template <class Entry>
inline constexpr const char* kCompiler = std::is_same_v<Entry, HistEntry> ? "compile_hist" : "compile_scan";

// A spec's entry in the table, entered on demand. Throws what Python raises.
template <class Entry>
Entry& FindEntry(std::string_view spec, int64_t key) {
  auto& table = KernelTable<Entry>::Instance();
  Entry* entry = table.Find(key);
  if (entry == nullptr) {
    CompileOnDemand(kCompiler<Entry>, spec, -1);
    entry = table.Find(key);
  }
  if (entry == nullptr || entry->spec != spec) throw std::runtime_error("two specs have the same hash");
  return *entry;
}

// A variant's functions, compiled on demand. Throws what Python raises.
template <class Entry>
const auto& KernelOf(const Entry& entry, int variant) {
  const auto& slot = entry.variants.at(static_cast<size_t>(variant));
  const auto* kernel = slot.load(std::memory_order_acquire);
  if (kernel == nullptr) {
    CompileOnDemand(kCompiler<Entry>, entry.spec, variant);
    kernel = slot.load(std::memory_order_acquire);
  }
  if (kernel == nullptr) throw std::runtime_error("a kernel is missing");
  return *kernel;
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
inline ffi::Error ReadScanCall(OperandReader& reader, const ffi::RemainingRets& rets, const ScanAttributes& attributes,
                               const ScanShape& shape, ScanCall& call) {
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
    ScanInit& init = call.init.emplace_back();
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

inline ffi::Error Internal(const std::exception& e) { return ffi::Error::Internal(std::string("jaxprims: ") + e.what()); }

}  // namespace jaxprims
