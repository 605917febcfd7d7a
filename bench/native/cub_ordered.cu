// CUB's scans, reductions and segmented reductions; and the memory's bandwidth.
#include "cub.h"

namespace {

__global__ void Read(const float4* from, float* to, int64_t n) {
  float sum = 0;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < n; i += 4 * stride) {
    const float4 a = __ldcs(from + i), b = __ldcs(from + i + stride);
    const float4 c = __ldcs(from + i + 2 * stride), d = __ldcs(from + i + 3 * stride);
    sum += (a.x + a.y + a.z + a.w) + (b.x + b.y + b.z + b.w) + (c.x + c.y + c.z + c.w) + (d.x + d.y + d.z + d.w);
  }
  for (; i < n; i += stride) {
    const float4 a = __ldcs(from + i);
    sum += a.x + a.y + a.z + a.w;
  }
  if (sum == 12345.678f) *to = sum;  // so that the loads stay
}

__global__ void Copy(const float4* from, float4* to, int64_t n) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < n; i += 4 * stride) {
    const float4 a = __ldcs(from + i), b = __ldcs(from + i + stride);
    const float4 c = __ldcs(from + i + 2 * stride), d = __ldcs(from + i + 3 * stride);
    __stcs(to + i, a), __stcs(to + i + stride, b), __stcs(to + i + 2 * stride, c), __stcs(to + i + 3 * stride, d);
  }
  for (; i < n; i += stride) __stcs(to + i, __ldcs(from + i));
}

int Blocks() {
  int device = 0, multiprocessors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  return 8 * multiprocessors;
}

}  // namespace

ENTRY synchronize() { return cudaStreamSynchronize(nullptr); }

ENTRY clear(void* to, int64_t bytes) { return cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), nullptr); }

ENTRY read_all(const float* from, float* to, int64_t n) {
  Read<<<Blocks(), 256>>>(reinterpret_cast<const float4*>(from), to, n / 4);
  return cudaGetLastError();
}

ENTRY copy_kernel(const float* from, float* to, int64_t n) {
  Copy<<<Blocks(), 256>>>(reinterpret_cast<const float4*>(from), reinterpret_cast<float4*>(to), n / 4);
  return cudaGetLastError();
}

ENTRY copy_engine(const float* from, float* to, int64_t n) {
  return cudaMemcpyAsync(to, from, static_cast<size_t>(n) * sizeof(float), cudaMemcpyDeviceToDevice, nullptr);
}

ENTRY scan_add(void* temporary, size_t* bytes, const float* in, float* out, int64_t n) {
  return cub::DeviceScan::InclusiveSum(temporary, *bytes, in, out, n);
}

ENTRY scan_max(void* temporary, size_t* bytes, const float* in, float* out, int64_t n) {
  return cub::DeviceScan::InclusiveScan(temporary, *bytes, in, out, Larger(), n);
}

ENTRY scan_affine(void* temporary, size_t* bytes, const Affine* in, Affine* out, int64_t n) {
  return cub::DeviceScan::InclusiveScan(temporary, *bytes, in, out, Compose(), n);
}

ENTRY reduce_add(void* temporary, size_t* bytes, const float* in, float* out, int64_t n) {
  return cub::DeviceReduce::Sum(temporary, *bytes, in, out, n);
}

ENTRY reduce_min(void* temporary, size_t* bytes, const float* in, float* out, int64_t n) {
  return cub::DeviceReduce::Min(temporary, *bytes, in, out, n);
}

ENTRY segments_add(void* temporary, size_t* bytes, const float* in, const int32_t* offsets, float* out, int64_t segments) {
  return cub::DeviceSegmentedReduce::Sum(temporary, *bytes, in, out, segments, offsets, offsets + 1);
}

ENTRY segments_max(void* temporary, size_t* bytes, const float* in, const int32_t* offsets, float* out, int64_t segments) {
  return cub::DeviceSegmentedReduce::Max(temporary, *bytes, in, out, segments, offsets, offsets + 1);
}

ENTRY segments_min(void* temporary, size_t* bytes, const float* in, const int32_t* offsets, float* out, int64_t segments) {
  return cub::DeviceSegmentedReduce::Min(temporary, *bytes, in, out, segments, offsets, offsets + 1);
}

ENTRY ids_max(void* temporary, size_t* bytes, const float* in, const int32_t* ids, int32_t* unique, float* out, int32_t* count,
              int64_t n) {
  return cub::DeviceReduce::ReduceByKey(temporary, *bytes, ids, unique, in, out, count, Larger(), n);
}
