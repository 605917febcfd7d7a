// The hardware: all that kernels need beyond plain C++ goes through here, so that the same kernels run on a host for tests
// (tests/emulation/device.cuh has the same names). No header of CUDA's own is needed.
#pragma once

#define JP_DEVICE __device__ __forceinline__
// Between host and device: plans are one text for the launcher, the kernels and their tests.
#define JP_HOST_DEVICE __host__ __device__ __forceinline__
// A kernel of one parameter, a struct of 8-byte words. `resident`: blocks of a multiprocessor that registers must suffice for; one,
// where a kernel that spilled is compiled again.
#ifdef JP_ONE_RESIDENT
#define JP_KERNEL(name, Params, threads, resident) \
  extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ Params p)
#else
#define JP_KERNEL(name, Params, threads, resident) \
  extern "C" __global__ void __launch_bounds__(threads, resident) name(const __grid_constant__ Params p)
#endif
// A variable in shared memory, in a function's scope; of a trivial type.
#define JP_SHARED(type, name) __shared__ type name

#include "host_device.h"

namespace jp {

#ifdef __CUDA_ARCH__
constexpr int kArch = __CUDA_ARCH__ / 10;  // 80, 90, 100
#else
constexpr int kArch = 90;
#endif

JP_DEVICE int Thread() { return static_cast<int>(threadIdx.x); }
JP_DEVICE int Threads() { return static_cast<int>(blockDim.x); }
JP_DEVICE int Lane() { return static_cast<int>(threadIdx.x & 31); }
JP_DEVICE int Warp() { return static_cast<int>(threadIdx.x >> 5); }
JP_DEVICE i64 Block() { return blockIdx.x; }
JP_DEVICE i64 Blocks() { return gridDim.x; }

// The block's dynamic shared memory, aligned to 16 bytes.
JP_DEVICE char* DynamicShared() {
  extern __shared__ uint4 dynamic_shared[];
  return reinterpret_cast<char*>(dynamic_shared);
}

// --- waiting ------------------------------------------------------------------------------------------------------------------

JP_DEVICE void BlockBarrier() { __syncthreads(); }
JP_DEVICE bool BlockAny(bool x) { return __syncthreads_or(x); }  // a barrier, too
JP_DEVICE void WarpBarrier(u32 lanes = kAllLanes) { __syncwarp(lanes); }
// Named barrier `number` (1 to 15) of `threads` threads: producers and consumers.
JP_DEVICE void NamedBarrier(int number, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory"); }
JP_DEVICE void Fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
JP_DEVICE void BlockFence() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }
// In a loop that waits for other threads.
JP_DEVICE void Backoff() { __nanosleep(32); }

// --- warps --------------------------------------------------------------------------------------------------------------------

JP_DEVICE u32 Ballot(bool x, u32 lanes = kAllLanes) { return __ballot_sync(lanes, x); }
JP_DEVICE bool WarpAny(bool x, u32 lanes = kAllLanes) { return __any_sync(lanes, x); }
JP_DEVICE bool WarpAll(bool x, u32 lanes = kAllLanes) { return __all_sync(lanes, x); }
JP_DEVICE u32 MatchAny(u32 x, u32 lanes = kAllLanes) { return __match_any_sync(lanes, x); }
JP_DEVICE u32 MatchAny(u64 x, u32 lanes = kAllLanes) { return __match_any_sync(lanes, x); }
JP_DEVICE u32 ActiveLanes() { return __activemask(); }
JP_DEVICE int PopulationCount(u32 x) { return __popc(x); }
JP_DEVICE int PopulationCount(u64 x) { return __popcll(x); }
JP_DEVICE int LeadingZeros(u32 x) { return __clz(static_cast<int>(x)); }
JP_DEVICE int LeadingZeros(u64 x) { return __clzll(static_cast<i64>(x)); }
JP_DEVICE int FirstLane(u32 lanes) { return __ffs(static_cast<int>(lanes)) - 1; }

template <class T>
struct ShuffledAs {
  using type = T;
};
template <> struct ShuffledAs<bool> { using type = int; };
template <> struct ShuffledAs<signed char> { using type = int; };
template <> struct ShuffledAs<u8> { using type = u32; };
template <> struct ShuffledAs<short> { using type = int; };
template <> struct ShuffledAs<u16> { using type = u32; };

// Of scalars. A lane without a source keeps its own value.
template <class T>
JP_DEVICE T ShuffleUp(T x, int by, u32 lanes = kAllLanes) {
  return static_cast<T>(__shfl_up_sync(lanes, static_cast<typename ShuffledAs<T>::type>(x), by));
}
template <class T>
JP_DEVICE T ShuffleDown(T x, int by, u32 lanes = kAllLanes) {
  return static_cast<T>(__shfl_down_sync(lanes, static_cast<typename ShuffledAs<T>::type>(x), by));
}
template <class T>
JP_DEVICE T ShuffleXor(T x, int by, u32 lanes = kAllLanes) {
  return static_cast<T>(__shfl_xor_sync(lanes, static_cast<typename ShuffledAs<T>::type>(x), by));
}
template <class T>
JP_DEVICE T ShuffleFrom(T x, int lane, u32 lanes = kAllLanes) {
  return static_cast<T>(__shfl_sync(lanes, static_cast<typename ShuffledAs<T>::type>(x), lane));
}

// --- memory -------------------------------------------------------------------------------------------------------------------

// Data that is read, or written, once and so need not stay in a cache.
JP_DEVICE Words4 LoadOnce(const Words4* p) {
  Words4 x;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.w[0]), "=r"(x.w[1]), "=r"(x.w[2]), "=r"(x.w[3])
               : "l"(__cvta_generic_to_global(p)));
  return x;
}
JP_DEVICE void StoreOnce(Words4* p, const Words4& x) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)), "r"(x.w[0]), "r"(x.w[1]),
               "r"(x.w[2]), "r"(x.w[3])
               : "memory");
}

// Data that nobody writes while the kernel runs.
template <class T>
JP_DEVICE T LoadConstant(const T* p) {
  return __ldg(p);
}

// What blocks tell each other. Release: what this thread wrote before is seen by whoever acquires the value. 64 and 128 bits
// (compute capability 9) are written and read as one.
JP_DEVICE u32 LoadAcquire(const u32* p) {
  u32 x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(__cvta_generic_to_global(p)) : "memory");
  return x;
}
JP_DEVICE void StoreRelease(u32* p, u32 x) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "r"(x) : "memory");
}
JP_DEVICE u64 LoadRelaxed(const u64* p) {
  u64 x;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(__cvta_generic_to_global(p)) : "memory");
  return x;
}
JP_DEVICE void StoreRelaxed(u64* p, u64 x) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "l"(x) : "memory");
}
JP_DEVICE u128 LoadRelaxed(const u128* p) {
  u128 x;
  asm volatile("{ .reg .b128 v; ld.relaxed.gpu.global.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
               : "=l"(x.lo), "=l"(x.hi)
               : "l"(__cvta_generic_to_global(p))
               : "memory");
  return x;
}
JP_DEVICE void StoreRelaxed(u128* p, u128 x) {
  asm volatile("{ .reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.gpu.global.b128 [%0], v; }" ::"l"(__cvta_generic_to_global(p)),
               "l"(x.lo), "l"(x.hi)
               : "memory");
}

// Asks L2 for a line of memory that will be read soon.
JP_DEVICE void Prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p))); }

// 4, 8 or 16 bytes from global to shared memory, past the registers; both aligned to the size.
template <int kBytes>
JP_DEVICE void CopyAsync(void* shared, const void* global) {
  const u32 to = static_cast<u32>(__cvta_generic_to_shared(shared));
  const u64 from = __cvta_generic_to_global(global);
  if (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes) : "memory");
  }
}
JP_DEVICE void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `kPending` of this thread's groups of copies are under way.
template <int kPending>
JP_DEVICE void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// --- atomics: relaxed, on shared or global memory; each returns what was there -----------------------------------------------------

JP_DEVICE u32 AtomicCas(u32* p, u32 expected, u32 x) { return atomicCAS(p, expected, x); }
JP_DEVICE u64 AtomicCas(u64* p, u64 expected, u64 x) { return atomicCAS(p, expected, x); }
// Compute capability 9.
JP_DEVICE u128 AtomicCas(u128* p, u128 expected, u128 x) {
  u128 old;
  if (__isShared(p)) {  // mostly known when compiled
    asm volatile(
        "{ .reg .b128 d, e, n; mov.b128 e, {%2, %3}; mov.b128 n, {%4, %5}; atom.relaxed.gpu.shared.cas.b128 d, [%6], e, n;"
        " mov.b128 {%0, %1}, d; }"
        : "=l"(old.lo), "=l"(old.hi)
        : "l"(expected.lo), "l"(expected.hi), "l"(x.lo), "l"(x.hi), "r"(static_cast<u32>(__cvta_generic_to_shared(p)))
        : "memory");
    return old;
  }
  asm volatile(
      "{ .reg .b128 d, e, n; mov.b128 e, {%2, %3}; mov.b128 n, {%4, %5}; atom.relaxed.gpu.cas.b128 d, [%6], e, n;"
      " mov.b128 {%0, %1}, d; }"
      : "=l"(old.lo), "=l"(old.hi)
      : "l"(expected.lo), "l"(expected.hi), "l"(x.lo), "l"(x.hi), "l"(p)
      : "memory");
  return old;
}
JP_DEVICE u32 AtomicExchange(u32* p, u32 x) { return atomicExch(p, x); }
JP_DEVICE u64 AtomicExchange(u64* p, u64 x) { return atomicExch(p, x); }
JP_DEVICE i32 AtomicAdd(i32* p, i32 x) { return atomicAdd(p, x); }
JP_DEVICE u32 AtomicAdd(u32* p, u32 x) { return atomicAdd(p, x); }
JP_DEVICE u64 AtomicAdd(u64* p, u64 x) { return atomicAdd(p, x); }
JP_DEVICE i64 AtomicAdd(i64* p, i64 x) {
  return static_cast<i64>(atomicAdd(reinterpret_cast<u64*>(p), static_cast<u64>(x)));
}
JP_DEVICE float AtomicAdd(float* p, float x) { return atomicAdd(p, x); }
JP_DEVICE double AtomicAdd(double* p, double x) { return atomicAdd(p, x); }
// On the bits of halves, rounded to the half; bf16 from compute capability 9 on.
JP_DEVICE void AtomicAddF16(u16* p, u16 x) {
  asm volatile("{ .reg .b16 d; atom.add.noftz.f16 d, [%0], %1; }" ::"l"(p), "h"(x) : "memory");
}
JP_DEVICE void AtomicAddBf16(u16* p, u16 x) {
  asm volatile("{ .reg .b16 d; atom.add.noftz.bf16 d, [%0], %1; }" ::"l"(p), "h"(x) : "memory");
}
// 2 or 4 neighbours in global memory at once, aligned to all their bytes; compute capability 9.
JP_DEVICE void AtomicAdd2(float* p, float a, float b) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(p)), "f"(a), "f"(b) : "memory");
}
JP_DEVICE void AtomicAdd4(float* p, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)), "f"(a), "f"(b),
               "f"(c), "f"(d)
               : "memory");
}
#define JP_ATOMIC(Name, function)                                                        \
  JP_DEVICE i32 Name(i32* p, i32 x) { return function(p, x); }                           \
  JP_DEVICE u32 Name(u32* p, u32 x) { return function(p, x); }                           \
  JP_DEVICE i64 Name(i64* p, i64 x) { return function(p, x); }                           \
  JP_DEVICE u64 Name(u64* p, u64 x) { return function(p, x); }
JP_ATOMIC(AtomicMin, atomicMin)
JP_ATOMIC(AtomicMax, atomicMax)
#undef JP_ATOMIC
#define JP_ATOMIC(Name, function)                                                        \
  JP_DEVICE u32 Name(u32* p, u32 x) { return function(p, x); }                           \
  JP_DEVICE u64 Name(u64* p, u64 x) { return function(p, x); }
JP_ATOMIC(AtomicAnd, atomicAnd)
JP_ATOMIC(AtomicOr, atomicOr)
JP_ATOMIC(AtomicXor, atomicXor)
#undef JP_ATOMIC

// --- clusters of blocks (compute capability 9) ------------------------------------------------------------------------------------

JP_DEVICE int ClusterRank() {
  u32 x;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(x));
  return static_cast<int>(x);
}
JP_DEVICE int ClusterSize() {
  u32 x;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(x));
  return static_cast<int>(x);
}
JP_DEVICE void ClusterBarrier() {
  asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}
// As Fence, among the cluster's threads.
JP_DEVICE void ClusterFence() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }
// The same place in the shared memory of block `rank` of the cluster; atomics work on it.
template <class T>
JP_DEVICE T* InBlockOfCluster(T* shared, int rank) {
  u64 mapped;
  asm("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(shared), "r"(rank));
  return reinterpret_cast<T*>(mapped);
}

// x, of which the compiler no longer knows where it comes from: what is made of it again need not be kept in registers till then.
JP_DEVICE i64 Opaque(i64 x) {
  asm volatile("" : "+l"(x));
  return x;
}

// --- numbers ------------------------------------------------------------------------------------------------------------------

template <class To, class From>
JP_DEVICE To BitCast(From x) {
  static_assert(sizeof(To) == sizeof(From), "of one size");
  To y;
  memcpy(&y, &x, sizeof(To));
  return y;
}
JP_DEVICE float FromF16(u16 bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
JP_DEVICE u16 ToF16(float x) {
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
JP_DEVICE float FromBf16(u16 bits) { return BitCast<float>(static_cast<u32>(bits) << 16); }
JP_DEVICE u16 ToBf16(float x) {
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
// The greater (the lesser) of two; NaN if one is, and -0 < +0.
JP_DEVICE float MaxOrNan(float a, float b) {
  float x;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
  return x;
}
JP_DEVICE float MinOrNan(float a, float b) {
  float x;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
  return x;
}
// Towards zero, to the nearest that there is; NaN to 0.
JP_DEVICE i32 ToI32(float x) { return __float2int_rz(x); }
JP_DEVICE u32 ToU32(float x) { return __float2uint_rz(x); }

}  // namespace jp
