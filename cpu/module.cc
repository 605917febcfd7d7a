// The FFI handler, and what Python sees of the C++ half.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "described.h"
#include "group.h"
#include "handlers.h"
#include "hist.h"
#include "hist_plan.h"
#include "kernel_table.h"
#include "reduce_plan.h"
#include "scan_plan.h"
#include "segments.h"
#include "segments_plan.h"
#include "stencil.h"
#include "stencil_plan.h"
#include "stencil_reduce.h"
#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace nb = nanobind;

namespace jaxprims {
namespace {

// Bytes of the cache for data of a level that the first core uses. The system knows; sysconf asks the processor, which on some
// virtual machines tells of all the host's.
int64_t CacheSize(int level, int name, int64_t otherwise) {
  for (int k = 0; k < 8; ++k) {
    const std::string cache = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(k) + "/";
    int own = 0;
    int64_t size = 0;
    std::string type, unit;
    std::ifstream(cache + "level") >> own;
    std::ifstream(cache + "type") >> type;
    std::ifstream(cache + "size") >> size >> unit;
    if (own == level && type != "Instruction" && size > 0) return size << (unit == "K" ? 10 : unit == "M" ? 20 : 0);
  }
  const long size = sysconf(name);
  return size > 0 ? size : otherwise;
}

}  // namespace

Machine MachineWith(int threads) {
  static const Machine machine = [] {
    Machine m;
    m.l1 = CacheSize(1, _SC_LEVEL1_DCACHE_SIZE, m.l1);
    m.l2 = CacheSize(2, _SC_LEVEL2_CACHE_SIZE, m.l2);
    m.l3 = CacheSize(3, _SC_LEVEL3_CACHE_SIZE, m.l3);
    return m;
  }();
  Machine m = machine;
  m.threads = threads;
  return m;
}

void CompileOnDemand(std::string_view spec, int variant) {
  nb::gil_scoped_acquire gil;
  Told([&] {
    nb::module_::import_("jaxprims.targets.cpu.compiler").attr("compile_text")(nb::str(spec.data(), spec.size()), variant);
  });
}

namespace {

// plan: empty, or M, S, C, soa, prefetch (tests and benchmarks choose).
ffi::Error Hist(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, std::string_view spec, int64_t key,
                int64_t batch_rank, int64_t elements_of, ffi::Span<const int64_t> masks, int64_t sorted,
                ffi::Span<const int64_t> forced) {
  const HistAttributes attributes{spec, key, batch_rank, elements_of, masks, sorted, forced};
  try {
    const auto& entry = FindEntry<HistEntry>(spec, key);
    const HistShape& shape = entry.shape;
    HistCall call;
    if (ffi::Error e = CheckPlan(forced, 5, 5); e.failure()) return e;
    if (ffi::Error e = ReadHistCall(args, rets, attributes, shape, 0, call); e.failure()) return e;
    if (call.empty) return ffi::Error::Success();
    HistProblem problem = DescribeHist(shape, call);
    problem.sorted = call.sorted_array >= 0;
    HistPlan plan = MakePlan(problem, MachineWith(static_cast<int>(pool.num_threads())));
    if (forced.size() != 0) plan = Forced(problem, plan, forced[0], forced[1], forced[2], forced[3] != 0, forced[4] != 0);
    XlaPool assistants{pool};
    RunHist(assistants, shape, call, KernelOf(entry, plan.variant()), plan);
  } catch (const std::exception& e) {
    return Failed(e);
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kHist, Hist, BindHist(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));

// Operand: indices [*batch, N] of s32 or s64. Results: order [*batch, N] and offsets [*batch, H + 1], both s32 or both s64.
ffi::Error Group(ffi::ThreadPool pool, ffi::AnyBuffer indices, ffi::Result<ffi::AnyBuffer> order,
                 ffi::Result<ffi::AnyBuffer> offsets) {
  const Dims rows = DimsOf(indices), ends = DimsOf(*offsets), places = DimsOf(*order);
  if (rows.empty() || ends.size() != rows.size() || !std::ranges::equal(rows, places) || ends.back() < 1 ||
      !std::ranges::equal(rows.first(rows.size() - 1), ends.first(rows.size() - 1))) {
    return Wrong("group_by_index wants indices [*batch, N], order [*batch, N] and offsets [*batch, bins + 1]");
  }
  const int64_t n = rows.back(), bins = ends.back() - 1, batch = Product(rows.first(rows.size() - 1));
  const int threads = static_cast<int>(pool.num_threads());
  XlaPool assistants{pool};
  auto run = [&](auto index, auto position) {
    using Index = decltype(index);
    using Position = decltype(position);
    const auto* in = static_cast<const Index*>(indices.untyped_data());
    auto* out = static_cast<Position*>(order->untyped_data());
    auto* starts = static_cast<Position*>(offsets->untyped_data());
    for (int64_t b = 0; b < batch; ++b)
      GroupByIndex(assistants, threads, in + b * n, n, bins, out + b * n, starts + b * (bins + 1));
  };
  const bool wide_index = indices.element_type() == ffi::DataType::S64, wide = order->element_type() == ffi::DataType::S64;
  if ((!wide_index && indices.element_type() != ffi::DataType::S32) || (!wide && order->element_type() != ffi::DataType::S32) ||
      order->element_type() != offsets->element_type()) {
    return Wrong("group_by_index wants s32 or s64");
  }
  if (batch <= 0) return ffi::Error::Success();
  if (!wide && std::max(n, bins) > std::numeric_limits<int32_t>::max())
    return Wrong("positions of s32 do not tell so many apart");
  try {
    if (wide_index) {
      wide ? run(int64_t{}, int64_t{}) : run(int64_t{}, int32_t{});
    } else {
      wide ? run(int32_t{}, int64_t{}) : run(int32_t{}, int32_t{});
    }
  } catch (const std::exception& e) {
    return Failed(e);
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kGroup, Group,
                       ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

template <class F>
F FunctionAt(uint64_t address) {
  return reinterpret_cast<F>(address);
}

}  // namespace

NB_MODULE(_cpu, m) {
  m.doc() = "The C++ half of jaxprims: the FFI handler, the kernel table, the plan.";
  m.def(
      "histogram_handler", [] { return nb::capsule(reinterpret_cast<void*>(kHist)); }, "The histogram's handler, as a capsule.");
  m.def(
      "group_handler", [] { return nb::capsule(reinterpret_cast<void*>(kGroup)); }, "The counting sort's handler, as a capsule.");
  m.def("scan_handler", [] { return nb::capsule(ScanHandler()); }, "The scan's handler, as a capsule.");
  m.def("reduce_handler", [] { return nb::capsule(ReduceHandler()); }, "The reduction's handler, as a capsule.");
  m.def("segments_handler", [] { return nb::capsule(SegmentsHandler()); }, "The segmented reduction's handler, as a capsule.");
  m.def(
      "add_histogram",
      [](int64_t key, const std::string& spec, const nb::dict& described) {
        auto entry = std::make_unique<HistEntry>();
        entry->spec = spec;
        GetShape(described, entry->shape);
        const std::string& known = KernelTable<HistEntry>::Instance().Add(key, std::move(entry))->spec;
        return known == spec;
      },
      nb::arg("key"), nb::arg("spec"), nb::arg("described"),
      "Enters a spec into the kernel table; false if another one has its hash.");
  m.def(
      "add_histogram_variant",
      [](int64_t key, int variant, uint64_t update, const std::vector<uint64_t>& fill, const std::vector<uint64_t>& combine) {
        HistEntry* entry = KernelTable<HistEntry>::Instance().Find(key);
        if (entry == nullptr) throw nb::key_error("the spec is not in the kernel table");
        HistKernel kernel;
        kernel.update = FunctionAt<HistKernel::Update>(update);
        for (const uint64_t f : fill) kernel.fill.push_back(FunctionAt<HistKernel::Fill>(f));
        for (const uint64_t f : combine) kernel.combine.push_back(FunctionAt<HistKernel::Combine>(f));
        KernelTable<HistEntry>::AddVariant(*entry, variant, std::move(kernel));
      },
      nb::arg("key"), nb::arg("variant"), nb::arg("update"), nb::arg("fill"), nb::arg("combine"),
      "Adds a compiled variant of a spec that is in the table.");
  m.def("has_histogram_variant", [](int64_t key, int variant) {
    const HistEntry* entry = KernelTable<HistEntry>::Instance().Find(key);
    return entry != nullptr && entry->variants.at(static_cast<size_t>(variant)).load(std::memory_order_acquire) != nullptr;
  });

  m.def(
      "add_ordered",
      [](int64_t key, const std::string& spec, const nb::dict& described) {
        auto entry = std::make_unique<OrderedEntry>();
        entry->spec = spec;
        GetShape(described, entry->shape);
        return KernelTable<OrderedEntry>::Instance().Add(key, std::move(entry))->spec == spec;
      },
      nb::arg("key"), nb::arg("spec"), nb::arg("described"),
      "Enters a spec of the ordered family into the kernel table; false if another one has its hash.");
  m.def(
      "add_ordered_variant",
      [](int64_t key, int variant, uint64_t scan, uint64_t reduce, uint64_t combine, uint64_t finish, uint64_t runs) {
        OrderedEntry* entry = KernelTable<OrderedEntry>::Instance().Find(key);
        if (entry == nullptr) throw nb::key_error("the spec is not in the kernel table");
        KernelTable<OrderedEntry>::AddVariant(*entry, variant,
                                              {FunctionAt<OrderedKernel::Scan>(scan), FunctionAt<OrderedKernel::Reduce>(reduce),
                                               FunctionAt<OrderedKernel::Combine>(combine),
                                               FunctionAt<OrderedKernel::Finish>(finish), FunctionAt<OrderedKernel::Runs>(runs)});
      },
      nb::arg("key"), nb::arg("variant"), nb::arg("scan"), nb::arg("reduce"), nb::arg("combine"), nb::arg("finish"),
      nb::arg("runs") = 0,
      "Adds a compiled variant (bit 0: periodic, 1: streaming) of a spec that is in the table; 0 for a function that it lacks.");
  m.def("has_ordered_variant", [](int64_t key, int variant) {
    const OrderedEntry* entry = KernelTable<OrderedEntry>::Instance().Find(key);
    return entry != nullptr && entry->variants.at(static_cast<size_t>(variant)).load(std::memory_order_acquire) != nullptr;
  });

  m.def(
      "stencil_reduce_handler", [] { return nb::capsule(StencilReduceHandler()); },
      "The handler of reductions of stencils, as a capsule.");
  m.def("stencil_handler", [] { return nb::capsule(StencilHandler()); }, "The stencil's handler, as a capsule.");
  m.def(
      "add_stencil",
      [](int64_t key, const std::string& spec, const nb::dict& described) {
        auto entry = std::make_unique<StencilEntry>();
        entry->spec = spec;
        GetShape(described, entry->shape);
        return KernelTable<StencilEntry>::Instance().Add(key, std::move(entry))->spec == spec;
      },
      nb::arg("key"), nb::arg("spec"), nb::arg("described"),
      "Enters a stencil's spec into the kernel table; false if another one has its hash.");
  m.def(
      "add_stencil_kernel",
      [](int64_t key, uint64_t row, uint64_t cell) {
        StencilEntry* entry = KernelTable<StencilEntry>::Instance().Find(key);
        if (entry == nullptr) throw nb::key_error("the spec is not in the kernel table");
        KernelTable<StencilEntry>::AddVariant(*entry, 0,
                                              {FunctionAt<StencilKernel::Row>(row), FunctionAt<StencilKernel::Cell>(cell)});
      },
      nb::arg("key"), nb::arg("row"), nb::arg("cell"), "Adds the compiled kernel of a spec that is in the table.");

  m.def("walk_handler", [] { return nb::capsule(WalkHandler()); }, "The walk's handler, as a capsule.");
  m.def("scan_chain_handler", [] { return nb::capsule(ScanChainHandler()); }, "The handler of chains of scans, as a capsule.");
  m.def(
      "add_walk",
      [](int64_t key, const std::string& spec, const nb::dict& described) {
        auto entry = std::make_unique<WalkEntry>();
        entry->spec = spec;
        GetShape(described, entry->shape);
        return KernelTable<WalkEntry>::Instance().Add(key, std::move(entry))->spec == spec;
      },
      nb::arg("key"), nb::arg("spec"), nb::arg("described"),
      "Enters a walk's spec into the kernel table; false if another one has its hash.");
  m.def(
      "add_walk_variant",
      [](int64_t key, int variant, uint64_t walk) {
        WalkEntry* entry = KernelTable<WalkEntry>::Instance().Find(key);
        if (entry == nullptr) throw nb::key_error("the spec is not in the kernel table");
        KernelTable<WalkEntry>::AddVariant(*entry, variant, {FunctionAt<WalkKernel::Walk>(walk)});
      },
      nb::arg("key"), nb::arg("variant"), nb::arg("walk"), "Adds a compiled variant of a spec that is in the table.");

  m.def(
      "keep_freed_memory",
      [] {
#if defined(__GLIBC__)
        // One arena: those of other threads than the first map what is larger than 64 MB, whatever they are told.
        return mallopt(M_MMAP_MAX, 0) == 1 && mallopt(M_TRIM_THRESHOLD, -1) == 1 && mallopt(M_ARENA_MAX, 1) == 1;
#else
        return false;
#endif
      },
      "Tells the C library's allocator to keep what is freed; false if it cannot.");

  nb::class_<Machine>(m, "Machine")
      .def(
          "__init__", [](Machine* self, int threads) { new (self) Machine(MachineWith(threads)); }, nb::arg("threads"))
      .def_rw("threads", &Machine::threads)
      .def_rw("l1", &Machine::l1)
      .def_rw("l2", &Machine::l2)
      .def_rw("l3", &Machine::l3);
  nb::class_<HistProblem>(m, "HistProblem")
      .def(nb::init<>())
      .def_rw("elements", &HistProblem::elements)
      .def_rw("batch", &HistProblem::batch)
      .def_rw("bins", &HistProblem::bins)
      .def_rw("bin_bytes", &HistProblem::bin_bytes)
      .def_rw("updates", &HistProblem::updates)
      .def_rw("slots", &HistProblem::slots)
      .def_rw("lanes", &HistProblem::lanes)
      .def_rw("work", &HistProblem::work)
      .def_rw("in_place", &HistProblem::in_place)
      .def_rw("sorted", &HistProblem::sorted)
      .def_rw("must_in_place", &HistProblem::must_in_place)
      .def_rw("map", &HistProblem::map)
      .def_rw("chooses", &HistProblem::chooses)
      .def_prop_ro("few", &HistProblem::few);
  nb::class_<HistPlan>(m, "HistPlan")
      .def_ro("subhistograms", &HistPlan::subhistograms)
      .def_ro("ranges", &HistPlan::ranges)
      .def_ro("copies", &HistPlan::copies)
      .def_ro("soa", &HistPlan::soa)
      .def_ro("prefetch", &HistPlan::prefetch)
      .def_ro("wide", &HistPlan::wide)
      .def_ro("threads", &HistPlan::threads)
      .def_prop_ro("variant", &HistPlan::variant);
  m.def("make_plan", &MakePlan, nb::arg("problem"), nb::arg("machine"));
  m.def("forced", &Forced, nb::arg("problem"), nb::arg("plan"), nb::arg("subhistograms"), nb::arg("ranges"), nb::arg("copies"),
        nb::arg("soa"), nb::arg("prefetch"));
  m.def("workspace_bytes", nb::overload_cast<const HistProblem&, const HistPlan&>(&WorkspaceBytes), nb::arg("problem"),
        nb::arg("plan"));

  nb::class_<ScanProblem>(m, "ScanProblem")
      .def(nb::init<>())
      .def_rw("n", &ScanProblem::n)
      .def_rw("rows", &ScanProblem::rows)
      .def_rw("lanes", &ScanProblem::lanes)
      .def_rw("in_bytes", &ScanProblem::in_bytes)
      .def_rw("leaf_bytes", &ScanProblem::leaf_bytes)
      .def_rw("slots", &ScanProblem::slots)
      .def_rw("work", &ScanProblem::work)
      .def_rw("across", &ScanProblem::across)
      .def_rw("large", &ScanProblem::large)
      .def_rw("map", &ScanProblem::map)
      .def_rw("reverse", &ScanProblem::reverse)
      .def_rw("in_place", &ScanProblem::in_place)
      .def_rw("contiguous", &ScanProblem::contiguous)
      .def_rw("aligned", &ScanProblem::aligned);
  nb::enum_<ScanOrder>(m, "ScanOrder")
      .value("assisting", ScanOrder::kAssisting)
      .value("row_wise", ScanOrder::kRowWise)
      .value("column_wise", ScanOrder::kColumnWise)
      .value("sequential_rows", ScanOrder::kSequentialRows)
      .value("any_order", ScanOrder::kAnyOrder);
  nb::class_<ScanPlan>(m, "ScanPlan")
      .def_ro("order", &ScanPlan::order)
      .def_ro("block", &ScanPlan::block)
      .def_ro("strip", &ScanPlan::strip)
      .def_ro("rows_per_task", &ScanPlan::rows_per_task)
      .def_ro("periodic", &ScanPlan::periodic)
      .def_ro("stream", &ScanPlan::stream)
      .def_ro("threads", &ScanPlan::threads)
      .def_prop_ro("variant", &ScanPlan::variant);
  m.def("make_scan_plan", &MakeScanPlan, nb::arg("problem"), nb::arg("machine"));
  m.def("forced_scan", &ForcedScan, nb::arg("problem"), nb::arg("machine"), nb::arg("order"), nb::arg("block"),
        nb::arg("periodic"), nb::arg("stream"), nb::arg("threads"),
        "The plan with what is not -1 as given, as far as the problem allows: for tests and benchmarks.");
  m.def("scan_workspace_bytes", nb::overload_cast<const ScanProblem&, const ScanPlan&>(&WorkspaceBytes), nb::arg("problem"),
        nb::arg("plan"));

  nb::class_<ReduceProblem>(m, "ReduceProblem")
      .def(nb::init<>())
      .def_rw("n", &ReduceProblem::n)
      .def_rw("rows", &ReduceProblem::rows)
      .def_rw("joined", &ReduceProblem::joined)
      .def_rw("lanes", &ReduceProblem::lanes)
      .def_rw("leaf_bytes", &ReduceProblem::leaf_bytes)
      .def_rw("slots", &ReduceProblem::slots)
      .def_rw("work", &ReduceProblem::work)
      .def_rw("state_bytes", &ReduceProblem::state_bytes)
      .def_rw("across", &ReduceProblem::across)
      .def_rw("init", &ReduceProblem::init);
  nb::class_<ReducePlan>(m, "ReducePlan")
      .def_ro("periodic", &ReducePlan::periodic)
      .def_ro("leaf", &ReducePlan::leaf)
      .def_ro("block", &ReducePlan::block)
      .def_ro("strip", &ReducePlan::strip)
      .def_ro("grain", &ReducePlan::grain)
      .def_ro("threads", &ReducePlan::threads);
  m.def("of_stencil", &OfStencil, nb::arg("problem"), nb::arg("reads"));
  m.def("make_reduce_plan", &MakeReducePlan, nb::arg("problem"), nb::arg("machine"));
  m.def("reduce_workspace_bytes", nb::overload_cast<const ReduceProblem&, const ReducePlan&>(&WorkspaceBytes), nb::arg("problem"),
        nb::arg("plan"));

  nb::class_<StencilProblem>(m, "StencilProblem")
      .def(nb::init<>())
      .def_rw("size", &StencilProblem::size)
      .def_rw("widest", &StencilProblem::widest)
      .def_rw("wraps", &StencilProblem::wraps)
      .def_rw("halo", &StencilProblem::halo)
      .def_rw("members", &StencilProblem::members)
      .def_rw("steps", &StencilProblem::steps)
      .def_rw("unit", &StencilProblem::unit)
      .def_rw("array_bytes", &StencilProblem::array_bytes)
      .def_rw("leaf_bytes", &StencilProblem::leaf_bytes)
      .def_rw("changed", &StencilProblem::changed)
      .def_rw("work", &StencilProblem::work)
      .def_rw("width", &StencilProblem::width)
      .def_rw("span", &StencilProblem::span);
  nb::class_<StencilPlan>(m, "StencilPlan")
      .def_ro("depth", &StencilPlan::depth)
      .def_ro("tile", &StencilPlan::tile)
      .def_ro("stream", &StencilPlan::stream)
      .def_ro("threads", &StencilPlan::threads);
  m.def("make_stencil_plan", &MakeStencilPlan, nb::arg("problem"), nb::arg("machine"));
  m.def("forced_stencil", &ForcedStencil, nb::arg("problem"), nb::arg("plan"), nb::arg("depth"), nb::arg("first"),
        nb::arg("middle"), nb::arg("inner"), nb::arg("stream"));
  m.def("stencil_workspace_bytes", nb::overload_cast<const StencilProblem&, const StencilPlan&>(&WorkspaceBytes),
        nb::arg("problem"), nb::arg("plan"));

  nb::class_<SegmentsProblem>(m, "SegmentsProblem")
      .def(nb::init<>())
      .def_rw("n", &SegmentsProblem::n)
      .def_rw("segments", &SegmentsProblem::segments)
      .def_rw("members", &SegmentsProblem::members)
      .def_rw("lanes", &SegmentsProblem::lanes)
      .def_rw("leaf_bytes", &SegmentsProblem::leaf_bytes)
      .def_rw("slots", &SegmentsProblem::slots)
      .def_rw("work", &SegmentsProblem::work)
      .def_rw("state_bytes", &SegmentsProblem::state_bytes)
      .def_rw("across", &SegmentsProblem::across);
  nb::class_<SegmentsPlan>(m, "SegmentsPlan")
      .def_ro("items", &SegmentsPlan::items)
      .def_ro("tasks", &SegmentsPlan::tasks)
      .def_ro("chunk", &SegmentsPlan::chunk)
      .def_ro("strip", &SegmentsPlan::strip)
      .def_ro("grain", &SegmentsPlan::grain)
      .def_ro("threads", &SegmentsPlan::threads);
  m.def("make_segments_plan", &MakeSegmentsPlan, nb::arg("problem"), nb::arg("machine"));
  m.def("segments_workspace_bytes", nb::overload_cast<const SegmentsProblem&, const SegmentsPlan&>(&WorkspaceBytes),
        nb::arg("problem"), nb::arg("plan"));
}

}  // namespace jaxprims
