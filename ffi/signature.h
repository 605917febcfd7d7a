// What a spec says of its calls' operands and results (jaxprims/specs/described.py makes it). The handlers compare it with every
// call before they touch memory: an executable that was serialized may have been edited or damaged since.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace jaxprims {

// Types of scalars; kNone is none that kernels know.
enum class Dtype : uint8_t { kNone, kB1, kS8, kS16, kS32, kS64, kU8, kU16, kU32, kU64, kF16, kBf16, kF32, kF64 };

// As specs name them, by number.
inline constexpr std::array<std::string_view, 14> kDtypeNames = {"no scalars", "b1",  "s8",  "s16", "s32",  "s64", "u8",
                                                                 "u16",        "u32", "u64", "f16", "bf16", "f32", "f64"};

inline constexpr std::array<int64_t, 14> kDtypeBytes = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8};

inline Dtype DtypeOf(std::string_view name) {
  for (size_t k = 1; k < kDtypeNames.size(); ++k) {
    if (kDtypeNames[k] == name) return static_cast<Dtype>(k);
  }
  throw std::invalid_argument("unknown dtype " + std::string(name));
}

// So many scalars of one type: an element's, or, of a captured array, those that are read at most.
struct Scalars {
  Dtype dtype = Dtype::kNone;
  int64_t count = 0;
};

struct Signature {
  std::vector<Scalars> arrays;  // those that are operands: no positions
  std::vector<Scalars> uniforms;
  std::vector<Scalars> leaves;  // results
  std::vector<Dtype> state;     // what init's leaves are one after the other
};

}  // namespace jaxprims
