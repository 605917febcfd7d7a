// What Python describes of a spec (jaxprims/specs/described.py), read into what drivers have to know of it. For every platform.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "hist_call.h"
#include "ordered_call.h"
#include "signature.h"
#include "stencil_call.h"
#include "walk_call.h"

namespace jaxprims {

// Values by name, into as many variables.
template <class T, class... More>
void Get(const nanobind::handle& described, const char* name, T& value, More&&... more) {
  value = nanobind::cast<T>(described[name]);
  if constexpr (sizeof...(more) > 0) Get(described, more...);
}

// call() calls Python, with the GIL; a ValueError, of a spec that is none, is thrown as std::invalid_argument.
template <class F>
auto Told(F call) {
  try {
    return call();
  } catch (const nanobind::python_error& e) {
    if (!e.matches(PyExc_ValueError)) throw;
    throw std::invalid_argument(nanobind::str(e.value()).c_str());
  }
}

inline Signature SignatureOf(const nanobind::handle& described) {
  Signature signature;
  auto scalars = [&](const char* name, std::vector<Scalars>& to) {
    std::vector<std::pair<std::string, int64_t>> rows;
    Get(described, name, rows);
    for (const auto& [dtype, count] : rows) to.push_back({DtypeOf(dtype), count});
  };
  scalars("arrays", signature.arrays);
  scalars("uniforms", signature.uniforms);
  scalars("leaves", signature.leaves);
  std::vector<std::string> state;
  Get(described, "state", state);
  for (const std::string& dtype : state) signature.state.push_back(DtypeOf(dtype));
  return signature;
}

inline void GetShape(const nanobind::dict& described, OrderedShape& shape) {
  Get(described, "kind", shape.kind, "array_bytes", shape.array_bytes, "uniforms", shape.uniforms, "leaf_bytes", shape.leaf_bytes,
      "leaf_slots", shape.leaf_slots, "slot_bytes", shape.slot_bytes, "parts", shape.parts, "across", shape.across, "restarts",
      shape.restarts, "exclusive", shape.exclusive, "reverse", shape.reverse, "identity", shape.identity, "commutes",
      shape.commutes, "map", shape.map, "together", shape.together, "work", shape.work);
  if (described.contains("folds_rows")) Get(described, "folds_rows", shape.folds_rows, "folds_spaced", shape.folds_spaced);
  shape.signature = SignatureOf(described["signature"]);
}

inline void GetShape(const nanobind::handle& described, HistShape& shape) {
  Get(described, "positions", shape.positions, "index64", shape.index64, "map", shape.map, "chooses", shape.chooses, "work",
      shape.work);
  shape.signature = SignatureOf(described["signature"]);
  for (nanobind::handle part : described["parts"]) {
    HistShape::Bins& bins = shape.bins.emplace_back();
    Get(part, "leaf_bytes", bins.leaf_bytes, "entry_bytes", bins.entry_bytes, "lanes", bins.lanes, "updates", bins.updates,
        "slots", bins.slots, "dest", bins.dest, "identity", bins.identity, "in_place", bins.in_place);
  }
}

inline void GetShape(const nanobind::handle& described, StencilShape& shape) {
  Get(described, "rank", shape.rank, "unit", shape.unit, "width", shape.width, "work", shape.work, "array_bytes",
      shape.array_bytes, "leaf_bytes", shape.leaf_bytes, "coordinates", shape.coordinates, "may_not_end", shape.may_not_end);
  std::vector<std::pair<int64_t, std::vector<int64_t>>> rows;
  Get(described, "rows", rows);
  for (auto& [array, offset] : rows) shape.rows.push_back({array, std::move(offset)});
  std::vector<std::pair<int64_t, int64_t>> reads;
  Get(described, "reads", reads);
  for (const auto& [row, offset] : reads) shape.reads.push_back({row, offset});
  shape.signature = SignatureOf(described["signature"]);
}

inline void GetShape(const nanobind::handle& described, WalkShape& shape) {
  Get(described, "index64", shape.index64, "entry_bytes", shape.entry_bytes, "slot_offsets", shape.slot_offsets, "slot_bytes",
      shape.slot_bytes, "state_slots", shape.state_slots);
  shape.signature = SignatureOf(described["signature"]);
}

}  // namespace jaxprims
