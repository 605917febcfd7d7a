// The arguments of the FFI handlers, checked and read into calls: operands with batch axes, results, attributes. For every
// platform. What does not fit the spec is an error that says so: nothing that a handler is told was made by this process.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "attributes.h"
#include "hist_call.h"
#include "operand.h"
#include "operand_reader.h"
#include "ordered_call.h"
#include "signature.h"
#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace jaxprims {

// The attributes of scans and reductions. masks: for each operand, which batch axes it has.
struct OrderedAttributes {
  std::string_view spec;
  int64_t key, batch_rank, inner_rank;
  ffi::Span<const int64_t> masks;
  int64_t flag;                   // init, 1: the last operands are init's leaves; of segments, by, 1: they are given by ids
  ffi::Span<const int64_t> plan;  // empty, or what tests and benchmarks force
  int64_t devices;                // of this process that make such a call at once
};

// The same of segmented reductions.
struct SegmentsAttributes : OrderedAttributes {};

// The attributes of the histogram.
struct HistAttributes {
  std::string_view spec;
  int64_t key, batch_rank, elements_of;  // elements_of: the array that tells their number
  ffi::Span<const int64_t> masks;
  int64_t sorted;                 // the array of sorted indices, + 2^16 if they have 8 bytes; or -1
  ffi::Span<const int64_t> plan;  // empty, or what tests and benchmarks force
  int64_t devices;
};

inline constexpr int64_t kMostLanes = int64_t{1} << 40;
inline constexpr int64_t kMostOfPlan = int64_t{1} << 40;  // no number of a forced plan is larger

inline std::span<const int64_t> SpanOf(ffi::Span<const int64_t> numbers) { return {numbers.begin(), numbers.size()}; }

// A plan is empty, or has so many numbers, none of them absurd; what is no plan of the problem's is for who makes plans.
inline void CheckPlan(ffi::Span<const int64_t> plan, size_t least, size_t most) {
  bool fits = plan.size() == 0 || (plan.size() >= least && plan.size() <= most);
  for (const int64_t number : plan) fits = fits && number >= -1 && number <= kMostOfPlan;
  if (!fits) throw Wrong("the forced plan is none of this kernel's");
}

// Operands in their order (arrays, flags or segments, uniforms, init) and results, behind which there are `others`. A row's
// length and the inner axes are the first array's, or, where all arrays are positions, a scan's result's.
inline void ReadOrderedCall(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets, const OrderedAttributes& attributes,
                            const OrderedShape& shape, size_t others, OrderedCall& call, Segments& segments) {
  const Signature& signature = shape.signature;
  const bool is_scan = shape.kind == "scan", is_segments = shape.kind == "segments";
  OperandReader reader(args, rets, attributes.masks, attributes.batch_rank);
  reader.Start(signature.leaves.size(), others, call.batch);
  if (attributes.flag != 0 && attributes.flag != 1) throw Wrong("init or by is neither 0 nor 1");
  const bool init = attributes.flag != 0 && !is_segments;
  if (shape.exclusive && !shape.identity && !init) throw Wrong("an exclusive scan starts from an identity or from init");

  if (signature.arrays.empty() && !is_scan) throw Wrong("no operand tells the number of elements");
  const auto sizes = signature.arrays.empty() ? reader.ResultAxes() : reader.NextAxes();
  if (attributes.inner_rank < 0 || attributes.inner_rank >= static_cast<int64_t>(sizes.size())) {
    throw Wrong("an array has no axis of elements and " + std::to_string(attributes.inner_rank) + " inner ones");
  }
  call.n = sizes[0];
  // Along, elements side by side are one struct.
  call.lanes = shape.across ? Product(sizes.subspan(1, static_cast<size_t>(attributes.inner_rank))) : 1;
  if (call.lanes < 0 || call.lanes > kMostLanes) throw Wrong("an array has more elements side by side than memory holds");
  if (shape.together > 1 && call.lanes != 1) throw Wrong("elements that are made together lie one behind the other");
  auto lanes_of = [&](const Scalars& element) { return Scalars{element.dtype, element.count * call.lanes}; };

  auto next = signature.arrays.begin();
  call.arrays.reserve(shape.array_bytes.size());
  call.uniforms.reserve(signature.uniforms.size());
  call.outs.reserve(signature.leaves.size());
  for (const int64_t bytes : shape.array_bytes) {
    Operand& array = call.arrays.emplace_back();
    if (bytes == 0) continue;
    reader.Take({"an array", call.n, lanes_of(*next++)}, array);
  }
  int64_t steps = is_scan ? call.n : Wanted::kNoRows;
  if (is_segments) {
    if (reader.ResultAxes().empty()) throw Wrong("a result lacks the axis of segments");
    steps = reader.ResultAxes()[0];
    segments = {steps, attributes.flag != 0, reader.NextScalars().dtype == Dtype::kS64};
    const Scalars one{segments.wide ? Dtype::kS64 : Dtype::kS32, 1};
    const Wanted cuts{segments.ids ? "the segments' ids" : "the segments' offsets", segments.ids ? call.n : steps + 1, one};
    reader.Take(cuts, call.flags);
  } else if (shape.restarts) {
    reader.Take({"the flags", call.n, {Dtype::kB1, 1}}, call.flags);
  }
  reader.TakeCaptured(signature.uniforms, call.uniforms);
  for (size_t slot = 0; init && slot < signature.state.size();) {
    OrderedInit& leaf = call.init.emplace_back();
    const auto axes = reader.NextAxes();
    const size_t inner = shape.across ? static_cast<size_t>(attributes.inner_rank) : 0;
    if (axes.size() < inner) throw Wrong("init lacks its inner axes");
    leaf.slots = Product(axes.subspan(inner)) * reader.NextScalars().count;
    const auto all = static_cast<int64_t>(signature.state.size() - slot);
    const size_t part = call.init.size() - 1;
    const bool fits = shape.parts.empty() || (part < shape.parts.size() && leaf.slots == shape.parts[part].first);
    if (leaf.slots < 1 || leaf.slots > all || !fits) throw Wrong("init has other slots than a state");
    const Scalars state{signature.state[slot], leaf.slots};
    reader.Take({"init", Wanted::kNoRows, lanes_of(state)}, leaf.operand);
    for (const size_t end = slot + static_cast<size_t>(leaf.slots); slot < end; ++slot) {
      if (signature.state[slot] != state.dtype) throw Wrong("init is not of the state's dtypes");
    }
  }
  for (const Scalars& leaf : signature.leaves) {
    reader.TakeResult({"a result", steps, lanes_of(leaf)}, call.outs.emplace_back());
  }
  call.empty = reader.empty();
  reader.End();
}

// Operands: arrays (without positions), uniforms, then the dests of each histogram that has them; and results, behind which there
// are `others`.
inline void ReadHistCall(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets, const HistAttributes& attributes,
                         const HistShape& shape, size_t others, HistCall& call) {
  const Signature& signature = shape.signature;
  OperandReader reader(args, rets, attributes.masks, attributes.batch_rank);
  reader.Start(signature.leaves.size(), others, call.batch);
  const auto first = std::ranges::find(shape.positions, false) - shape.positions.begin();
  if (signature.arrays.empty() || attributes.elements_of != first) throw Wrong("no operand tells the number of elements");
  const auto sizes = reader.NextAxes();
  if (sizes.empty()) throw Wrong("an array lacks the axis of elements");
  call.elements = sizes[0];
  auto next = signature.arrays.begin();
  call.arrays.reserve(shape.positions.size());
  call.uniforms.reserve(signature.uniforms.size());
  call.outs.reserve(signature.leaves.size());
  call.dests.reserve(signature.leaves.size());
  for (const bool position : shape.positions) {
    Operand& array = call.arrays.emplace_back();
    if (position) continue;
    reader.Take({"an array", call.elements, *next++}, array);
  }
  reader.TakeCaptured(signature.uniforms, call.uniforms);
  auto leaf = signature.leaves.begin();
  size_t result = 0;
  for (const auto& bins : shape.bins) {
    const Dims axes = DimsOf(BufferOf(rets, result));
    const auto rank = static_cast<size_t>(attributes.batch_rank);
    if (axes.size() <= rank) throw Wrong("a result lacks the axis of bins");
    const int64_t size = axes[rank];
    if (!shape.index64 && size >= std::numeric_limits<int32_t>::max()) throw Wrong("more bins than indices of s32 tell apart");
    call.bins.push_back(size);
    for (size_t k = 0; k < bins.leaf_bytes.size(); ++k, ++result, ++leaf) {
      reader.TakeResult({"a result", size, *leaf}, call.outs.emplace_back());
      Operand& dest = call.dests.emplace_back();
      if (!bins.dest) continue;
      reader.Take({"dest", size, *leaf}, dest);
    }
  }
  if (attributes.sorted != -1) {
    // The array is f's first, and of the indices' dtype: one scalar of each element.
    const Scalars index{shape.index64 ? Dtype::kS64 : Dtype::kS32, 1};
    const bool fits = attributes.sorted == (shape.index64 ? 1 << 16 : 0) && first == 0;
    if (!fits || signature.arrays[0].dtype != index.dtype || signature.arrays[0].count != index.count) {
      throw Wrong("no array has sorted indices");
    }
    call.sorted_array = 0;
    call.sorted_bytes = shape.index64 ? 8 : 4;
  }
  call.empty = reader.empty();
  reader.End();
}

inline ffi::Error Failed(const std::exception& e) {
  const std::string what = std::string("jaxprims: ") + e.what();
  return dynamic_cast<const std::invalid_argument*>(&e) != nullptr ? ffi::Error::InvalidArgument(what)
                                                                   : ffi::Error::Internal(what);
}

}  // namespace jaxprims

JAXPRIMS_ATTRIBUTES(jaxprims::OrderedAttributes, Member<std::string_view>{"spec"}, Member<int64_t>{"key"},
                    Member<int64_t>{"batch_rank"}, Member<int64_t>{"inner_rank"}, Member<Span<const int64_t>>{"masks"},
                    Member<int64_t>{"init"}, Member<Span<const int64_t>>{"plan"}, Member<int64_t>{"devices"});
JAXPRIMS_ATTRIBUTES(jaxprims::SegmentsAttributes, Member<std::string_view>{"spec"}, Member<int64_t>{"key"},
                    Member<int64_t>{"batch_rank"}, Member<int64_t>{"inner_rank"}, Member<Span<const int64_t>>{"masks"},
                    Member<int64_t>{"by"}, Member<Span<const int64_t>>{"plan"}, Member<int64_t>{"devices"});
JAXPRIMS_ATTRIBUTES(jaxprims::HistAttributes, Member<std::string_view>{"spec"}, Member<int64_t>{"key"},
                    Member<int64_t>{"batch_rank"}, Member<int64_t>{"elements_of"}, Member<Span<const int64_t>>{"masks"},
                    Member<int64_t>{"sorted"}, Member<Span<const int64_t>>{"plan"}, Member<int64_t>{"devices"});
