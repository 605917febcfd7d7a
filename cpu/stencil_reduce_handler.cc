// The FFI handler of reductions of stencils.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "attributes.h"
#include "handlers.h"
#include "operand_reader.h"
#include "stencil_reader.h"
#include "stencil_reduce.h"

namespace jaxprims {

// reads: for each the array and its offset on each axis; bounds and fills as StencilAttributes has them; window: by axis the
// first cell and how many; kept: axes of the results; line, along: as StencilReduceCall has them.
struct StencilReduceAttributes {
  std::string_view spec;
  int64_t key, batch_rank;
  ffi::Span<const int64_t> masks, plan, reads, bounds, fills, window;
  int64_t unit, kept, line, along, devices;
};

}  // namespace jaxprims

JAXPRIMS_ATTRIBUTES(jaxprims::StencilReduceAttributes, Member<std::string_view>{"spec"}, Member<int64_t>{"key"},
                    Member<int64_t>{"batch_rank"}, Member<Span<const int64_t>>{"masks"}, Member<Span<const int64_t>>{"plan"},
                    Member<Span<const int64_t>>{"reads"}, Member<Span<const int64_t>>{"bounds"},
                    Member<Span<const int64_t>>{"fills"}, Member<Span<const int64_t>>{"window"}, Member<int64_t>{"unit"},
                    Member<int64_t>{"kept"}, Member<int64_t>{"line"}, Member<int64_t>{"along"}, Member<int64_t>{"devices"});

namespace jaxprims {
namespace {

// Operands: the stencil's arrays [*grid, ...], then what is captured; results [*kept, ...].
void ReadStencilReduceCall(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets,
                           const StencilReduceAttributes& attributes, const OrderedShape& shape, StencilReduceCall& call) {
  const Signature& signature = shape.signature;
  const size_t rank = attributes.window.size() / 2, count = attributes.fills.size() / 2;
  auto sane = [](int64_t x) { return x > -kMostCells && x < kMostCells; };
  for (const auto& numbers : {attributes.reads, attributes.bounds, attributes.window}) {
    if (!std::all_of(numbers.begin(), numbers.end(), sane)) throw Wrong("a stencil's boundary is out of range");
  }
  if (shape.across || !shape.parts.empty() || rank == 0 || attributes.window.size() != 2 * rank || count == 0 ||
      attributes.fills.size() != 2 * count || attributes.bounds.size() != 4 * rank * count ||
      attributes.reads.size() != (1 + rank) * signature.arrays.size() || attributes.kept < 0 ||
      attributes.kept >= static_cast<int64_t>(rank) || rank > kMaxGridRank || attributes.line < 0 || attributes.unit < 1 ||
      !sane(attributes.unit)) {
    throw Wrong("a stencil's boundaries are not those of its arrays");
  }
  std::vector<Scalars> cells(count);
  for (size_t r = 0; r < signature.arrays.size(); ++r) {
    const auto* read = attributes.reads.begin() + r * (1 + rank);
    if (read[0] < 0 || read[0] >= static_cast<int64_t>(count)) throw Wrong("a stencil reads an array that it has not");
    Scalars& cell = cells[static_cast<size_t>(read[0])];
    if (cell.count != 0 && (cell.count != signature.arrays[r].count || cell.dtype != signature.arrays[r].dtype)) {
      throw Wrong("an array is read as two");
    }
    cell = signature.arrays[r];
    call.reads.push_back({static_cast<size_t>(read[0]), {read + 1, read + 1 + rank}});
  }
  OperandReader reader(args, rets, attributes.masks, attributes.kept);
  reader.Start(signature.leaves.size(), 0, call.ordered.batch);
  for (const int64_t mask : attributes.masks) {
    if (mask != 0) throw Wrong("a stencil's operands have no batch");
  }
  call.unit = call.ordered.n = attributes.unit;
  for (size_t a = 0; a < rank; ++a) {
    const int64_t start = attributes.window[2 * a], size = attributes.window[2 * a + 1];
    if (size < 1) throw Wrong("a stencil without cells");
    call.window.push_back({start, start + size});
    if (a < call.ordered.batch.size() ? call.ordered.batch[a] != size
                                      : __builtin_mul_overflow(call.ordered.n, size, &call.ordered.n) || !sane(call.ordered.n)) {
      throw Wrong("results are not those of the grid");
    }
  }
  for (size_t k = 0; k < count; ++k) {
    auto& array = call.arrays.emplace_back();
    const auto sizes = reader.NextAxes();
    if (sizes.size() < rank || cells[k].count == 0) throw Wrong("an array lacks axes of the grid");
    for (size_t a = 0; a < rank; ++a) {
      const auto* own = attributes.bounds.begin() + 4 * (k * rank + a);
      if (own[0] < 0 || own[0] > static_cast<int64_t>(Boundary::kNothing)) throw Wrong("a stencil has an unknown boundary");
      if (own[2] < 0 || own[3] < 0) throw Wrong("an array has more cells than it has");
      array.axes.push_back({static_cast<Boundary>(own[0]), sizes[a], own[1], own[2], own[3]});
    }
    int64_t lanes = Product(sizes.first(rank));
    if (lanes < 0 || __builtin_mul_overflow(lanes, cells[k].count * call.unit, &lanes)) {
      throw Wrong("an array has more cells than memory holds");
    }
    reader.Take({"an array", Wanted::kNoRows, {cells[k].dtype, lanes}}, array.operand);
    array.fill = {attributes.fills[2 * k], attributes.fills[2 * k + 1]};
  }
  for (size_t a = 0; a < rank; ++a) {  // no result has the grid's size
    int64_t largest = 0;
    for (const auto& array : call.arrays) largest = std::max(largest, array.axes[a].size);
    if (call.window[a].size() > 2 * largest + kMostOutside) throw Wrong("a stencil has more cells than its arrays");
  }
  size_t next = 0;
  for (const int64_t bytes : shape.array_bytes) {
    if (bytes > 0) call.arrays[call.reads[next++].array].bytes = bytes * call.unit;
  }
  for (auto& array : call.arrays) {
    array.stride.resize(rank);
    int64_t stride = array.bytes;
    for (size_t a = rank; a-- > 0; stride *= array.axes[a].size) array.stride[a] = stride;
  }
  call.line = static_cast<size_t>(attributes.line);
  call.along = attributes.along != 0;
  for (size_t k = 0; k < signature.uniforms.size(); ++k) {
    const Scalars& uniform = signature.uniforms[k];
    Operand& operand = call.ordered.uniforms.emplace_back();
    if (k == call.line) {  // which workers have of their own
      if (uniform.dtype != Dtype::kS32 || uniform.count > static_cast<int64_t>(rank)) throw Wrong("a line has other coordinates");
      static std::array<int32_t, kMaxGridRank> none{};
      operand.data = reinterpret_cast<char*>(none.data());
      continue;
    }
    reader.TakeCaptured(uniform, operand);
  }
  for (const Scalars& leaf : signature.leaves) {
    reader.TakeResult({"a result", Wanted::kNoRows, leaf}, call.ordered.outs.emplace_back());
  }
  call.ordered.empty = reader.empty();
  reader.End();
}

ffi::Error StencilReduce(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                         const StencilReduceAttributes& attributes) {
  return Guarded([&] {
    const auto& entry = FindOrdered(attributes.spec, attributes.key, "reduce");
    StencilReduceCall call;
    CheckPlan(attributes.plan, 0, 0);
    ReadStencilReduceCall(args, rets, attributes, entry.shape, call);
    if (call.ordered.empty) return;
    ReduceProblem problem = DescribeReduce(entry.shape, call.ordered);
    OfStencil(problem, static_cast<int64_t>(call.reads.size()));
    const ReducePlan plan = MakeReducePlan(problem, ShareOf(pool, attributes.devices));
    const auto rows = StencilElements::Fills(call, std::min(plan.leaf, call.window.back().size() * call.unit));
    XlaPool assistants{pool};
    RunReduce(assistants, entry.shape, call.ordered, KernelOf(entry, 0), plan, StencilElements(entry.shape, call, rows));
  });
}

}  // namespace

void* StencilReduceHandler() { return HandlerFor<StencilReduce, StencilReduceAttributes>(); }

}  // namespace jaxprims
