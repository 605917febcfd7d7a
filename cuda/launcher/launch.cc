#include "launch.h"

#include <algorithm>
#include <limits>

namespace jaxprims::cuda {
namespace {

// cluster: where the attribute lies for as long as the configuration is used.
CUlaunchConfig ConfigOf(const Grid& grid, CUstream stream, CUlaunchAttribute& cluster) {
  cluster.id = kClusterDimension;
  cluster.value.cluster = {static_cast<unsigned>(grid.cluster), 1, 1};
  CUlaunchConfig config{};
  config.grid_x = static_cast<unsigned>(grid.blocks);
  config.block_x = static_cast<unsigned>(grid.threads);
  config.grid_y = config.grid_z = config.block_y = config.block_z = 1;
  config.shared_bytes = static_cast<unsigned>(grid.shared);
  config.stream = stream;
  config.attributes = &cluster;
  config.attribute_count = grid.cluster > 1 ? 1 : 0;
  return config;
}

}  // namespace

DeviceInfo DescribeDevice(const Driver& driver, CUdevice device) {
  DeviceInfo info;
  info.ordinal = device;
  auto get = [&](CUdevice_attribute attribute) {
    int value = 0;
    driver.Check(driver.cuDeviceGetAttribute(&value, attribute, device), "cuDeviceGetAttribute");
    return value;
  };
  info.multiprocessors = get(kMultiprocessorCount);
  info.threads_per_multiprocessor = get(kMaxThreadsPerMultiprocessor);
  info.blocks_per_multiprocessor = get(kMaxBlocksPerMultiprocessor);
  info.shared_per_block = get(kMaxSharedMemoryPerBlockOptin);
  info.shared_per_multiprocessor = get(kMaxSharedMemoryPerMultiprocessor);
  info.l2_bytes = get(kL2CacheSize);
  info.major = get(kComputeCapabilityMajor);
  info.minor = get(kComputeCapabilityMinor);
  char name[256] = {};
  driver.Check(driver.cuDeviceGetName(name, sizeof(name) - 1, device), "cuDeviceGetName");
  info.name = name;
  return info;
}

void Words::PutBatch(std::span<const int64_t> sizes) {
  if (sizes.size() > kMaxAxes) throw std::logic_error("a kernel knows at most 4 batch axes");
  int64_t members = 1;
  for (const int64_t size : sizes) members *= size;
  Int(static_cast<int64_t>(sizes.size()));
  Int(members);
  for (size_t axis = 0; axis < kMaxAxes; ++axis) Int(axis < sizes.size() ? sizes[axis] : 1);
}

Library::Library(const Driver& driver, CUdevice device, std::function<std::string(const std::string&)> image)
    : driver_(driver), cu_device_(device), device_(DescribeDevice(driver, device)), image_(std::move(image)) {}

Library::~Library() {
  for (auto& [name, kernel] : kernels_) {
    if (kernel.library != nullptr) driver_.cuLibraryUnload(kernel.library);
  }
}

Library::Kernel& Library::Find(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return kernels_[name];
}

void Library::Load(Kernel& kernel, const std::string& name) {
  if (kernel.handle != nullptr) return;
  const std::string image = image_(name);
  Kernel fresh;
  driver_.Check(driver_.cuLibraryLoadData(&fresh.library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
                "cuLibraryLoadData");
  try {
    driver_.Check(driver_.cuLibraryGetKernel(&fresh.handle, fresh.library, name.c_str()), "cuLibraryGetKernel");
    CUfunction function = nullptr;  // asking for it loads the kernel into the current context
    driver_.Check(driver_.cuKernelGetFunction(&function, fresh.handle), "cuKernelGetFunction");
    if (driver_.cuKernelGetParamInfo != nullptr) {
      size_t offset = 0;
      driver_.Check(driver_.cuKernelGetParamInfo(fresh.handle, 0, &offset, &fresh.parameter_bytes), "cuKernelGetParamInfo");
    }
    fresh.shared_limit = std::min(Attribute(fresh, kMaxDynamicSharedSizeBytes), (48 << 10) - Attribute(fresh, kSharedSizeBytes));
  } catch (...) {
    driver_.cuLibraryUnload(fresh.library);
    throw;
  }
  kernel.library = fresh.library;
  kernel.handle = fresh.handle;
  kernel.parameter_bytes = fresh.parameter_bytes;
  kernel.shared_limit = fresh.shared_limit;
}

std::map<std::string, KernelInfo> Library::Describe() {
  const std::lock_guard lock(mutex_);
  std::map<std::string, KernelInfo> described;
  for (auto& [name, kernel] : kernels_) {
    const std::unique_lock loading(kernel.mutex, std::try_to_lock);
    if (!loading || kernel.handle == nullptr) continue;
    auto get = [&](CUfunction_attribute attribute) { return Attribute(kernel, attribute); };
    described[name] = {get(kNumRegs), get(kMaxThreadsPerBlock), get(kLocalSizeBytes), get(kSharedSizeBytes)};
  }
  return described;
}

int Library::Clusters(const char* kernel, const Grid& grid) {
  Kernel& k = Find(kernel);
  const std::lock_guard lock(k.mutex);
  Load(k, kernel);
  const std::tuple key{grid.threads, grid.shared, grid.cluster};
  const auto known = k.clusters.find(key);
  if (known != k.clusters.end()) return known->second;
  AllowShared(k, grid.shared);
  AllowClusters(k, grid.cluster);
  CUlaunchAttribute cluster{};
  const CUlaunchConfig config = ConfigOf(grid, nullptr, cluster);
  int clusters = 0;
  const CUresult result = driver_.cuOccupancyMaxActiveClusters(&clusters, reinterpret_cast<CUfunction>(k.handle), &config);
  if (result == kNoSuchCluster) {
    clusters = 0;
  } else {
    driver_.Check(result, "cuOccupancyMaxActiveClusters");
  }
  k.clusters.insert({key, clusters});
  return clusters;
}

int Library::Occupancy(const char* kernel, int threads, int64_t shared) {
  Kernel& k = Find(kernel);
  const std::lock_guard lock(k.mutex);
  Load(k, kernel);
  const auto known = k.occupancy.find({threads, shared});
  if (known != k.occupancy.end()) return known->second;
  AllowShared(k, shared);
  int blocks = 0;
  driver_.Check(driver_.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, reinterpret_cast<CUfunction>(k.handle), threads,
                                                                    static_cast<size_t>(shared)),
                "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  k.occupancy.insert({{threads, shared}, blocks});
  return blocks;
}

CUkernel Library::Prepare(const char* kernel, const Grid& grid, const Words& words) {
  if (grid.blocks < 0 || grid.blocks > std::numeric_limits<int32_t>::max()) {
    throw std::runtime_error(std::string(kernel) + ": " + std::to_string(grid.blocks) + " blocks are not possible");
  }
  Kernel& k = Find(kernel);
  const std::lock_guard lock(k.mutex);
  Load(k, kernel);
  // A parameter of another size than the kernel's would be read beyond its end.
  if (k.parameter_bytes != 0 && k.parameter_bytes != words.bytes()) {
    throw std::logic_error(std::string(kernel) + " has " + std::to_string(k.parameter_bytes) + " bytes of parameters, given " +
                           std::to_string(words.bytes()));
  }
  AllowShared(k, grid.shared);
  AllowClusters(k, grid.cluster);
  return k.handle;
}

void Library::Launch(CUstream stream, const char* kernel, const Grid& grid, const Words& words) {
  CUkernel handle = Prepare(kernel, grid, words);
  CUlaunchAttribute cluster{};
  const CUlaunchConfig config = ConfigOf(grid, stream, cluster);
  void* parameters[] = {const_cast<uint64_t*>(words.data())};
  const CUresult result = driver_.cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(handle), parameters, nullptr);
  if (result != 0) driver_.Check(result, (std::string("the launch of ") + kernel).c_str());
}

void Library::AllowShared(Kernel& kernel, int64_t bytes) {
  if (bytes <= kernel.shared_limit) return;
  const int limit = static_cast<int>(std::min<int64_t>(bytes, std::numeric_limits<int>::max()));
  driver_.Check(driver_.cuKernelSetAttribute(kMaxDynamicSharedSizeBytes, limit, kernel.handle, cu_device_),
                "cuKernelSetAttribute of shared memory");
  kernel.shared_limit = limit;
}

void Library::AllowClusters(Kernel& kernel, int blocks) {
  if (blocks <= 8 || kernel.wide_clusters) return;
  driver_.Check(driver_.cuKernelSetAttribute(kNonPortableClusterSizeAllowed, 1, kernel.handle, cu_device_),
                "cuKernelSetAttribute of clusters");
  kernel.wide_clusters = true;
}

int Library::Attribute(const Kernel& kernel, CUfunction_attribute attribute) const {
  int value = 0;
  driver_.Check(driver_.cuKernelGetAttribute(&value, attribute, kernel.handle, cu_device_), "cuKernelGetAttribute");
  return value;
}

int LikelyOccupancy(const DeviceInfo& device, int threads, int64_t shared) {
  constexpr int64_t kRegisters = 64 << 10;  // of a multiprocessor
  const int64_t fit =
      std::min({int64_t{device.threads_per_multiprocessor} / threads, int64_t{device.blocks_per_multiprocessor},
                kRegisters / (int64_t{64} * threads), device.shared_per_multiprocessor / (shared + kSystemShared)});
  return static_cast<int>(fit);
}

int LikelyClusters(const DeviceInfo& device, int blocks) {
  return device.major < 9 ? 0 : device.multiprocessors / std::max(1, blocks);
}

void Launcher::Launch(const char* kernel, const Grid& grid, const Words& words) {
  if (grid.blocks == 0) return;
  if (names_ != nullptr) {
    if (std::find(names_->begin(), names_->end(), kernel) == names_->end()) names_->emplace_back(kernel);
  } else if (loads_only_) {
    library_->Prepare(kernel, grid, words);
  } else {
    library_->Launch(stream_, kernel, grid, words);
  }
}

void Launcher::Fill(void* p, uint8_t byte, int64_t bytes) {
  if (bytes <= 0 || loads_only_) return;
  const Driver& driver = library_->driver();
  driver.Check(driver.cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(p), byte, static_cast<size_t>(bytes), stream_),
               "cuMemsetD8Async");
}

StreamContext::StreamContext(const Driver& driver, CUstream stream) : driver_(driver) {
  if (stream == nullptr) return;
  CUcontext context = nullptr;
  driver.Check(driver.cuStreamGetCtx(stream, &context), "cuStreamGetCtx");
  driver.Check(driver.cuCtxGetCurrent(&before_), "cuCtxGetCurrent");
  if (context != before_) {
    driver.Check(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    switched_ = true;
  }
  driver.Check(driver.cuCtxGetDevice(&device_), "cuCtxGetDevice");
}

StreamContext::~StreamContext() {
  if (switched_) driver_.cuCtxSetCurrent(before_);
}

}  // namespace jaxprims::cuda
