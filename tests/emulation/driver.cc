// A CUDA driver whose device is the host: an image is a shared library made from a kernel's source and device.cuh of this folder,
// and a launch runs it at once. What cuda/launcher/driver.h declares is here.
//
// JAXPRIMS_EMULATION_DEVICE, as in "multiprocessors=2 shared=8192", makes other devices; JAXPRIMS_EMULATION_SEED other orders.
#include "driver.h"

#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "grid.h"

namespace {

using namespace jaxprims::cuda;

constexpr CUresult kSuccess = 0, kInvalidValue = 1, kInvalidImage = 200, kNotFound = 500, kTooManyResources = 701,
                   kLaunchFailed = 719;

struct DeviceAttribute {
  const char* name;
  CUdevice_attribute number;
  int value;
};
// The driver has no number for it: how many multiprocessors lie together, so that clusters can be in them.
constexpr auto kGroupOfMultiprocessors = static_cast<CUdevice_attribute>(-1);
constexpr DeviceAttribute kDevice[] = {
    {"multiprocessors", kMultiprocessorCount, 4},
    {"threads", kMaxThreadsPerMultiprocessor, 2048},
    {"blocks", kMaxBlocksPerMultiprocessor, 32},
    {"shared", kMaxSharedMemoryPerBlockOptin, 232448},
    {"shared_multiprocessor", kMaxSharedMemoryPerMultiprocessor, 233472},
    {"l2", kL2CacheSize, 50 << 20},
    {"major", kComputeCapabilityMajor, 9},
    {"minor", kComputeCapabilityMinor, 0},
    {"group", kGroupOfMultiprocessors, 16},
};

// -1: there is no such attribute.
int AttributeOf(CUdevice_attribute number) {
  for (const DeviceAttribute& attribute : kDevice) {
    if (attribute.number != number) continue;
    const char* chosen = getenv("JAXPRIMS_EMULATION_DEVICE");
    const std::string text = std::string(" ") + (chosen != nullptr ? chosen : "");
    const std::string key = std::string(" ") + attribute.name + "=";
    const size_t at = text.find(key);
    return at == std::string::npos ? attribute.value : atoi(text.c_str() + at + key.size());
  }
  return -1;
}

struct Library {
  void* handle = nullptr;
  size_t fixed_shared = 0;
  std::map<std::string, struct LoadedKernel> kernels;
};

struct LoadedKernel {
  Library* library = nullptr;
  std::string name;
  const emulation::Kernel* kernel = nullptr;
  int shared_limit = 48 * 1024;
  bool wide_clusters = false;
};

std::mutex& Lock() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::string& LastError() {
  static auto* text = new std::string;
  return *text;
}
int64_t launches = 0;
std::map<std::string, int64_t>& LaunchesOf() {
  static auto* counts = new std::map<std::string, int64_t>;
  return *counts;
}

CUresult Refuse(CUresult result, const std::string& why) {
  LastError() = why;
  return result;
}

size_t ImageBytes(const char* image) {
  Elf64_Ehdr header;
  memcpy(&header, image, sizeof(header));
  return header.e_shoff + size_t{header.e_shnum} * header.e_shentsize;  // the table of sections comes last
}

// The space that its thread-local variables need: shared memory.
size_t FixedShared(const char* image) {
  Elf64_Ehdr header;
  memcpy(&header, image, sizeof(header));
  for (int k = 0; k < header.e_phnum; ++k) {
    Elf64_Phdr segment;
    memcpy(&segment, image + header.e_phoff + static_cast<size_t>(k) * header.e_phentsize, sizeof(segment));
    if (segment.p_type == PT_TLS) return segment.p_memsz;
  }
  return 0;
}

LoadedKernel& KernelOf(CUfunction function) { return *reinterpret_cast<LoadedKernel*>(function); }
LoadedKernel& KernelOf(CUkernel kernel) { return *reinterpret_cast<LoadedKernel*>(kernel); }

template <class F>
F Symbol(const Library& library, const char* name) {
  return reinterpret_cast<F>(dlsym(library.handle, name));
}

CUresult Launch(const CUlaunchConfig& config, LoadedKernel& loaded, void** parameters) {
  const emulation::Kernel& kernel = *loaded.kernel;
  emulation::GridShape shape;
  shape.blocks = config.grid_x;
  shape.threads = static_cast<int>(config.block_x);
  shape.dynamic_shared = config.shared_bytes;
  shape.fixed_shared = loaded.library->fixed_shared;
  for (unsigned k = 0; k < config.attribute_count; ++k) {
    const CUlaunchAttribute& attribute = config.attributes[k];
    if (attribute.id == kClusterDimension) shape.cluster = static_cast<int>(attribute.value.cluster.x);
    if (attribute.id == 2) shape.all_at_once = true;  // CU_LAUNCH_ATTRIBUTE_COOPERATIVE
  }
  const std::string name = "kernel " + loaded.name + ": ";
  if (config.grid_y != 1 || config.grid_z != 1 || config.block_y != 1 || config.block_z != 1) {
    return Refuse(kInvalidValue, name + "grids and blocks of one dimension only");
  }
  if (shape.blocks < 1 || shape.blocks > 0x7fffffff) return Refuse(kInvalidValue, name + "no such grid");
  if (shape.threads < 1 || shape.threads > 1024) return Refuse(kInvalidValue, name + "no such block");
  if (shape.threads > kernel.max_threads) {
    return Refuse(kTooManyResources,
                  name + std::to_string(shape.threads) + " threads, its bound is " + std::to_string(kernel.max_threads));
  }
  if (config.shared_bytes > static_cast<unsigned>(loaded.shared_limit)) {
    return Refuse(kInvalidValue, name + std::to_string(config.shared_bytes) + " bytes of shared memory, allowed are " +
                                     std::to_string(loaded.shared_limit));
  }
  if (shape.fixed_shared > 48 * 1024 ||
      shape.fixed_shared + shape.dynamic_shared > static_cast<size_t>(AttributeOf(kMaxSharedMemoryPerBlockOptin))) {
    return Refuse(kInvalidValue, name + std::to_string(shape.fixed_shared) + " bytes of variables in shared memory and " +
                                     std::to_string(shape.dynamic_shared) + " more are too many");
  }
  if (shape.cluster < 1 || shape.cluster > (loaded.wide_clusters ? 16 : 8) || shape.blocks % shape.cluster != 0 ||
      (shape.cluster > 1 && AttributeOf(kComputeCapabilityMajor) < 9)) {
    return Refuse(kInvalidValue, name + "no clusters of " + std::to_string(shape.cluster) + " blocks");
  }

  struct alignas(16) TwoWords {
    uint64_t w[2];
  };
  std::vector<TwoWords> words(static_cast<size_t>(kernel.parameter_bytes + 15) / 16);
  memcpy(words.data(), parameters[0], static_cast<size_t>(kernel.parameter_bytes));

  const char* chosen = getenv("JAXPRIMS_EMULATION_SEED");
  const uint64_t seed = (chosen != nullptr ? strtoull(chosen, nullptr, 10) : 0) * 1000003 + static_cast<uint64_t>(launches++);
  ++LaunchesOf()[loaded.name];
  auto** where = Symbol<emulation::Thread** (*)()>(*loaded.library, "jp_emulation_current")();
  const char* source = Symbol<const char* (*)()>(*loaded.library, "jp_emulation_source")();
  emulation::Grid grid(kernel, loaded.name, source, where, shape, words.data(), seed);
  const std::string error = grid.Run();
  return error.empty() ? kSuccess : Refuse(kLaunchFailed, error);
}

}  // namespace

extern "C" {

// Of the kernels so far, "name count" in lines.
const char* jp_emulation_launches() {
  static auto* text = new std::string;
  const std::lock_guard lock(Lock());
  text->clear();
  for (const auto& [name, count] : LaunchesOf()) *text += name + " " + std::to_string(count) + "\n";
  return text->c_str();
}
void jp_emulation_restart() { launches = 0; }  // of the seed's sequence

CUresult cuInit(unsigned) { return kSuccess; }
CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = error == kInvalidValue       ? "CUDA_ERROR_INVALID_VALUE"
          : error == kInvalidImage     ? "CUDA_ERROR_INVALID_IMAGE"
          : error == kNotFound         ? "CUDA_ERROR_NOT_FOUND"
          : error == kTooManyResources ? "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
          : error == kLaunchFailed     ? "CUDA_ERROR_LAUNCH_FAILED"
                                       : "CUDA_ERROR_UNKNOWN";
  return kSuccess;
}
CUresult cuGetErrorString(CUresult, const char** text) {
  static auto* texts = new std::deque<std::string>;  // never freed, as callers may keep them
  const std::lock_guard lock(Lock());
  texts->push_back(LastError());
  *text = texts->back().c_str();
  return kSuccess;
}

CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return kSuccess;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? kSuccess : kInvalidValue;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  strncpy(name, "emulated GPU", static_cast<size_t>(length));
  return kSuccess;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = AttributeOf(attribute);
  return *value >= 0 ? kSuccess : kInvalidValue;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = nullptr;
  return kSuccess;
}
CUresult cuCtxSetCurrent(CUcontext) { return kSuccess; }
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return kSuccess;
}
CUresult cuStreamGetCtx(CUstream, CUcontext* context) {
  *context = nullptr;
  return kSuccess;
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* image, void*, void**, unsigned, void*, void**, unsigned) {
  const std::lock_guard lock(Lock());
  const char* bytes = static_cast<const char*>(image);
  if (memcmp(bytes, ELFMAG, SELFMAG) != 0) return Refuse(kInvalidImage, "not an ELF file");
  static int number = 0;
  const char* folder = getenv("TMPDIR");  // a new name for each: the loader knows libraries by their names
  const std::string path = std::string(folder != nullptr ? folder : "/tmp") + "/jaxprims-kernel-" + std::to_string(getpid()) +
                           "-" + std::to_string(number++) + ".so";
  std::ofstream(path, std::ios::binary).write(bytes, static_cast<std::streamsize>(ImageBytes(bytes)));
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const std::string error = handle == nullptr ? dlerror() : "";
  unlink(path.c_str());
  if (handle == nullptr) return Refuse(kInvalidImage, error);
  *library = reinterpret_cast<CUlibrary>(new Library{handle, FixedShared(bytes), {}});
  return kSuccess;
}
CUresult cuLibraryUnload(CUlibrary library) {
  const std::lock_guard lock(Lock());
  auto* loaded = reinterpret_cast<Library*>(library);
  dlclose(loaded->handle);
  delete loaded;
  return kSuccess;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  const std::lock_guard lock(Lock());
  auto* loaded = reinterpret_cast<Library*>(library);
  const auto* found = Symbol<const emulation::Kernel*>(*loaded, (std::string(name) + "_emulated").c_str());
  if (found == nullptr) return Refuse(kNotFound, std::string("the image has no kernel ") + name);
  LoadedKernel& known = loaded->kernels[name];
  if (known.kernel == nullptr) known = {loaded, name, found};
  *kernel = reinterpret_cast<CUkernel>(&known);
  return kSuccess;
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  *function = reinterpret_cast<CUfunction>(kernel);
  return kSuccess;
}
CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice) {
  const std::lock_guard lock(Lock());
  const LoadedKernel& loaded = KernelOf(kernel);
  switch (attribute) {
    case kMaxThreadsPerBlock:
      *value = loaded.kernel->max_threads;
      break;
    case kSharedSizeBytes:
      *value = static_cast<int>(loaded.library->fixed_shared);
      break;
    case kMaxDynamicSharedSizeBytes:
      *value = loaded.shared_limit;
      break;
    case kNonPortableClusterSizeAllowed:
      *value = loaded.wide_clusters;
      break;
    default:
      *value = 0;
  }
  return kSuccess;
}
CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice) {
  const std::lock_guard lock(Lock());
  LoadedKernel& loaded = KernelOf(kernel);
  if (attribute == kMaxDynamicSharedSizeBytes && value <= AttributeOf(kMaxSharedMemoryPerBlockOptin)) {
    loaded.shared_limit = value;
  } else if (attribute == kNonPortableClusterSizeAllowed) {
    loaded.wide_clusters = value != 0;
  } else {
    return Refuse(kInvalidValue, "attribute " + std::to_string(attribute) + " cannot be " + std::to_string(value));
  }
  return kSuccess;
}
CUresult cuKernelGetParamInfo(CUkernel kernel, size_t number, size_t* offset, size_t* bytes) {
  if (number != 0) return kInvalidValue;
  *offset = 0;
  *bytes = static_cast<size_t>(KernelOf(kernel).kernel->parameter_bytes);
  return kSuccess;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads, size_t shared_bytes) {
  const LoadedKernel& loaded = KernelOf(function);
  const int by_threads = AttributeOf(kMaxThreadsPerMultiprocessor) / ((threads + 31) / 32 * 32);
  const int by_shared =
      AttributeOf(kMaxSharedMemoryPerMultiprocessor) / static_cast<int>(1024 + loaded.library->fixed_shared + shared_bytes);
  const bool possible =
      threads > 0 && threads <= loaded.kernel->max_threads && shared_bytes <= static_cast<size_t>(loaded.shared_limit);
  *blocks = possible ? std::min({by_threads, by_shared, AttributeOf(kMaxBlocksPerMultiprocessor)}) : 0;
  return kSuccess;
}
CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function, const CUlaunchConfig* config) {
  int cluster = 1, blocks = 0;
  for (unsigned k = 0; k < config->attribute_count; ++k) {
    if (config->attributes[k].id == kClusterDimension) cluster = static_cast<int>(config->attributes[k].value.cluster.x);
  }
  if (AttributeOf(kComputeCapabilityMajor) < 9 || cluster > (KernelOf(function).wide_clusters ? 16 : 8)) return kNoSuchCluster;
  cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, static_cast<int>(config->block_x), config->shared_bytes);
  const int all = AttributeOf(kMultiprocessorCount), group = std::max(1, AttributeOf(kGroupOfMultiprocessors));
  *clusters = all / group * (group * blocks / cluster) + all % group * blocks / cluster;
  return kSuccess;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void**) {
  const std::lock_guard lock(Lock());
  return Launch(*config, KernelOf(function), parameters);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char byte, size_t bytes, CUstream) {
  const std::lock_guard lock(Lock());
  memset(reinterpret_cast<void*>(to), byte, bytes);
  return kSuccess;
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
  const std::lock_guard lock(Lock());
  memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return kSuccess;
}

}  // extern "C"
