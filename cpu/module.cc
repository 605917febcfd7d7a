// What Python sees of the C++ half.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "described.h"
#include "handlers.h"
#include "held.h"
#include "kernel_table.h"
#include "planned.h"

namespace nb = nanobind;

namespace jaxprims {
namespace {

// The first word of a small file; empty if there is none. By C's streams: C++'s crashed where the compiler's library was not the
// one that the process had loaded.
std::string FirstWord(const std::string& path) {
  char word[32] = "";
  if (std::FILE* file = std::fopen(path.c_str(), "r")) {
    if (std::fscanf(file, "%31s", word) != 1) word[0] = 0;
    std::fclose(file);
  }
  return word;
}

// Bytes of the cache for data of a level that the first core uses. The system knows; sysconf asks the processor, which on some
// virtual machines tells of all the host's.
int64_t CacheSize(int level, int name, int64_t otherwise) {
  for (int k = 0; k < 8; ++k) {
    const std::string cache = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(k) + "/";
    if (FirstWord(cache + "level") != std::to_string(level) || FirstWord(cache + "type") == "Instruction") continue;
    const std::string size = FirstWord(cache + "size");  // as 32K
    char* unit = nullptr;
    const int64_t number = std::strtoll(size.c_str(), &unit, 10);
    if (number > 0) return number << (*unit == 'K' ? 10 : *unit == 'M' ? 20 : 0);
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
#if defined(__x86_64__)
    // A few cores', and almost as quick as the second level; elsewhere all cores of a processor share it by way of a mesh.
    if (__builtin_cpu_is("amd")) m.byte_l3 = 0.0075;
#endif
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

ffi::Error HeldInMemory(ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> same) {
  return Held(x, same, [](void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); });
}

XLA_FFI_DEFINE_HANDLER(kHeld, HeldInMemory, ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

void* HandlerOf(const std::string& family) {
  if (family == "histogram") return HistHandler();
  if (family == "group") return GroupHandler();
  if (family == "scan") return ScanHandler();
  if (family == "reduce") return ReduceHandler();
  if (family == "segments") return SegmentsHandler();
  if (family == "stencil") return StencilHandler();
  if (family == "stencil_reduce") return StencilReduceHandler();
  if (family == "scan_chain") return ScanChainHandler();
  if (family == "walk") return WalkHandler();
  if (family == "held") return reinterpret_cast<void*>(kHeld);
  throw std::invalid_argument("no calls of " + family + " are handled");
}

// f of the kernel table with this name.
template <class F>
auto OfTable(const std::string& name, F f) {
  if (name == "histogram") return f(KernelTable<HistEntry>::Instance());
  if (name == "ordered") return f(KernelTable<OrderedEntry>::Instance());
  if (name == "stencil") return f(KernelTable<StencilEntry>::Instance());
  if (name == "walk") return f(KernelTable<WalkEntry>::Instance());
  throw std::invalid_argument("no kernel table is called " + name);
}

// Machine code by the names of its functions, those that a kernel lacks missing.
class Functions {
 public:
  explicit Functions(nb::dict addresses) : addresses_(std::move(addresses)) {}

  template <class F>
  void Get(const std::string& name, F& function) const {
    const nb::str key(name.c_str());
    function = addresses_.contains(key) ? reinterpret_cast<F>(nb::cast<uint64_t>(addresses_[key])) : nullptr;
  }

 private:
  nb::dict addresses_;
};

HistKernel KernelFrom(const Functions& functions, const HistEntry& entry) {
  HistKernel kernel;
  functions.Get("update", kernel.update);
  for (size_t part = 0; part < entry.shape.bins.size(); ++part) {
    functions.Get("fill_" + std::to_string(part), kernel.fill.emplace_back());
    functions.Get("combine_" + std::to_string(part), kernel.combine.emplace_back());
  }
  return kernel;
}

OrderedKernel KernelFrom(const Functions& functions, const OrderedEntry& /*entry*/) {
  OrderedKernel kernel;
  functions.Get("scan", kernel.scan);
  functions.Get("reduce", kernel.reduce);
  functions.Get("combine", kernel.combine);
  functions.Get("finish", kernel.finish);
  functions.Get("runs", kernel.runs);
  return kernel;
}

StencilKernel KernelFrom(const Functions& functions, const StencilEntry& /*entry*/) {
  StencilKernel kernel;
  functions.Get("row", kernel.row);
  functions.Get("cell", kernel.cell);
  return kernel;
}

WalkKernel KernelFrom(const Functions& functions, const WalkEntry& /*entry*/) {
  WalkKernel kernel;
  functions.Get("walk", kernel.walk);
  return kernel;
}

}  // namespace

NB_MODULE(_cpu, m) {
  m.doc() = "The C++ half of jaxprims: the FFI handlers, the kernel tables, the plans.";
  m.def(
      "handler", [](const std::string& family) { return nb::capsule(HandlerOf(family)); }, nb::arg("family"),
      "XLA's handler of a family of calls, as a capsule.");
  m.def(
      "enter",
      [](const std::string& table, int64_t key, const std::string& spec, const nb::dict& described) {
        return OfTable(table, [&]<class Entry>(KernelTable<Entry>& known) {
          auto entry = std::make_unique<Entry>();
          entry->spec = spec;
          GetShape(described, entry->shape);
          return known.Add(key, std::move(entry))->spec == spec;
        });
      },
      nb::arg("table"), nb::arg("key"), nb::arg("spec"), nb::arg("described"),
      "Enters a spec into a kernel table; false if another one has its hash.");
  m.def(
      "add_variant",
      [](const std::string& table, int64_t key, int variant, const nb::dict& addresses) {
        OfTable(table, [&]<class Entry>(KernelTable<Entry>& known) {
          Entry* entry = known.Find(key);
          if (entry == nullptr) throw nb::key_error("the spec is not in the kernel table");
          KernelTable<Entry>::AddVariant(*entry, variant, KernelFrom(Functions(addresses), *entry));
        });
      },
      nb::arg("table"), nb::arg("key"), nb::arg("variant"), nb::arg("addresses"),
      "Adds a compiled variant of a spec that is in the table: its functions by name.");
  m.def(
      "plan",
      [](const std::string& family, const nb::dict& problem, int threads, const std::vector<int64_t>& forced) {
        return Planned(family, problem, MachineWith(threads), forced);
      },
      nb::arg("family"), nb::arg("problem"), nb::arg("threads"), nb::arg("forced"),
      "How a call with these numbers is run by so many threads: the plan's numbers by name, and its workspace's bytes. forced: "
      "empty, or the numbers of the plan that is forced.");
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
}

}  // namespace jaxprims
