// A call of the histogram as its drivers see it.
#pragma once

#include <cstdint>
#include <vector>

#include "arena.h"
#include "operand.h"
#include "signature.h"

namespace jaxprims {

// What the driver has to know of a spec.
struct HistShape {
  struct Bins {
    std::vector<int64_t> leaf_bytes;  // of one bin in each leaf of the result
    int64_t entry_bytes = 0;          // of one bin in a subhistogram
    int64_t lanes = 1;
    int64_t updates = 1;
    int64_t slots = 1;
    bool dest = false;
    bool identity = true;
    bool in_place = true;
  };
  std::vector<Bins> bins;
  std::vector<bool> positions;  // for each array: is it the element's position, and so no operand?
  bool index64 = false;
  bool map = false;      // each element's value replaces what is in the bin of its position
  bool chooses = false;  // an operator gives one of its arguments, whole
  int64_t work = 0;      // what an element costs beside updates by a cheap operator, in these
  Signature signature;
};

struct HistCall {
  Arena<2048> arena;
  int64_t elements = 0;
  List<int64_t> batch{arena.get()};   // sizes of the batch axes
  List<Operand> arrays{arena.get()};  // position arrays are left out: null
  List<Operand> uniforms{arena.get()};
  List<Operand> dests{arena.get()}, outs{arena.get()};  // by leaf, all histograms in a row
  List<int64_t> bins{arena.get()};                      // H, by histogram
  int sorted_array = -1;                                // the array of sorted indices, if there is one
  int sorted_bytes = 4;                                 // and the size of an index
  bool empty = false;  // results have no elements: nothing is to be done, nor are other sizes real
};

}  // namespace jaxprims
