// The arguments of the stencil's FFI handlers, checked and read into calls. For every platform.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "attributes.h"
#include "operand_reader.h"
#include "stencil_call.h"

namespace jaxprims {

// bounds: for each array and axis its boundary, origin, lo and hi (StencilAxis); fills: 16 bytes for each array; window: for each
// axis start, shrink_lo, shrink_hi, keep_lo, keep_hi (StencilWindow).
struct StencilAttributes {
  std::string_view spec;
  int64_t key, batch_rank;
  ffi::Span<const int64_t> masks, bounds, fills, window;
  int64_t steps;
  ffi::Span<const int64_t> plan;  // empty, or what tests and benchmarks force
  int64_t devices;
};

inline constexpr int64_t kMostCells = int64_t{1} << 40;  // no size, offset or coordinate is larger

// Operands: arrays [*batch, *grid, ...], uniforms; results, leaf by leaf, behind which there are `others`. A grid of one axis
// gets another one of a single cell.
inline void ReadStencilCall(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets, const StencilAttributes& attributes,
                            const StencilShape& shape, size_t others, StencilCall& call) {
  const Signature& signature = shape.signature;
  OperandReader reader(args, rets, attributes.masks, attributes.batch_rank);
  reader.Start(signature.leaves.size(), others, call.batch);
  const auto rank = static_cast<size_t>(shape.rank);
  const size_t arrays = signature.arrays.size();
  if (attributes.bounds.size() != 4 * rank * arrays || attributes.fills.size() != 2 * arrays ||
      attributes.window.size() != 5 * rank) {
    throw Wrong("a stencil's boundaries are not those of its arrays");
  }
  auto sane = [](int64_t x) { return x > -kMostCells && x < kMostCells; };
  for (const int64_t x : attributes.bounds) {
    if (!sane(x)) throw Wrong("a stencil's boundary is out of range");
  }
  for (const int64_t x : attributes.window) {
    if (!sane(x)) throw Wrong("a stencil's window is out of range");
  }
  if (attributes.steps < 1 || !sane(attributes.steps)) throw Wrong("a stencil has at least one step");
  call.steps = attributes.steps;

  const StencilAxis single;
  for (size_t k = 0; k < arrays; ++k) {
    const auto sizes = reader.NextAxes();
    if (sizes.size() < rank) throw Wrong("an array lacks axes of the grid");
    auto& axes = call.axes.emplace_back();
    if (rank == 1) axes.push_back(single);
    for (size_t a = 0; a < rank; ++a) {
      const auto* own = attributes.bounds.begin() + 4 * (k * rank + a);
      if (own[0] < 0 || own[0] > static_cast<int64_t>(Boundary::kNothing)) throw Wrong("a stencil has an unknown boundary");
      axes.push_back({static_cast<Boundary>(own[0]), sizes[a], own[1], own[2], own[3]});
      if (own[2] < 0 || own[3] < 0) throw Wrong("an array has more cells than it has");
    }
    const int64_t cells = Product(sizes.first(rank));
    int64_t lanes = 0;
    if (cells < 0 || __builtin_mul_overflow(cells, signature.arrays[k].count * shape.unit, &lanes)) {
      throw Wrong("an array has more cells than memory holds");
    }
    const Wanted wanted{"an array", Wanted::kNoRows, {signature.arrays[k].dtype, lanes}};
    reader.Take(wanted, call.arrays.emplace_back());
    call.fills.push_back({attributes.fills[2 * k], attributes.fills[2 * k + 1]});
  }
  reader.TakeCaptured(signature.uniforms, call.uniforms);
  const Dims sizes = reader.ResultAxes();
  if (sizes.size() < rank) throw Wrong("a result lacks axes of the grid");
  if (rank == 1) call.window.push_back({});
  for (size_t a = 0; a < rank; ++a) {
    const auto* w = attributes.window.begin() + 5 * a;
    call.window.push_back({w[0], sizes[a], w[1], w[2], w[3], w[4]});
    if (w[1] < 0 || w[2] < 0 || w[3] < 0 || w[4] < 0) throw Wrong("a stencil's window grows");
    int64_t more = 0;
    if (__builtin_mul_overflow(call.steps, std::max(w[1], w[2]), &more) || !sane(more)) {
      throw Wrong("a stencil's window is out of range");
    }
  }
  const int64_t cells = Product(sizes.first(rank));
  for (const Scalars& leaf : signature.leaves) {
    int64_t lanes = 0;
    if (cells < 0 || __builtin_mul_overflow(cells, leaf.count * shape.unit, &lanes)) throw Wrong("a result has too many cells");
    const Wanted wanted{"a result", Wanted::kNoRows, {leaf.dtype, lanes}};
    reader.TakeResult(wanted, call.outs.emplace_back());
  }
  call.empty = reader.empty();
  reader.End();

  // What steps change, or keep, is like the results, and where their cells are.
  const bool keeps = std::ranges::any_of(call.window, [](const StencilWindow& w) { return w.keep_lo > 0 || w.keep_hi > 0; });
  if (call.steps == 1 && !keeps) return;
  for (size_t k = 0; k < signature.leaves.size(); ++k) {
    if (k >= arrays || signature.arrays[k].dtype != signature.leaves[k].dtype ||
        signature.arrays[k].count != signature.leaves[k].count) {
      throw Wrong("a step's results are not like what it changes");
    }
    for (size_t a = 0; a < call.window.size(); ++a) {
      const StencilAxis& own = call.axes[k][a];
      const StencilWindow& w = call.window[a];
      const int64_t begin = w.start - call.steps * w.shrink_lo, end = w.start + w.size + call.steps * w.shrink_hi;
      const bool fits = call.steps > 1 ? own.begin() == begin && own.end() == end : own.begin() <= begin && own.end() >= end;
      if (!fits) throw Wrong("a step's results are not where what it changes is");
    }
  }
  for (const auto& axes : call.axes) {
    for (size_t a = 0; a < axes.size(); ++a) {
      const bool wraps = axes[a].boundary == Boundary::kWrap, all_wrap = call.axes[0][a].boundary == Boundary::kWrap;
      if (call.steps > 1 && (wraps != all_wrap || (wraps && axes[a].size != call.axes[0][a].size))) {
        throw Wrong("arrays wrap around differently");
      }
    }
  }
}

}  // namespace jaxprims

JAXPRIMS_ATTRIBUTES(jaxprims::StencilAttributes, Member<std::string_view>{"spec"}, Member<int64_t>{"key"},
                    Member<int64_t>{"batch_rank"}, Member<Span<const int64_t>>{"masks"}, Member<Span<const int64_t>>{"bounds"},
                    Member<Span<const int64_t>>{"fills"}, Member<Span<const int64_t>>{"window"}, Member<int64_t>{"steps"},
                    Member<Span<const int64_t>>{"plan"}, Member<int64_t>{"devices"});
