// The FFI handler of chains of scans.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "attributes.h"
#include "handlers.h"
#include "operand_reader.h"
#include "scan_chain.h"

namespace jaxprims {

// specs, keys: by member. places: for each member those of its arrays (without positions), its captured arrays, its results;
// they number operands and results, then buffers.
struct ChainAttributes {
  std::string_view specs;
  ffi::Span<const int64_t> keys, places;
  int64_t n, buffers, devices;
};

}  // namespace jaxprims

JAXPRIMS_ATTRIBUTES(jaxprims::ChainAttributes, Member<std::string_view>{"specs"}, Member<Span<const int64_t>>{"keys"},
                    Member<Span<const int64_t>>{"places"}, Member<int64_t>{"n"}, Member<int64_t>{"buffers"},
                    Member<int64_t>{"devices"});

namespace jaxprims {
namespace {

constexpr std::string_view kBetween = "\n;\n";  // members' specs

// A call, read and checked place by place: `bytes`, of each operand, result and buffer.
class ChainReader {
 public:
  ChainReader(ChainCall& call, std::vector<int64_t>& bytes, size_t operands, ffi::Span<const int64_t> places)
      : call_(call), bytes_(bytes), operands_(operands), places_(places) {}

  // The next member, whose arrays, captured arrays and results are the next places.
  bool Take(const OrderedShape& shape, const OrderedKernel& kernel) {
    ChainMember member;
    member.shape = &shape, member.kernel = &kernel;
    for (const int64_t each : shape.array_bytes) {
      member.arrays.push_back(each == 0 ? -1 : Next());
      if (each != 0 && !Reads(member.arrays.back(), each * call_.n)) return false;
    }
    for (const Scalars& uniform : shape.signature.uniforms) {
      member.uniforms.push_back(Next());
      const int64_t place = member.uniforms.back();
      if (place < 0 || static_cast<size_t>(place) >= operands_ ||
          At(place) < kDtypeBytes[static_cast<size_t>(uniform.dtype)] * uniform.count)
        return false;
    }
    for (const int64_t each : shape.leaf_bytes) {
      member.outs.push_back(Next());
      if (!Writes(member.outs.back(), each, member.scans())) return false;
    }
    call_.members.push_back(std::move(member));
    return true;
  }

  bool AtEnd() const { return next_ == places_.size(); }

 private:
  int64_t Next() { return next_ < places_.size() ? places_[next_++] : -1; }
  int64_t At(int64_t place) const { return bytes_[static_cast<size_t>(place)]; }

  // What has been made, or is given.
  bool Reads(int64_t place, int64_t bytes) const {
    return place >= 0 && static_cast<size_t>(place) < bytes_.size() && At(place) == bytes && IsMade(static_cast<size_t>(place));
  }

  bool IsMade(size_t place) const {
    if (place < operands_) return true;
    for (const size_t made : made_) {
      if (made == place) return true;
    }
    return false;
  }

  // A result, or a buffer, once.
  bool Writes(int64_t place, int64_t each, bool of_elements) {
    const auto k = static_cast<size_t>(place);
    const size_t fixed = call_.places.size();
    if (place < 0 || k < operands_ || k >= bytes_.size() || IsMade(k)) return false;
    if (k >= fixed && !of_elements) return false;
    if (k >= fixed) call_.buffers[k - fixed] = each, bytes_[k] = each * call_.n;
    made_.push_back(k);
    return At(place) == (of_elements ? each * call_.n : each);
  }

  ChainCall& call_;
  std::vector<int64_t>& bytes_;
  const size_t operands_;
  const ffi::Span<const int64_t> places_;
  size_t next_ = 0;
  std::vector<size_t> made_;
};

ffi::Error Chain(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, const ChainAttributes& attributes) {
  return Guarded([&] {
    const auto& [all_specs, keys, places, n, buffers, devices] = attributes;
    std::string_view specs = all_specs;
    if (n < 1 || n > kMostLanes || buffers < 0 || buffers > 1024) throw Wrong("a chain has other sizes than it can have");
    ChainCall call;
    std::vector<int64_t> bytes;
    call.n = n;
    auto add = [&](const ffi::AnyBuffer& buffer) {
      call.places.push_back(static_cast<char*>(buffer.untyped_data()));
      bytes.push_back(static_cast<int64_t>(buffer.size_bytes()));
    };
    for (size_t k = 0; k < args.size(); ++k) add(BufferOf(args, k));
    for (size_t k = 0; k < rets.size(); ++k) add(BufferOf(rets, k));
    call.buffers.resize(static_cast<size_t>(buffers));
    bytes.resize(bytes.size() + static_cast<size_t>(buffers));
    ChainReader reader(call, bytes, args.size(), places);
    double work = 0;
    for (const int64_t key : keys) {
      const size_t end = std::min(specs.find(kBetween), specs.size());
      const auto& entry = FindEntry<OrderedEntry>(specs.substr(0, end), key);
      specs.remove_prefix(std::min(specs.size(), end + kBetween.size()));
      const OrderedShape& shape = entry.shape;
      const bool fits = (shape.kind == "scan" || shape.kind == "reduce") && !shape.across && !shape.restarts && !shape.reverse &&
                        !shape.exclusive && shape.parts.empty();
      if (!fits || !reader.Take(shape, KernelOf(entry, 0))) throw Wrong("a chain's member has other operands or results");
      work += static_cast<double>(n) * static_cast<double>(shape.slot_bytes.size()) * static_cast<double>(shape.work);
    }
    if (!reader.AtEnd() || call.members.empty()) throw Wrong("a chain has other members");
    const Machine machine = ShareOf(pool, devices);
    XlaPool assistants{pool};
    RunChain(assistants, call, ThreadsFor(work, kScanPerThread, machine));
  });
}

}  // namespace

void* ScanChainHandler() { return HandlerFor<Chain, ChainAttributes>(); }

}  // namespace jaxprims
