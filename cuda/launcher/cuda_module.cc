// What Python sees of the CUDA half.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda_handlers.h"
#include "described.h"
#include "driver.h"
#include "families.h"
#include "launch.h"
#include "rehearsal.h"
#include "shapes.h"

namespace nb = nanobind;

namespace jaxprims::cuda {
namespace {

void GetShape(const nb::dict& described, CudaOrderedShape& shape) {
  jaxprims::GetShape(described, shape);
  Get(described, "state_bytes", shape.state_bytes);
}

void GetShape(const nb::dict& described, CudaHistShape& shape) {
  jaxprims::GetShape(described, shape.shape);
  Get(described, "in_bytes", shape.in_bytes, "f_length", shape.f_length);
  for (nb::handle h : described["parts"]) {
    CudaHistShape::Part& part = shape.parts.emplace_back();
    Get(h, "table_bytes", part.entry_bytes, "atomic", part.atomic, "direct", part.direct, "cluster_trips", part.cluster_trips,
        "slot_bytes", part.slot_bytes);
  }
}

void GetShape(const nb::dict& described, CudaStencilShape& shape) {
  jaxprims::GetShape(described, shape);
  Get(described, "column", shape.column, "resident", shape.resident, "loads", shape.loads, "alike", shape.alike);
}

template <class Shape>
Shape ShapeOf(const nb::dict& described) {
  Shape shape;
  GetShape(described, shape);
  return shape;
}

// jaxprims.targets.cuda.compiler.function(spec, arch, ...). With the GIL.
template <class... More>
nb::object Python(const char* function, const std::string& spec, const DeviceInfo& device, const More&... more) {
  const std::string arch = "sm_" + std::to_string(device.major) + std::to_string(device.minor);
  return Told(
      [&]() -> nb::object { return nb::module_::import_("jaxprims.targets.cuda.compiler").attr(function)(spec, arch, more...); });
}

nb::dict Described(const std::string& spec, const DeviceInfo& device, int64_t key) {
  auto described = nb::cast<nb::dict>(Python("describe", spec, device));
  if (nb::cast<int64_t>(described["key"]) != key) throw std::invalid_argument("the key is not the spec's");
  return described;
}

CUdevice DeviceAt(const Driver& driver, int ordinal) {
  CUdevice device = 0;
  driver.Check(driver.cuDeviceGet(&device, ordinal), "cuDeviceGet");
  return device;
}

using Bytes = std::tuple<int64_t, int64_t, int64_t>;

Bytes BytesOf(const Workspace& workspace) { return {workspace.base, workspace.per, workspace.every}; }

}  // namespace

template <class Shape>
Shape SpecCompiler<Shape>::Describe(const std::string& spec, const DeviceInfo& device) const {
  nb::gil_scoped_acquire gil;
  return ShapeOf<Shape>(Described(spec, device, key));
}

template <class Shape>
std::string SpecCompiler<Shape>::Image(const std::string& spec, const DeviceInfo& device, const std::string& kernel) const {
  nb::gil_scoped_acquire gil;
  const auto image = nb::cast<nb::bytes>(Python("image", spec, device, kernel));
  return {image.c_str(), image.size()};
}

template struct SpecCompiler<CudaHistShape>;
template struct SpecCompiler<CudaOrderedShape>;
template struct SpecCompiler<CudaStencilShape>;

namespace {

RehearsedCall OrderedSizes(const nb::dict& sizes) {
  RehearsedCall call;
  Get(sizes, "n", call.n, "lanes", call.lanes, "members", call.members, "init", call.init, "contiguous", call.contiguous, "ids",
      call.segments.ids, "segments", call.segments.count);
  return call;
}

struct HistSizes {
  explicit HistSizes(const nb::dict& sizes) { Get(sizes, "n", n, "bins", bins, "members", members); }
  int64_t n = 0, members = 1;
  std::vector<int64_t> bins;
};

RehearsedStencil StencilSizes(const nb::dict& sizes) {
  RehearsedStencil call;
  Get(sizes, "size", call.size, "wraps", call.wraps, "members", call.members, "steps", call.steps);
  return call;
}

Bytes WorkspaceOf(const std::string& family, const nb::dict& described, const nb::dict& sizes,
                  const std::vector<DeviceInfo>& devices, const std::vector<int64_t>& plan) {
  if (family == "histogram") {
    const HistSizes of(sizes);
    return BytesOf(HistWorkspace(ShapeOf<CudaHistShape>(described), of.n, of.bins, of.members, devices, plan));
  }
  const RehearsedCall of = OrderedSizes(sizes);
  return BytesOf(OrderedWorkspace(ShapeOf<CudaOrderedShape>(described), of));
}

std::vector<std::pair<std::string, int64_t>> ExplainedBy(const std::string& family, const nb::dict& described,
                                                         const DeviceInfo& device, const nb::dict& sizes,
                                                         const std::vector<int64_t>& plan) {
  if (family == "histogram") {
    const HistSizes of(sizes);
    return ExplainHist(ShapeOf<CudaHistShape>(described), device, of.n, of.bins, of.members, plan);
  }
  if (family == "stencil") {
    const CudaStencilShape shape = ShapeOf<CudaStencilShape>(described);
    return ExplainStencil(shape, device, StencilCallOf(shape, StencilSizes(sizes)), plan);
  }
  const CudaOrderedShape shape = ShapeOf<CudaOrderedShape>(described);
  const RehearsedCall of = OrderedSizes(sizes);
  if (family == "scan") return ExplainScan(shape, device, of.n, of.lanes, of.members, plan);
  if (family == "reduce") return ExplainReduce(shape, device, of.n, of.lanes, of.members, plan);
  return ExplainSegments(shape, device, of.n, of.lanes, of.members, of.segments.ids, of.segments.count, plan);
}

std::vector<std::string> KernelsOf(const std::string& family, const nb::dict& described, const DeviceInfo& device,
                                   const nb::dict& sizes, const std::vector<int64_t>& plan) {
  if (family == "histogram") {
    const HistSizes of(sizes);
    return RehearseHist(ShapeOf<CudaHistShape>(described), device, of.n, of.bins, of.members, plan);
  }
  if (family == "stencil") return RehearseStencil(ShapeOf<CudaStencilShape>(described), device, StencilSizes(sizes), plan);
  return RehearseOrdered(ShapeOf<CudaOrderedShape>(described), device, OrderedSizes(sizes), plan);
}

}  // namespace

NB_MODULE(_cuda, m) {
  m.doc() = "The CUDA half of jaxprims: the FFI handlers, the kernels loaded for devices, how they are launched.";
  m.def(
      "handlers",
      [](const std::string& family) {
        const Handlers handlers = HandlersOf(family);
        nb::dict named;
        named["initialize"] = nb::capsule(handlers.initialize);
        named["execute"] = nb::capsule(handlers.execute);
        return named;
      },
      nb::arg("family"), "A family's handlers, as capsules, by XLA's names of their stages.");
  m.def(
      "host_handler", [](const std::string& family) { return nb::capsule(HandlersOf(family).on_host); }, nb::arg("family"),
      "The handler for XLA's CPU client, which has no streams.");

  nb::class_<DeviceInfo>(m, "DeviceInfo")
      .def(
          "__init__",
          [](DeviceInfo* self, int ordinal, int multiprocessors, int threads_per_multiprocessor, int blocks_per_multiprocessor,
             int64_t shared_per_block, int64_t shared_per_multiprocessor, int64_t l2_bytes, int major, int minor,
             const std::string& name) {
            new (self) DeviceInfo{ordinal,
                                  multiprocessors,
                                  threads_per_multiprocessor,
                                  blocks_per_multiprocessor,
                                  shared_per_block,
                                  shared_per_multiprocessor,
                                  l2_bytes,
                                  major,
                                  minor,
                                  name};
          },
          nb::kw_only(), nb::arg("ordinal") = 0, nb::arg("multiprocessors"), nb::arg("threads_per_multiprocessor"),
          nb::arg("blocks_per_multiprocessor"), nb::arg("shared_per_block"), nb::arg("shared_per_multiprocessor"),
          nb::arg("l2_bytes"), nb::arg("major"), nb::arg("minor"), nb::arg("name") = "")
      .def_rw("ordinal", &DeviceInfo::ordinal)
      .def_rw("name", &DeviceInfo::name)
      .def_rw("multiprocessors", &DeviceInfo::multiprocessors)
      .def_rw("threads_per_multiprocessor", &DeviceInfo::threads_per_multiprocessor)
      .def_rw("blocks_per_multiprocessor", &DeviceInfo::blocks_per_multiprocessor)
      .def_rw("shared_per_block", &DeviceInfo::shared_per_block)
      .def_rw("shared_per_multiprocessor", &DeviceInfo::shared_per_multiprocessor)
      .def_rw("l2_bytes", &DeviceInfo::l2_bytes)
      .def_rw("major", &DeviceInfo::major)
      .def_rw("minor", &DeviceInfo::minor);
  m.def("driver_error", &DriverError, "Why there is no CUDA driver; empty if there is one.");
  m.def(
      "device_count",
      [] {
        if (!DriverError().empty()) return 0;
        int count = 0;
        const Driver& driver = OpenDriver();
        driver.Check(driver.cuDeviceGetCount(&count), "cuDeviceGetCount");
        return count;
      },
      "0 where there is no driver.");
  m.def("available", [] {
    int count = 0;
    return DriverError().empty() && OpenDriver().cuDeviceGetCount(&count) == 0 && count > 0;
  });
  m.def(
      "device",
      [](int ordinal) {
        const Driver& driver = OpenDriver();
        return DescribeDevice(driver, DeviceAt(driver, ordinal));
      },
      nb::arg("ordinal") = 0);

  nb::class_<KernelInfo>(m, "KernelInfo")
      .def_ro("registers", &KernelInfo::registers)
      .def_ro("max_threads", &KernelInfo::max_threads)
      .def_ro("local_bytes", &KernelInfo::local_bytes)
      .def_ro("static_shared_bytes", &KernelInfo::static_shared_bytes);
  m.def(
      "kernel_info",
      [](const std::string& text, int64_t key, int ordinal) {
        const nb::gil_scoped_release no_gil;  // whoever compiles a kernel holds its lock and waits for the GIL
        const CUdevice device = DeviceAt(OpenDriver(), ordinal);
        auto describe = [&](auto& table) {
          auto* known = table.Known(key, text, device);
          return known == nullptr ? std::map<std::string, KernelInfo>{} : known->library.Describe();
        };
        if (IsHistogram(text)) return describe(LibraryTable<CudaHistShape>::Instance());
        return IsStencil(text) ? describe(LibraryTable<CudaStencilShape>::Instance())
                               : describe(LibraryTable<CudaOrderedShape>::Instance());
      },
      nb::arg("text"), nb::arg("key"), nb::arg("ordinal") = 0,
      "By name, a spec's kernels that are loaded, as the driver sees them.");

  m.def(
      "workspace", &WorkspaceOf, nb::arg("family"), nb::arg("described"), nb::arg("sizes"), nb::arg("devices"), nb::arg("plan"),
      "For the lowering: (base, per, every), so that each member of the batch has base + per * (n // every + 1) bytes. A size of "
      "-1 is not known.");
  m.def("explain", &ExplainedBy, nb::arg("family"), nb::arg("described"), nb::arg("device"), nb::arg("sizes"), nb::arg("plan"),
        "The numbers of the plan that a device would follow, by name.");
  m.def("kernels", &KernelsOf, nb::arg("family"), nb::arg("described"), nb::arg("device"), nb::arg("sizes"), nb::arg("plan"),
        "The kernels that a call may launch, found by launching them without a device.");
}

}  // namespace jaxprims::cuda
