// A call of the walk family as its driver sees it: each element meets the state of its bin, one after the other.
#pragma once

#include <cstdint>
#include <vector>

#include "arena.h"
#include "operand.h"
#include "signature.h"

namespace jaxprims {

// What the driver has to know of a spec (jaxprims/specs/walk.py).
struct WalkShape {
  bool index64 = false;
  int64_t entry_bytes = 1;            // of a bin's state in a table: a struct of slots
  std::vector<int64_t> slot_offsets;  // in it, one after the other
  std::vector<int64_t> slot_bytes;
  std::vector<int64_t> state_slots;  // of each leaf of the state
  Signature signature;
};

struct WalkCall {
  Arena<2048> arena;
  List<int64_t> batch{arena.get()};
  int64_t n = 0, bins = 0, parts = 1, copies = 1;
  Operand index;
  List<Operand> arrays{arena.get()}, uniforms{arena.get()}, starts{arena.get()};  // starts: the state's leaves
  List<Operand> outs{arena.get()}, ends{arena.get()};
};

}  // namespace jaxprims
