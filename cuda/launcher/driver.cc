#include "driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace jaxprims::cuda {
namespace {

struct Opened {
  Driver driver{};
  std::string error;
};

template <class F>
bool Find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

Opened Open() {
  Opened opened;
  const char* chosen = std::getenv("JAXPRIMS_CUDA_DRIVER");  // NOLINT(concurrency-mt-unsafe): nothing here changes it
  const char* name = chosen != nullptr && *chosen != 0 ? chosen : "libcuda.so.1";
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    opened.error = std::string("no CUDA driver: ") + dlerror();  // NOLINT(concurrency-mt-unsafe): the error of this thread
    return opened;
  }
  Driver& d = opened.driver;
  auto find = [&](const char* function, auto& to) {
    if (Find(library, function, to) || !opened.error.empty()) return;
    opened.error = std::string("the CUDA driver ") + name + " is too old: it has no " + function;
  };
#define JAXPRIMS_FIND(function) find(#function, d.function)
  JAXPRIMS_FIND(cuInit);
  JAXPRIMS_FIND(cuGetErrorName);
  JAXPRIMS_FIND(cuGetErrorString);
  JAXPRIMS_FIND(cuDeviceGetCount);
  JAXPRIMS_FIND(cuDeviceGet);
  JAXPRIMS_FIND(cuDeviceGetName);
  JAXPRIMS_FIND(cuDeviceGetAttribute);
  JAXPRIMS_FIND(cuCtxGetCurrent);
  JAXPRIMS_FIND(cuCtxSetCurrent);
  JAXPRIMS_FIND(cuCtxGetDevice);
  JAXPRIMS_FIND(cuStreamGetCtx);
  JAXPRIMS_FIND(cuLibraryLoadData);
  JAXPRIMS_FIND(cuLibraryUnload);
  JAXPRIMS_FIND(cuLibraryGetKernel);
  JAXPRIMS_FIND(cuKernelGetFunction);
  JAXPRIMS_FIND(cuKernelGetAttribute);
  JAXPRIMS_FIND(cuKernelSetAttribute);
  JAXPRIMS_FIND(cuOccupancyMaxActiveBlocksPerMultiprocessor);
  JAXPRIMS_FIND(cuOccupancyMaxActiveClusters);
  JAXPRIMS_FIND(cuLaunchKernelEx);
  JAXPRIMS_FIND(cuMemsetD8Async);
  JAXPRIMS_FIND(cuMemcpyAsync);
#undef JAXPRIMS_FIND
  Find(library, "cuKernelGetParamInfo", d.cuKernelGetParamInfo);
  if (!opened.error.empty()) return opened;
  try {
    d.Check(d.cuInit(0), "cuInit");
  } catch (const std::exception& e) {
    opened.error = e.what();
  }
  return opened;
}

const Opened& TheDriver() {
  static const auto* opened = new Opened(Open());  // never destroyed: kernels may run until the process exits
  return *opened;
}

}  // namespace

void Driver::Check(CUresult result, const char* what) const {
  if (result == 0) return;
  const char *name = nullptr, *text = nullptr;
  if (cuGetErrorName(result, &name) != 0 || name == nullptr) name = "an unknown error";
  if (cuGetErrorString(result, &text) != 0 || text == nullptr) text = "no description";
  throw std::runtime_error(std::string(what) + " failed: " + name + " (" + std::to_string(result) + "): " + text);
}

const Driver& OpenDriver() {
  if (!TheDriver().error.empty()) throw std::runtime_error(TheDriver().error);
  return TheDriver().driver;
}

std::string DriverError() { return TheDriver().error; }

}  // namespace jaxprims::cuda
