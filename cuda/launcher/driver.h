// The CUDA driver, opened at run time: neither building nor importing needs CUDA. Declared here is what the launcher calls, with
// the driver's own names and values; none of it has had more than one version, so the names are those that the library exports.
#pragma once

#include <cstddef>
#include <string>

namespace jaxprims::cuda {

using CUresult = int;  // 0: success
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUlibrary = struct CUlib_st*;
using CUkernel = struct CUkern_st*;
using CUfunction = struct CUfunc_st*;  // a CUkernel is taken as one

// NOLINTBEGIN(performance-enum-size): as wide as C's
enum CUdevice_attribute : int {
  kMultiprocessorCount = 16,
  kL2CacheSize = 38,
  kMaxThreadsPerMultiprocessor = 39,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMaxSharedMemoryPerMultiprocessor = 81,
  kMaxSharedMemoryPerBlockOptin = 97,
  kMaxBlocksPerMultiprocessor = 106,
};

enum CUfunction_attribute : int {
  kMaxThreadsPerBlock = 0,
  kSharedSizeBytes = 1,  // static
  kLocalSizeBytes = 3,
  kNumRegs = 4,
  kMaxDynamicSharedSizeBytes = 8,
  kNonPortableClusterSizeAllowed = 14,
};
// NOLINTEND(performance-enum-size)

inline constexpr int kClusterDimension = 4;      // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
inline constexpr CUresult kNoSuchCluster = 912;  // CUDA_ERROR_INVALID_CLUSTER_SIZE

struct CUlaunchAttribute {
  int id;
  char pad[4];
  union {
    char all[64];
    struct {
      unsigned x, y, z;
    } cluster;
  } value;
};

struct CUlaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  CUstream stream;
  CUlaunchAttribute* attributes;
  unsigned attribute_count;
};

struct Driver {
  CUresult (*cuInit)(unsigned flags);
  CUresult (*cuGetErrorName)(CUresult error, const char** name);
  CUresult (*cuGetErrorString)(CUresult error, const char** text);
  CUresult (*cuDeviceGetCount)(int* count);
  CUresult (*cuDeviceGet)(CUdevice* device, int ordinal);
  CUresult (*cuDeviceGetName)(char* name, int length, CUdevice device);
  CUresult (*cuDeviceGetAttribute)(int* value, CUdevice_attribute attribute, CUdevice device);
  CUresult (*cuCtxGetCurrent)(CUcontext* context);
  CUresult (*cuCtxSetCurrent)(CUcontext context);
  CUresult (*cuCtxGetDevice)(CUdevice* device);  // of the current context
  CUresult (*cuStreamGetCtx)(CUstream stream, CUcontext* context);
  CUresult (*cuLibraryLoadData)(CUlibrary* library, const void* image, void* jit_options, void** jit_values, unsigned jit_count,
                                void* options, void** values, unsigned count);
  CUresult (*cuLibraryUnload)(CUlibrary library);
  CUresult (*cuLibraryGetKernel)(CUkernel* kernel, CUlibrary library, const char* name);
  CUresult (*cuKernelGetFunction)(CUfunction* function, CUkernel kernel);  // loads it into the current context
  CUresult (*cuKernelGetAttribute)(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device);
  CUresult (*cuKernelSetAttribute)(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device);
  CUresult (*cuKernelGetParamInfo)(CUkernel kernel, size_t number, size_t* offset, size_t* bytes);  // null before CUDA 12.4
  CUresult (*cuOccupancyMaxActiveBlocksPerMultiprocessor)(int* blocks, CUfunction function, int threads, size_t shared_bytes);
  CUresult (*cuOccupancyMaxActiveClusters)(int* clusters, CUfunction function, const CUlaunchConfig* config);
  CUresult (*cuLaunchKernelEx)(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra);
  CUresult (*cuMemsetD8Async)(CUdeviceptr to, unsigned char byte, size_t bytes, CUstream stream);
  CUresult (*cuMemcpyAsync)(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);

  // Throws std::runtime_error with the driver's words if a call failed. what: the call.
  void Check(CUresult result, const char* what) const;
};

// The driver in the library that the environment variable JAXPRIMS_CUDA_DRIVER names, or libcuda.so.1: opened and initialised on
// the first call. Throws std::runtime_error that says why there is none.
const Driver& OpenDriver();

// Empty if there is a driver, else why not.
std::string DriverError();

}  // namespace jaxprims::cuda
