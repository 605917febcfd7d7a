// A call of the ordered family (scan, reduction, segmented reduction) as its drivers see it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "arena.h"
#include "numbers.h"
#include "operand.h"
#include "signature.h"

namespace jaxprims {

// What the drivers have to know of a spec.
struct OrderedShape {
  std::string kind;                  // scan, reduce, segments
  std::vector<int64_t> array_bytes;  // by array: of one element; 0: the element's position, and so no operand
  int64_t uniforms = 0;
  std::vector<int64_t> leaf_bytes;  // of one element of the result, by leaf
  std::vector<int64_t> leaf_slots;
  std::vector<int64_t> slot_bytes;  // of the state
  // Of large elements: scalars and bytes of a state's parts. Each starts at the next multiple of 64 bytes, a lane's behind those
  // of the lane before; its slots are words of 8 bytes.
  std::vector<std::pair<int64_t, int64_t>> parts;
  bool across = false, restarts = false, exclusive = false, reverse = false, identity = false, commutes = false;
  bool folds_rows = false;    // a reduction on CPUs whose kernel takes many rows, however long, at once
  bool folds_spaced = false;  // and wherever they lie
  bool map = false;           // a scan whose operator keeps its second operand
  int64_t together = 1;       // of a map: elements that its kernel makes at once
  int64_t work = 1;           // what a slot of an element costs, in that of a sum
  Signature signature;
};

// A leaf of init: [*batch, lanes, slots].
struct OrderedInit {
  Operand operand;
  int64_t slots = 1;
};

struct OrderedCall {
  Arena<2048> arena;
  int64_t n = 0;                      // elements of a row
  int64_t lanes = 1;                  // rows side by side: the size of the inner axes
  List<int64_t> batch{arena.get()};   // sizes of the batch axes
  List<Operand> arrays{arena.get()};  // of positions: null
  Operand flags;                      // null without restarts
  List<Operand> uniforms{arena.get()};
  List<OrderedInit> init{arena.get()};  // empty if there is none
  List<Operand> outs{arena.get()};      // by leaf
  bool empty = false;                   // results have no elements: nothing is to be done, nor are other sizes real

  int64_t rows() const { return Product(batch); }  // or, across, bundles of `lanes` rows
};

// Where the segments of a call are; call.flags is the operand: offsets [*batch, count + 1], or ids [*batch, N].
struct Segments {
  int64_t count = 0;
  bool ids = false;
  bool wide = false;  // 64 bits
};

}  // namespace jaxprims
