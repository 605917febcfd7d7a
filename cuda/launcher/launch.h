// Launching kernels: their parameter's words, the images loaded for a device, the stream.
//
// Between the handler's start and its end nothing is allocated on the device, waited for or read back, so that a launch can be
// captured in a CUDA graph.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "driver.h"
#include "operand.h"

namespace jaxprims::cuda {

inline constexpr size_t kMaxAxes = 4;  // batch axes that a kernel knows: operands.cuh

inline constexpr int64_t kSystemShared = 1024;  // of each block's shared memory, by the system

struct DeviceInfo {
  int ordinal = 0, multiprocessors = 0, threads_per_multiprocessor = 0, blocks_per_multiprocessor = 0;
  int64_t shared_per_block = 0;  // the opt-in maximum
  int64_t shared_per_multiprocessor = 0, l2_bytes = 0;
  int major = 0, minor = 0;  // compute capability
  std::string name;
};

DeviceInfo DescribeDevice(const Driver& driver, CUdevice device);

// A kernel's parameter: a struct of 8-byte words, in its members' order.
class Words {
 public:
  void Int(int64_t x) { words_.push_back(static_cast<uint64_t>(x)); }
  void Pointer(const void* p) { words_.push_back(reinterpret_cast<uint64_t>(p)); }
  void Put(const Operand& operand) {
    Pointer(operand.data);
    for (size_t axis = 0; axis < kMaxAxes; ++axis) Int(operand.strides[axis]);
  }
  // At least one operand: C++ has no arrays of none.
  void PutList(std::span<const Operand> operands) {
    for (const Operand& operand : operands) Put(operand);
    if (operands.empty()) Put({});
  }
  void PutBatch(std::span<const int64_t> sizes);

  const uint64_t* data() const { return words_.data(); }
  size_t bytes() const { return words_.size() * sizeof(uint64_t); }

 private:
  std::vector<uint64_t> words_;
};

struct Grid {
  int64_t blocks;
  int threads;
  int64_t shared = 0;  // dynamic
  int cluster = 1;     // blocks
};

// Bytes of workspace for each member of the batch: base + per * (n / every + 1).
struct Workspace {
  int64_t base = 0, per = 0, every = 1;
};

// What the driver knows of a kernel.
struct KernelInfo {
  int registers = 0, max_threads = 0;
  int64_t local_bytes = 0, static_shared_bytes = 0;
};

// A spec's kernels on a device, each compiled and loaded when it is first asked for: which of them a call needs depends on its
// sizes. From any thread.
class Library {
 public:
  // image(kernel): the compiled kernel of that name.
  Library(const Driver& driver, CUdevice device, std::function<std::string(const std::string&)> image);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  const Driver& driver() const { return driver_; }
  const DeviceInfo& device() const { return device_; }
  int Occupancy(const char* kernel, int threads, int64_t shared);
  // Clusters of a grid's size, threads and shared memory that are resident in the device; 0: none can be.
  int Clusters(const char* kernel, const Grid& grid);
  // Loads what Launch would launch.
  CUkernel Prepare(const char* kernel, const Grid& grid, const Words& words);
  void Launch(CUstream stream, const char* kernel, const Grid& grid, const Words& words);
  // The kernels loaded so far.
  std::map<std::string, KernelInfo> Describe();

 private:
  struct Kernel {
    std::mutex mutex;  // of all that follows
    CUlibrary library = nullptr;
    CUkernel handle = nullptr;
    size_t parameter_bytes = 0;  // 0: the driver cannot tell
    int shared_limit = 0;
    bool wide_clusters = false;
    std::map<std::pair<int, int64_t>, int> occupancy;       // of threads and dynamic shared memory
    std::map<std::tuple<int, int64_t, int>, int> clusters;  // likewise, and of blocks of a cluster
  };

  Kernel& Find(const std::string& name);
  void Load(Kernel& kernel, const std::string& name);
  void AllowShared(Kernel& kernel, int64_t bytes);
  void AllowClusters(Kernel& kernel, int blocks);
  int Attribute(const Kernel& kernel, CUfunction_attribute attribute) const;

  const Driver& driver_;
  const CUdevice cu_device_;
  const DeviceInfo device_;
  const std::function<std::string(const std::string&)> image_;
  std::mutex mutex_;  // of the map, not of what it holds
  std::map<std::string, Kernel> kernels_;
};

// Blocks of a kernel that a multiprocessor holds, as far as that can be told without it: of threads with 64 registers.
int LikelyOccupancy(const DeviceInfo& device, int threads, int64_t shared);

// Clusters of one block for each multiprocessor that a device holds, as far as that can be told without it: it may be fewer, as
// all of a cluster's blocks are in one of its groups of multiprocessors.
int LikelyClusters(const DeviceInfo& device, int blocks);

// What the launch functions see: a library and the stream that they work in; or, in a rehearsal, neither.
class Launcher {
 public:
  // loads_only: nothing happens on the device. No kernel may be loaded while a graph is captured, so those that a call needs are
  // loaded before.
  Launcher(Library& library, CUstream stream, bool loads_only = false)
      : library_(&library), device_(library.device()), stream_(stream), loads_only_(loads_only) {}
  // Nothing is loaded or launched: `names` gets the kernels that would be, each once.
  Launcher(const DeviceInfo& device, std::vector<std::string>& names)
      : device_(device), stream_(nullptr), loads_only_(true), names_(&names) {}

  const DeviceInfo& device() const { return device_; }
  // Blocks that are resident in a multiprocessor.
  int Occupancy(const char* kernel, int threads, int64_t shared) {
    return library_ == nullptr ? LikelyOccupancy(device_, threads, shared) : library_->Occupancy(kernel, threads, shared);
  }
  // Clusters that are resident in the device.
  int Clusters(const char* kernel, const Grid& grid) {
    return library_ == nullptr ? LikelyClusters(device_, grid.cluster) : library_->Clusters(kernel, grid);
  }
  // Throws std::runtime_error with the driver's words. No blocks: does nothing.
  void Launch(const char* kernel, const Grid& grid, const Words& words);
  void Fill(void* p, uint8_t byte, int64_t bytes);

 private:
  Library* const library_ = nullptr;
  const DeviceInfo& device_;
  const CUstream stream_;
  const bool loads_only_;
  std::vector<std::string>* const names_ = nullptr;
};

// Makes a stream's context the current one for as long as it lives; of no stream: leaves everything as it is.
class StreamContext {
 public:
  StreamContext(const Driver& driver, CUstream stream);
  ~StreamContext();
  StreamContext(const StreamContext&) = delete;
  StreamContext& operator=(const StreamContext&) = delete;

  CUdevice device() const { return device_; }

 private:
  const Driver& driver_;
  CUcontext before_ = nullptr;
  bool switched_ = false;
  CUdevice device_ = 0;
};

template <class Shape>
struct LoadedSpec {
  LoadedSpec(const Driver& driver, CUdevice device, std::string_view text, Shape described,
             std::function<std::string(const std::string&)> image)
      : spec(text), shape(std::move(described)), library(driver, device, std::move(image)) {}

  const std::string spec;
  const Shape shape;
  Library library;
};

// Specs by their hash and device: added once, never removed.
template <class Shape>
class LibraryTable {
 public:
  static LibraryTable& Instance() {
    static auto* table = new LibraryTable;  // never destroyed: the driver may be gone when the process exits
    return *table;
  }

  // compiler, a value that the entry keeps a copy of:
  //   Describe(const std::string& spec, const DeviceInfo&) -> Shape
  //   Image(const std::string& spec, const DeviceInfo&, const std::string& kernel) -> std::string
  // Describes the spec unless that has happened before: once, when several threads come first at the same time. What it throws is
  // thrown here, and the next call tries again.
  template <class Compiler>
  LoadedSpec<Shape>& Find(const Driver& driver, int64_t key, std::string_view spec, CUdevice device, const Compiler& compiler) {
    Slot& slot = SlotOf({key, device});
    auto* loaded = slot.loaded.load(std::memory_order_acquire);
    if (loaded == nullptr) {
      const std::lock_guard lock(slot.mutex);
      if (slot.owner == nullptr) {
        const std::string text(spec);
        const DeviceInfo info = DescribeDevice(driver, device);
        slot.owner = std::make_unique<LoadedSpec<Shape>>(
            driver, device, spec, compiler.Describe(text, info),
            [text, info, compiler](const std::string& kernel) { return compiler.Image(text, info, kernel); });
        slot.loaded.store(slot.owner.get(), std::memory_order_release);
      }
      loaded = slot.owner.get();
    }
    if (loaded->spec != spec) throw std::runtime_error("two specs have the same hash");
    return *loaded;
  }

  // Null if there is none.
  LoadedSpec<Shape>* Known(int64_t key, std::string_view spec, CUdevice device) {
    auto* loaded = SlotOf({key, device}).loaded.load(std::memory_order_acquire);
    return loaded != nullptr && loaded->spec == spec ? loaded : nullptr;
  }

 private:
  struct Slot {
    std::mutex mutex;
    std::unique_ptr<LoadedSpec<Shape>> owner;
    std::atomic<LoadedSpec<Shape>*> loaded{};
  };
  using Key = std::pair<int64_t, CUdevice>;

  Slot& SlotOf(const Key& key) {
    {
      std::shared_lock lock(mutex_);
      const auto it = slots_.find(key);
      if (it != slots_.end()) return it->second;
    }
    std::unique_lock lock(mutex_);
    return slots_[key];
  }

  std::shared_mutex mutex_;
  std::map<Key, Slot> slots_;
};

}  // namespace jaxprims::cuda
