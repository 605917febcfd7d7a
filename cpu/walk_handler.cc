// The walk's FFI handler.

#include <bit>
#include <limits>
#include <string_view>

#include "attributes.h"
#include "handlers.h"
#include "walk.h"

namespace jaxprims {

// masks: for each operand, which batch axes it has.
struct WalkAttributes {
  std::string_view spec;
  int64_t key, batch_rank;
  ffi::Span<const int64_t> masks;
  int64_t bins, parts, copies;
  ffi::Span<const int64_t> plan;  // empty
  int64_t devices;
};

}  // namespace jaxprims

JAXPRIMS_ATTRIBUTES(jaxprims::WalkAttributes, Member<std::string_view>{"spec"}, Member<int64_t>{"key"},
                    Member<int64_t>{"batch_rank"}, Member<Span<const int64_t>>{"masks"}, Member<int64_t>{"bins"},
                    Member<int64_t>{"parts"}, Member<int64_t>{"copies"}, Member<Span<const int64_t>>{"plan"},
                    Member<int64_t>{"devices"});

namespace jaxprims {
namespace {

// Operands: index, arrays, uniforms, the state's leaves [parts * copies, bins, ...]; results: what is written for each element,
// and the state's leaves again.
void ReadWalkCall(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets, const WalkAttributes& attributes,
                  const WalkShape& shape, WalkCall& call) {
  const Signature& signature = shape.signature;
  call.bins = attributes.bins, call.parts = attributes.parts, call.copies = attributes.copies;
  OperandReader reader(args, rets, attributes.masks, attributes.batch_rank);
  const size_t results = signature.leaves.size() + shape.state_slots.size();
  reader.Start(results, 0, call.batch);
  const bool power = call.copies >= 1 && std::has_single_bit(static_cast<uint64_t>(call.copies));
  const int64_t most = std::numeric_limits<int32_t>::max() - 1;
  if (!power || call.copies > 4096 || call.parts < 1 || call.parts > 4096 || call.bins < 1 || call.bins > most) {
    throw Wrong("no such tables: " + std::to_string(call.parts) + " parts, " + std::to_string(call.copies) + " copies, " +
                std::to_string(call.bins) + " bins");
  }
  const auto sizes = reader.NextAxes();
  if (sizes.empty()) throw Wrong("the index lacks the axis of elements");
  call.n = sizes[0];
  const Scalars index{shape.index64 ? Dtype::kS64 : Dtype::kS32, 1};
  reader.Take({"the index", call.n, index}, call.index);
  for (const Scalars& array : signature.arrays) {
    reader.Take({"an array", call.n, array}, call.arrays.emplace_back());
  }
  reader.TakeCaptured(signature.uniforms, call.uniforms);
  const int64_t tables = call.parts * call.copies;
  auto each_leaf = [&](auto take) {
    size_t slot = 0;
    for (const int64_t slots : shape.state_slots) {
      const Scalars bins{signature.state[slot], call.bins * slots};
      take(Wanted{"the state", tables, bins});
      slot += static_cast<size_t>(slots);
    }
  };
  each_leaf([&](const Wanted& wanted) { reader.Take(wanted, call.starts.emplace_back()); });
  for (const Scalars& leaf : signature.leaves) {
    reader.TakeResult({"a result", call.n, leaf}, call.outs.emplace_back());
  }
  each_leaf([&](const Wanted& wanted) { reader.TakeResult(wanted, call.ends.emplace_back()); });
  reader.End();
}

ffi::Error Walk(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, const WalkAttributes& attributes) {
  return Guarded([&] {
    const auto& entry = FindEntry<WalkEntry>(attributes.spec, attributes.key);
    WalkCall call;
    CheckPlan(attributes.plan, 0, 0);
    ReadWalkCall(args, rets, attributes, entry.shape, call);
    const Machine machine = ShareOf(pool, attributes.devices);
    const int variant = WalkVariant(entry.shape, call.bins, call.copies, machine);
    XlaPool assistants{pool};
    RunWalk(assistants, entry.shape, call, KernelOf(entry, variant), machine.threads);
  });
}

}  // namespace

void* WalkHandler() { return HandlerFor<Walk, WalkAttributes>(); }

}  // namespace jaxprims
