// CUB's kernels for what bench/sass.py reads ours of: compiled, and never run.
#include "cub.h"

ENTRY sum(void* temporary, size_t* bytes, const float* in, float* out, int n) {
  return cub::DeviceReduce::Sum(temporary, *bytes, in, out, n);
}

ENTRY cumsum(void* temporary, size_t* bytes, const float* in, float* out, int n) {
  return cub::DeviceScan::InclusiveSum(temporary, *bytes, in, out, n);
}

ENTRY affine_maps(void* temporary, size_t* bytes, const Affine* in, Affine* out, int n) {
  return cub::DeviceScan::InclusiveScan(temporary, *bytes, in, out, Compose(), n);
}

ENTRY segments_by_offsets(void* temporary, size_t* bytes, const float* in, const int32_t* offsets, float* out, int segments) {
  return cub::DeviceSegmentedReduce::Sum(temporary, *bytes, in, out, segments, offsets, offsets + 1);
}

ENTRY segments_by_ids(void* temporary, size_t* bytes, const float* in, const int32_t* ids, int32_t* unique, float* out,
                      int32_t* count, int n) {
  return cub::DeviceReduce::ReduceByKey(temporary, *bytes, ids, unique, in, out, count, Add(), n);
}

ENTRY histogram(void* temporary, size_t* bytes, const float* in, int32_t* counts, int n) {
  return cub::DeviceHistogram::HistogramEven(temporary, *bytes, in, counts, 101, -4.0f, 4.0f, n);
}
