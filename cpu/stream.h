// Non-temporal stores: what is written past the caches is not read into them first, which saves a third of a scan's traffic.
//
// A kernel knows only ordinary stores. It writes some KB into a staging buffer that stays in L1, and from there they are streamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace jaxprims {

// Copies; whole cache lines of `to` are written without being read.
inline void StreamOut(char* to, const char* from, size_t bytes) {
#if defined(__x86_64__)
  constexpr size_t kLine = 64;
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  if (bytes >= head + kLine) {
    std::memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    for (; bytes >= kLine; to += kLine, from += kLine, bytes -= kLine) {
      for (size_t i = 0; i < kLine; i += sizeof(__m128i)) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
      }
    }
  }
#endif
  std::memcpy(to, from, bytes);
}

// Non-temporal stores are not ordered by a release: call this before others may be told of them.
inline void StreamFence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// The staging buffers of a result's leaves.
class Staging {
 public:
  static constexpr size_t kLine = 64;

  // Memory for `elements` elements of each leaf.
  static size_t Bytes(const std::vector<int64_t>& leaf_bytes, int64_t elements) {
    size_t bytes = 0;
    for (const int64_t leaf : leaf_bytes) bytes += LeafBytes(leaf, elements);
    return bytes;
  }

  Staging(const std::vector<int64_t>& leaf_bytes, int64_t elements, char* memory) : leaf_bytes_(&leaf_bytes) {
    for (const int64_t leaf : leaf_bytes) {
      leaves_.push_back({memory, nullptr, nullptr, 0});
      memory += LeafBytes(leaf, elements);
    }
    outs_.resize(leaf_bytes.size());
  }

  // What would be written to elements [first, first + count) of `outs` is now written to elements [first, first + count) of
  // outs(), until Flush.
  void Begin(char* const* outs, int64_t first, int64_t count) {
    for (size_t k = 0; k < leaves_.size(); ++k) {
      Leaf& leaf = leaves_[k];
      leaf.to = outs[k] + first * (*leaf_bytes_)[k];
      leaf.from = leaf.memory + reinterpret_cast<uintptr_t>(leaf.to) % kLine;  // both aligned alike
      leaf.bytes = static_cast<size_t>(count * (*leaf_bytes_)[k]);
      outs_[k] = Moved(leaf.from, -first * (*leaf_bytes_)[k]);
    }
  }

  // Lets outs() point `elements` elements further on.
  void Advance(int64_t elements) {
    for (size_t k = 0; k < outs_.size(); ++k) outs_[k] = Moved(outs_[k], elements * (*leaf_bytes_)[k]);
  }

  char* const* outs() const { return outs_.data(); }

  void Flush() {
    for (const Leaf& leaf : leaves_) StreamOut(leaf.to, leaf.from, leaf.bytes);
  }

 private:
  struct Leaf {
    char *memory, *to, *from;
    size_t bytes;
  };

  static size_t LeafBytes(int64_t leaf, int64_t elements) {
    return (static_cast<size_t>(leaf * elements) + 2 * kLine - 1) / kLine * kLine;
  }
  // A pointer that may lie outside the buffer: only elements inside are written.
  static char* Moved(char* p, int64_t bytes) {
    return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(bytes));
  }

  const std::vector<int64_t>* leaf_bytes_;
  std::vector<Leaf> leaves_;
  std::vector<char*> outs_;
};

}  // namespace jaxprims
