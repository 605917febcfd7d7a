// Scans of the same elements one after the other, and reductions of what they make, in one pass over memory.
//
// A row is cut into blocks as by scan.h, each scan with descriptors of its own. A thread takes a block through all members, one
// after the other: what one makes for the others alone lies in buffers of the thread's, which stay in its cache, and is never
// written to memory. A reduction leaves each block's aggregate; at the end neighbours are combined, pair by
// pair.
//
// The same bits always, as with scan.h: how elements are associated depends on the block's length alone, that on sizes.
//
// No deadlock. A thread waits for an earlier block's descriptor alone, of the same scan. Blocks are claimed in their order, and
// the first one waits for nobody; so the earliest block that is not finished goes on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "numbers.h"
#include "scan.h"

namespace jaxprims {

// A scan or a reduction, and which place each of its arrays (-1: positions), captured arrays and results is.
struct ChainMember {
  const OrderedShape* shape = nullptr;
  const OrderedKernel* kernel = nullptr;
  std::vector<int64_t> arrays, uniforms, outs;

  bool scans() const { return shape->kind == "scan"; }
};

// Places: what operands and results are, by number, and behind them buffers, of so many bytes an element.
struct ChainCall {
  int64_t n = 0;
  std::vector<char*> places;
  std::vector<int64_t> buffers;
  std::vector<ChainMember> members;
};

inline constexpr int64_t kChainBytes = 64 << 10;  // of a thread's buffers: half of it costs a tenth, and so does twice

// Elements of a block: a function of sizes alone.
inline int64_t ChainBlock(const ChainCall& call) {
  const int64_t most = std::max<int64_t>(1, kChainBytes / std::max<int64_t>(1, Sum(call.buffers)) / kScanStep);
  return std::clamp<int64_t>(call.n / (kScanBlocks * kScanStep), 1, most) * kScanStep;
}

namespace internal {

// A thread's way through the members at a block.
class ChainWorker {
 public:
  ChainWorker(const ChainCall& call, int64_t block, char* states, int64_t state_bytes, char* buffers)
      : call_(call), state_{states, states + state_bytes}, buffers_(call.buffers.size()) {
    range_.n = call.n;
    for (size_t k = 0; k < buffers_.size(); buffers += BufferBytes(call, k++, block)) buffers_[k] = buffers;
    for (const ChainMember& m : call.members) {
      arrays_.resize(std::max(arrays_.size(), m.arrays.size()));
      uniforms_.resize(std::max(uniforms_.size(), m.uniforms.size()));
      outs_.resize(std::max(outs_.size(), m.outs.size()));
    }
  }

  static int64_t BufferBytes(const ChainCall& call, size_t k, int64_t block) {
    return RoundUp(call.buffers[k] * block, kCacheLine);
  }

  // A member, at the block that begins with element lo: buffers hold nothing before.
  void Select(const ChainMember& member, int64_t lo) {
    member_ = &member;
    for (size_t k = 0; k < member.arrays.size(); ++k) arrays_[k] = At(member.arrays[k], lo);
    for (size_t k = 0; k < member.uniforms.size(); ++k) uniforms_[k] = At(member.uniforms[k], lo);
    for (size_t k = 0; k < member.outs.size(); ++k) outs_[k] = At(member.outs[k], lo);
  }

  static int64_t InitInto(char* /*state*/) { return 0; }

  int64_t Scan(int64_t lo, int64_t hi, const void* prefix, void* aggregate, int64_t progress) {
    range_.lo = lo, range_.hi = hi;
    return member_->kernel->scan(arrays_.data(), uniforms_.data(), outs_.data(), nullptr, &range_, prefix, aggregate, progress);
  }

  int64_t Reduce(int64_t lo, int64_t hi, void* aggregate) {
    range_.lo = lo, range_.hi = hi;
    return member_->kernel->reduce(arrays_.data(), uniforms_.data(), nullptr, &range_, aggregate, 0);
  }

  void Combine(const void* a, const void* b, void* out) const { member_->kernel->combine(uniforms_.data(), a, b, out, 1); }

  // Of a reduction.
  void Finish(const void* state) { member_->kernel->finish(uniforms_.data(), state, outs_.data(), 1); }

  char* state(int k) const { return state_[k]; }

  static char* Unwanted(char* aggregate) { return aggregate; }

 private:
  void* At(int64_t place, int64_t lo) const {
    if (place < 0) return nullptr;
    const auto k = static_cast<size_t>(place);
    if (k < call_.places.size()) return call_.places[k];
    const size_t buffer = k - call_.places.size();
    const uintptr_t first = reinterpret_cast<uintptr_t>(buffers_[buffer]) - static_cast<uintptr_t>(lo * call_.buffers[buffer]);
    return reinterpret_cast<void*>(first);  // NOLINT(performance-no-int-to-ptr): where element 0 would lie, in no array
  }

  const ChainCall& call_;
  const ChainMember* member_ = nullptr;
  OrderedRange range_;
  char* state_[2];
  std::vector<char*> buffers_;
  std::vector<const void*> arrays_, uniforms_;
  std::vector<void*> outs_;
};

}  // namespace internal

template <class Pool>
void RunChain(Pool& pool, const ChainCall& call, int threads) {
  const int64_t block = ChainBlock(call), blocks = CeilDiv(call.n, block);
  int64_t largest = 0, buffers = 0, described = 0;
  std::vector<int64_t> starts;  // of each member's descriptors
  for (const ChainMember& m : call.members) {
    const int64_t bytes = StateBytes(*m.shape, 1);
    largest = std::max(largest, bytes);
    starts.push_back(described);
    described += blocks * DescriptorBytes(bytes);
  }
  for (size_t k = 0; k < call.buffers.size(); ++k) buffers += internal::ChainWorker::BufferBytes(call, k, block);
  const int64_t worker_bytes = 2 * largest + buffers;
  const Workspace workspace(static_cast<size_t>(described + threads * worker_bytes));
  auto chain_of = [&](size_t m) {
    return internal::ScanChain(workspace.data() + starts[m], StateBytes(*call.members[m].shape, 1));
  };
  for (size_t m = 0; m < call.members.size(); ++m) chain_of(m).Clear(blocks);
  std::vector<internal::ChainWorker> workers;
  workers.reserve(static_cast<size_t>(threads));
  for (int w = 0; w < threads; ++w) {
    char* memory = workspace.data() + described + w * worker_bytes;
    workers.emplace_back(call, block, memory, largest, memory + 2 * largest);
  }
  WorkAssist(pool, blocks, threads, [&](int64_t task, int w) {
    internal::ChainWorker& worker = workers[static_cast<size_t>(w)];
    for (size_t m = 0; m < call.members.size(); ++m) {
      const ChainMember& member = call.members[m];
      worker.Select(member, task * block);
      if (member.scans()) {
        internal::ScanBlock(worker, chain_of(m), call.n, block, task, StateBytes(*member.shape, 1));
      } else {
        worker.Reduce(task * block, std::min(call.n, (task + 1) * block), chain_of(m).aggregate(task));
      }
    }
  });
  for (size_t m = 0; m < call.members.size(); ++m) {
    if (call.members[m].scans()) continue;
    const internal::ScanChain chain = chain_of(m);
    workers[0].Select(call.members[m], 0);
    for (int64_t apart = 1; apart < blocks; apart *= 2) {  // neighbours, as in reduce.h: errors grow with the number of levels
      for (int64_t b = 0; b + apart < blocks; b += 2 * apart) {
        workers[0].Combine(chain.aggregate(b), chain.aggregate(b + apart), chain.aggregate(b));
      }
    }
    workers[0].Finish(chain.aggregate(0));
  }
}

}  // namespace jaxprims
