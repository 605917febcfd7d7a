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

CudaOrderedShape OrderedShapeOf(const nb::dict& described) {
  CudaOrderedShape shape;
  GetShape(described, shape);
  Get(described, "state_bytes", shape.state_bytes);
  return shape;
}

CudaHistShape HistShapeOf(const nb::dict& described) {
  CudaHistShape shape;
  GetShape(described, shape.shape);
  Get(described, "in_bytes", shape.in_bytes);
  Get(described, "f_length", shape.f_length);
  for (nb::handle h : described["parts"]) {
    CudaHistShape::Part& part = shape.parts.emplace_back();
    Get(h, "table_bytes", part.entry_bytes);
    Get(h, "atomic", part.atomic);
    Get(h, "direct", part.direct);
    Get(h, "cluster_trips", part.cluster_trips);
    Get(h, "slot_bytes", part.slot_bytes);
  }
  return shape;
}

CudaStencilShape StencilShapeOf(const nb::dict& described) {
  CudaStencilShape shape;
  GetShape(described, shape);
  Get(described, "column", shape.column);
  Get(described, "resident", shape.resident);
  Get(described, "loads", shape.loads);
  Get(described, "alike", shape.alike);
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

std::string ImageOf(const std::string& spec, const DeviceInfo& device, const std::string& kernel) {
  nb::gil_scoped_acquire gil;
  const auto image = nb::cast<nb::bytes>(Python("image", spec, device, kernel));
  return {image.c_str(), image.size()};
}

CUdevice DeviceAt(const Driver& driver, int ordinal) {
  CUdevice device = 0;
  driver.Check(driver.cuDeviceGet(&device, ordinal), "cuDeviceGet");
  return device;
}

using Bytes = std::tuple<int64_t, int64_t, int64_t>;

Bytes BytesOf(const Workspace& workspace) { return {workspace.base, workspace.per, workspace.every}; }

}  // namespace

CudaHistShape HistCompiler::Describe(const std::string& spec, const DeviceInfo& device) const {
  nb::gil_scoped_acquire gil;
  return HistShapeOf(Described(spec, device, key));
}

std::string HistCompiler::Image(const std::string& spec, const DeviceInfo& device, const std::string& kernel) const {
  return ImageOf(spec, device, kernel);
}

CudaOrderedShape OrderedCompiler::Describe(const std::string& spec, const DeviceInfo& device) const {
  nb::gil_scoped_acquire gil;
  return OrderedShapeOf(Described(spec, device, key));
}

std::string OrderedCompiler::Image(const std::string& spec, const DeviceInfo& device, const std::string& kernel) const {
  return ImageOf(spec, device, kernel);
}

CudaStencilShape StencilCompiler::Describe(const std::string& spec, const DeviceInfo& device) const {
  nb::gil_scoped_acquire gil;
  return StencilShapeOf(Described(spec, device, key));
}

std::string StencilCompiler::Image(const std::string& spec, const DeviceInfo& device, const std::string& kernel) const {
  return ImageOf(spec, device, kernel);
}

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

  // For the lowering: (base, per, every), so that each member of the batch has base + per * (n // every + 1) bytes.
  m.def(
      "scan_workspace",
      [](const nb::dict& described, int64_t n, int64_t lanes, int64_t members) {
        return BytesOf(ScanWorkspace(OrderedShapeOf(described), n, lanes, members));
      },
      nb::arg("described"), nb::arg("n"), nb::arg("lanes"), nb::arg("members"));
  m.def(
      "reduce_workspace",
      [](const nb::dict& described, int64_t n, int64_t lanes, int64_t members) {
        return BytesOf(ReduceWorkspace(OrderedShapeOf(described), n, lanes, members));
      },
      nb::arg("described"), nb::arg("n"), nb::arg("lanes"), nb::arg("members"));
  m.def(
      "segments_workspace",
      [](const nb::dict& described, int64_t n, int64_t lanes, int64_t segments, int64_t members) {
        return BytesOf(SegmentsWorkspace(OrderedShapeOf(described), n, lanes, segments, members));
      },
      nb::arg("described"), nb::arg("n"), nb::arg("lanes"), nb::arg("segments"), nb::arg("members"));
  m.def(
      "histogram_workspace",
      [](const nb::dict& described, int64_t n, const std::vector<int64_t>& bins, int64_t members,
         const std::vector<DeviceInfo>& devices, const std::vector<int64_t>& plan) {
        return BytesOf(HistWorkspace(HistShapeOf(described), n, bins, members, devices, plan));
      },
      nb::arg("described"), nb::arg("n"), nb::arg("bins"), nb::arg("members"), nb::arg("devices"), nb::arg("plan"));

  // For jaxprims.explain: the numbers of the plan that a device would follow, by name.
  m.def(
      "explain_scan",
      [](const nb::dict& described, const DeviceInfo& device, int64_t n, int64_t lanes, int64_t members,
         const std::vector<int64_t>& plan) { return ExplainScan(OrderedShapeOf(described), device, n, lanes, members, plan); },
      nb::arg("described"), nb::arg("device"), nb::arg("n"), nb::arg("lanes"), nb::arg("members"), nb::arg("plan"));
  m.def(
      "explain_reduce",
      [](const nb::dict& described, const DeviceInfo& device, int64_t n, int64_t lanes, int64_t members,
         const std::vector<int64_t>& plan) { return ExplainReduce(OrderedShapeOf(described), device, n, lanes, members, plan); },
      nb::arg("described"), nb::arg("device"), nb::arg("n"), nb::arg("lanes"), nb::arg("members"), nb::arg("plan"));
  m.def(
      "explain_segments",
      [](const nb::dict& described, const DeviceInfo& device, int64_t n, int64_t lanes, int64_t members, bool ids,
         int64_t segments, const std::vector<int64_t>& plan) {
        return ExplainSegments(OrderedShapeOf(described), device, n, lanes, members, ids, segments, plan);
      },
      nb::arg("described"), nb::arg("device"), nb::arg("n"), nb::arg("lanes"), nb::arg("members"), nb::arg("ids"),
      nb::arg("segments"), nb::arg("plan"));
  m.def(
      "explain_histogram",
      [](const nb::dict& described, const DeviceInfo& device, int64_t n, const std::vector<int64_t>& bins, int64_t members,
         const std::vector<int64_t>& plan) { return ExplainHist(HistShapeOf(described), device, n, bins, members, plan); },
      nb::arg("described"), nb::arg("device"), nb::arg("n"), nb::arg("bins"), nb::arg("members"), nb::arg("plan"));
  m.def(
      "explain_stencil",
      [](const nb::dict& described, const DeviceInfo& device, const std::vector<int64_t>& size, const std::vector<bool>& wraps,
         int64_t members, int64_t steps, const std::vector<int64_t>& plan) {
        const CudaStencilShape shape = StencilShapeOf(described);
        return ExplainStencil(shape, device, StencilCallOf(shape, {size, wraps, members, steps}), plan);
      },
      nb::arg("described"), nb::arg("device"), nb::arg("size"), nb::arg("wraps"), nb::arg("members"), nb::arg("steps"),
      nb::arg("plan"));

  // For jaxprims.compile_check: the kernels that a call may launch, found by launching them without a device.
  m.def(
      "kernels_of_ordered",
      [](const nb::dict& described, const DeviceInfo& device, int64_t n, int64_t lanes, int64_t members, bool init,
         bool contiguous, bool ids, int64_t segments, const std::vector<int64_t>& plan) {
        const RehearsedCall call{n, lanes, members, init, contiguous, {segments, ids, false}};
        return RehearseOrdered(OrderedShapeOf(described), device, call, plan);
      },
      nb::arg("described"), nb::arg("device"), nb::arg("n"), nb::arg("lanes"), nb::arg("members"), nb::arg("init"),
      nb::arg("contiguous"), nb::arg("ids"), nb::arg("segments"), nb::arg("plan"));
  m.def(
      "kernels_of_histogram",
      [](const nb::dict& described, const DeviceInfo& device, int64_t n, const std::vector<int64_t>& bins, int64_t members,
         const std::vector<int64_t>& plan) { return RehearseHist(HistShapeOf(described), device, n, bins, members, plan); },
      nb::arg("described"), nb::arg("device"), nb::arg("n"), nb::arg("bins"), nb::arg("members"), nb::arg("plan"));
  m.def(
      "kernels_of_stencil",
      [](const nb::dict& described, const DeviceInfo& device, const std::vector<int64_t>& size, const std::vector<bool>& wraps,
         int64_t members, int64_t steps, const std::vector<int64_t>& plan) {
        return RehearseStencil(StencilShapeOf(described), device, {size, wraps, members, steps}, plan);
      },
      nb::arg("described"), nb::arg("device"), nb::arg("size"), nb::arg("wraps"), nb::arg("members"), nb::arg("steps"),
      nb::arg("plan"));
}

}  // namespace jaxprims::cuda
