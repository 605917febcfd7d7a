// Who may see what: finds plain accesses of two blocks to one place, of which one writes, with nothing that orders them.
//
// The memory model of fences, releases and acquires between blocks, with vector clocks. A block counts as one thread: what its
// threads tell each other is taken for granted, so that a missing barrier is not found here.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "thread.h"

namespace emulation {

class MemoryOrder {
 public:
  struct Access {
    int64_t block = -1;
    uint32_t time = 0;
    const void* from = nullptr;
  };

  // Null, or an access of another block that this one is not ordered with.
  const Access* Plain(int64_t block, const void* p, int bytes, bool write, const void* from) {
    const Known& me = blocks_[block];
    const auto first = reinterpret_cast<uintptr_t>(p);
    for (uintptr_t at = first; at < first + static_cast<uintptr_t>(bytes); ++at) {
      Byte& byte = ByteAt(at);
      if (!Knows(me, block, byte.written)) return &byte.written;
      if (write && !Knows(me, block, byte.read)) return &byte.read;
      (write ? byte.written : byte.read) = {block, me.time, from};
    }
    return nullptr;
  }

  const Access* Ordered(int64_t block, const void* p, int bytes, Order order) {
    Known& me = blocks_[block];
    const auto first = reinterpret_cast<uintptr_t>(p);
    for (uintptr_t at = first; at < first + static_cast<uintptr_t>(bytes); ++at) {
      const Byte& byte = ByteAt(at);
      if (!Knows(me, block, byte.written)) return &byte.written;
      if (order >= Order::kRelaxedStore && !Knows(me, block, byte.read)) return &byte.read;
    }
    Clock& told = told_[first];
    if (order == Order::kAcquireLoad) Join(me.seen, told);
    if (order == Order::kRelaxedLoad || order == Order::kUpdate) Join(me.pending, told);
    if (order == Order::kRelaxedStore) told = me.fenced;
    if (order == Order::kUpdate) Join(told, me.fenced);
    if (order == Order::kReleaseStore) told = Tell(block);
    return nullptr;
  }

  void Fence(int64_t block) {
    Known& me = blocks_[block];
    Join(me.seen, me.pending);
    me.fenced = Tell(block);
  }

  // What each of them has seen or done, all know.
  void Meet(const std::vector<int64_t>& blocks) {
    if (blocks_.empty()) return;  // nobody reports accesses
    Clock all;
    for (const int64_t b : blocks) Join(all, Tell(b));
    for (const int64_t b : blocks) Join(blocks_[b].seen, all);
  }

 private:
  static constexpr uintptr_t kLine = 16;
  using Clock = std::vector<uint32_t>;  // of blocks, those that are missing are 0
  struct Byte {
    Access written, read;
  };
  struct Known {
    uint32_t time = 1;
    Clock seen, fenced, pending;
  };

  static void Join(Clock& to, const Clock& from) {
    if (to.size() < from.size()) to.resize(from.size());
    for (size_t k = 0; k < from.size(); ++k) to[k] = std::max(to[k], from[k]);
  }
  Clock Tell(int64_t block) {
    Known& me = blocks_[block];
    Clock clock = me.seen;
    if (clock.size() <= static_cast<size_t>(block)) clock.resize(static_cast<size_t>(block) + 1);
    clock[static_cast<size_t>(block)] = me.time++;
    return clock;
  }
  static bool Knows(const Known& me, int64_t block, const Access& access) {
    const auto other = static_cast<size_t>(access.block);
    return access.block < 0 || access.block == block || (other < me.seen.size() && me.seen[other] >= access.time);
  }
  Byte& ByteAt(uintptr_t at) {
    if (last_ == nullptr || at / kLine != last_number_) {
      last_number_ = at / kLine;
      last_ = &bytes_[last_number_];
    }
    return (*last_)[at % kLine];
  }

  std::unordered_map<uintptr_t, std::array<Byte, kLine>> bytes_;
  std::array<Byte, kLine>* last_ = nullptr;
  uintptr_t last_number_ = 0;
  std::unordered_map<uintptr_t, Clock> told_;
  std::unordered_map<int64_t, Known> blocks_;
};

}  // namespace emulation
