// NumPy arrays as the works take and give them.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

namespace bench {

namespace py = pybind11;

template <class T>
using Array = py::array_t<T, py::array::c_style>;

template <class T, class... Dim>
Array<T> empty(Dim... dim) {
  return Array<T>(std::vector<py::ssize_t>{static_cast<py::ssize_t>(dim)...});
}

// Each adds the functions of its file to the module.
void add_programs(py::module_& m);
void add_scans(py::module_& m);
void add_reductions(py::module_& m);
void add_segments(py::module_& m);
void add_stencils(py::module_& m);
void add_memory(py::module_& m);

}  // namespace bench
