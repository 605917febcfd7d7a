// What `futhark cuda` writes calls cuCtxCreate with three arguments; CUDA 13's header gives that name to the one with four.
#pragma once

#include <cuda.h>

#undef cuCtxCreate
#define cuCtxCreate cuCtxCreate_v2
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
