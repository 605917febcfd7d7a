// Batches of two axes and random sizes, for the tests of every driver.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "operand.h"

namespace jaxprims::test {

// Two batch axes of sizes `batch`; masks tell which of them an operand has (bit 0: the first), as in the handlers.
struct Batch {
  std::vector<int64_t> batch = {1, 1};

  int64_t Members(int mask) const { return (mask & 1 ? batch[0] : 1) * (mask & 2 ? batch[1] : 1); }
  // Which of an operand's members belongs to member m of the batch.
  int64_t Member(int mask, int64_t m) const {
    return (mask & 1 ? m / batch[1] : 0) * (mask & 2 ? batch[1] : 1) + (mask & 2 ? m % batch[1] : 0);
  }
  // An operand whose members are of so many bytes.
  Operand At(const void* data, int mask, int64_t bytes) const {
    Operand operand;
    operand.data = static_cast<char*>(const_cast<void*>(data));
    if (mask & 1) operand.strides[0] = (mask & 2 ? batch[1] : 1) * bytes;
    if (mask & 2) operand.strides[1] = bytes;
    return operand;
  }
};

// Sizes spread over all orders of magnitude, 0 among them.
template <class Random>
int64_t Size(Random& random, int max_log) {
  return static_cast<int64_t>(random() >> (64 - std::uniform_int_distribution<int>(1, max_log)(random)));
}

}  // namespace jaxprims::test
