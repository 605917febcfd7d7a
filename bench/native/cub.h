// What the entries of cub_*.cu share. Each enqueues one operation on the default stream and follows CUB's convention: without
// `temporary` it only says how many bytes of it are wanted. They return CUDA's error code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cub/cub.cuh>

#define ENTRY extern "C" __attribute__((visibility("default"))) int
#define TRY(call) \
  if (const cudaError_t error = (call); error != cudaSuccess) return error

struct Add {
  template <class T>
  __host__ __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

struct Smaller {
  __host__ __device__ float operator()(float a, float b) const { return b < a ? b : a; }
};

struct Larger {
  __host__ __device__ float operator()(float a, float b) const { return b > a ? b : a; }
};

// A value and where it is: the larger value, and of equal ones the first.
struct Pair {
  int32_t value, position;
};

struct Argmax {
  __host__ __device__ Pair operator()(Pair a, Pair b) const {
    return b.value > a.value || (b.value == a.value && b.position < a.position) ? b : a;
  }
};

struct Saturating {
  __host__ __device__ uint32_t operator()(uint32_t a, uint32_t b) const {
    const uint32_t sum = a + b;
    return sum < 0xffffffu ? sum : 0xffffffu;
  }
};

// x -> scale * x + shift, the first map first.
struct Affine {
  float scale, shift;
};

struct Compose {
  __host__ __device__ Affine operator()(Affine a, Affine b) const { return {b.scale * a.scale, b.scale * a.shift + b.shift}; }
};
