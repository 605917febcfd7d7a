// What driver.h declares is what cuda.h does: where there is a cuda.h.

#include "driver.h"

#include <cstdlib>
#include <string>

#include "check.h"

#if __has_include(<cuda.h>)
#include <cuda.h>

#include <cstddef>
#include <type_traits>

namespace {

namespace own = jaxprims::cuda;

// A signature with all pointers and all enumerations as one.
template <class T>
using Plain = std::conditional_t<std::is_pointer_v<T>, void*, std::conditional_t<std::is_enum_v<T>, int, T>>;
template <class F>
struct Signature;
template <class R, class... A>
struct Signature<R (*)(A...)> {
  using type = Plain<R> (*)(Plain<A>...);
};

#define SAME(function) \
  static_assert(std::is_same_v<Signature<decltype(own::Driver::function)>::type, Signature<decltype(&::function)>::type>)
SAME(cuInit);
SAME(cuGetErrorName);
SAME(cuGetErrorString);
SAME(cuDeviceGetCount);
SAME(cuDeviceGet);
SAME(cuDeviceGetName);
SAME(cuDeviceGetAttribute);
SAME(cuCtxGetCurrent);
SAME(cuCtxSetCurrent);
SAME(cuCtxGetDevice);
SAME(cuStreamGetCtx);
SAME(cuLibraryLoadData);
SAME(cuLibraryUnload);
SAME(cuLibraryGetKernel);
SAME(cuKernelGetFunction);
SAME(cuKernelGetAttribute);
SAME(cuKernelSetAttribute);
SAME(cuOccupancyMaxActiveBlocksPerMultiprocessor);
SAME(cuOccupancyMaxActiveClusters);
SAME(cuLaunchKernelEx);
SAME(cuMemsetD8Async);
SAME(cuMemcpyAsync);
#if CUDA_VERSION >= 12040
SAME(cuKernelGetParamInfo);
#endif
#undef SAME

#define SAME(name, NAME) static_assert(static_cast<int>(own::name) == static_cast<int>(NAME))
SAME(kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(kL2CacheSize, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME(kMaxThreadsPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
SAME(kComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(kComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(kMaxSharedMemoryPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
SAME(kMaxSharedMemoryPerBlockOptin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME(kMaxBlocksPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
SAME(kMaxThreadsPerBlock, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME(kSharedSizeBytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
SAME(kLocalSizeBytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
SAME(kNumRegs, CU_FUNC_ATTRIBUTE_NUM_REGS);
SAME(kMaxDynamicSharedSizeBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(kNonPortableClusterSizeAllowed, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
SAME(kClusterDimension, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
#undef SAME

static_assert(sizeof(own::CUlaunchAttribute) == sizeof(::CUlaunchAttribute));
static_assert(offsetof(own::CUlaunchAttribute, value.cluster.x) == offsetof(::CUlaunchAttribute, value.clusterDim.x));
static_assert(sizeof(own::CUlaunchConfig) == sizeof(::CUlaunchConfig));
static_assert(offsetof(own::CUlaunchConfig, block_x) == offsetof(::CUlaunchConfig, blockDimX));
static_assert(offsetof(own::CUlaunchConfig, shared_bytes) == offsetof(::CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(own::CUlaunchConfig, stream) == offsetof(::CUlaunchConfig, hStream));
static_assert(offsetof(own::CUlaunchConfig, attributes) == offsetof(::CUlaunchConfig, attrs));
static_assert(offsetof(own::CUlaunchConfig, attribute_count) == offsetof(::CUlaunchConfig, numAttrs));

}  // namespace
#endif

namespace jaxprims::test::driver_test {
namespace {

TEST(DriverThatIsNotThere) {
  setenv("JAXPRIMS_CUDA_DRIVER", "/nowhere/libcuda.so.1", 1);  // NOLINT(concurrency-mt-unsafe): tests run one by one
  const std::string error = cuda::DriverError();
  CHECK(error.find("/nowhere/libcuda.so.1") != std::string::npos);
  std::string thrown;
  try {
    cuda::OpenDriver();
  } catch (const std::exception& e) {
    thrown = e.what();
  }
  CHECK_EQ(thrown, error);
}

}  // namespace
}  // namespace jaxprims::test::driver_test
