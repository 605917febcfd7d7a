// cuda/device.cuh on the host, for tests: the same names, each thread a fiber. What hardware leaves undefined is an error or
// garbage here; what it leaves open (who runs first, when a copy is done) is left to chance.
#pragma once

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "thread.h"

#define JP_DEVICE inline
#define JP_HOST_DEVICE inline
#define JP_KERNEL(name, Params, threads, resident)                                                                        \
  static void name##_body(const Params& p);                                                                               \
  extern "C" __attribute__((visibility("default"))) void name(const void* words) {                                        \
    name##_body(*static_cast<const Params*>(words));                                                                      \
  }                                                                                                                       \
  extern "C" __attribute__((visibility("default"))) const ::emulation::Kernel name##_emulated;                            \
  extern "C" const ::emulation::Kernel name##_emulated = {name, sizeof(Params), (threads), (resident)};                   \
  static void name##_body(const Params& p)
// A block's shared memory takes the place of a host thread's local one: __tls_get_addr is ours, below.
#define JP_SHARED(type, name) static thread_local type name
#define JP_LINE int line = __builtin_LINE()

#include "host_device.h"

namespace emulation {
inline Thread* current = nullptr;
}
#include "undefined.h"
#include "order.h"
extern "C" __attribute__((visibility("default"), used)) inline emulation::Thread** jp_emulation_current() {
  return &emulation::current;
}
extern "C" __attribute__((visibility("default"), used)) inline const char* jp_emulation_source() { return __BASE_FILE__; }
extern "C" __attribute__((visibility("hidden"), used)) inline void* __tls_get_addr(const unsigned long* module_and_offset) {
  return emulation::current->fixed_shared + module_and_offset[1];
}

// What CUDA has beside C's mathematics.
inline float rsqrtf(float x) { return static_cast<float>(1 / sqrt(static_cast<double>(x))); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
double erfinv(double x);
inline float erfinvf(float x) { return static_cast<float>(erfinv(x)); }

namespace jp {

#ifdef JP_ARCH
constexpr int kArch = JP_ARCH;
#else
constexpr int kArch = 90;
#endif

inline int Thread() { return emulation::current->thread; }
inline int Threads() { return emulation::current->threads; }
inline int Lane() { return emulation::current->thread & 31; }
inline int Warp() { return emulation::current->thread >> 5; }
inline i64 Block() { return emulation::current->block; }
inline i64 Blocks() { return emulation::current->blocks; }
inline char* DynamicShared() { return emulation::current->dynamic_shared; }

template <class To, class From>
inline To BitCast(From x) {
  static_assert(sizeof(To) == sizeof(From), "of one size");
  To y;
  memcpy(&y, &x, sizeof(To));
  return y;
}

// An access that other threads may see: any of them may run before it.
JP_UNSEEN inline void MaySwitch(int line) {
  if (--emulation::current->until_switch <= 0) emulation::current->Switch(line);
}
JP_UNSEEN inline void Happened() { ++*emulation::current->events; }
template <class T>
inline void CheckAligned(const T* p, size_t bytes, int line) {
  if (reinterpret_cast<uintptr_t>(p) % bytes != 0) emulation::current->Fail("misaligned address", line);
}

// --- waiting ------------------------------------------------------------------------------------------------------------------

inline void BlockBarrier(JP_LINE) { emulation::current->BlockBarrier(false, line); }
inline bool BlockAny(bool x, JP_LINE) { return emulation::current->BlockBarrier(x, line); }
inline void WarpBarrier(u32 lanes = kAllLanes, JP_LINE) {
  emulation::current->Meet(emulation::Collective::kBarrier, lanes, 0, 0, line);
}
inline void NamedBarrier(int number, int threads, JP_LINE) { emulation::current->NamedBarrier(number, threads, line); }
inline void Fence(JP_LINE) {
  if (emulation::kChecksOrder) emulation::current->Fenced();
  MaySwitch(line);
}
inline void BlockFence(JP_LINE) { MaySwitch(line); }
inline void Prefetch(const void*) {}  // no access
inline void Backoff(JP_LINE) { emulation::current->Switch(line); }

// --- warps --------------------------------------------------------------------------------------------------------------------

inline u32 Ballot(bool x, u32 lanes = kAllLanes, JP_LINE) {
  return static_cast<u32>(emulation::current->Meet(emulation::Collective::kBallot, lanes, x, 0, line));
}
inline bool WarpAny(bool x, u32 lanes = kAllLanes, JP_LINE) {
  return emulation::current->Meet(emulation::Collective::kAny, lanes, x, 0, line) != 0;
}
inline bool WarpAll(bool x, u32 lanes = kAllLanes, JP_LINE) {
  return emulation::current->Meet(emulation::Collective::kAll, lanes, x, 0, line) != 0;
}
inline u32 MatchAny(u64 x, u32 lanes = kAllLanes, JP_LINE) {
  return static_cast<u32>(emulation::current->Meet(emulation::Collective::kMatch, lanes, x, 0, line));
}
inline u32 MatchAny(u32 x, u32 lanes = kAllLanes, JP_LINE) { return MatchAny(static_cast<u64>(x), lanes, line); }
inline u32 ActiveLanes(JP_LINE) { return emulation::current->ActiveLanes(line); }
inline int PopulationCount(u32 x) { return __builtin_popcount(x); }
inline int PopulationCount(u64 x) { return __builtin_popcountll(x); }
inline int LeadingZeros(u32 x) { return x == 0 ? 32 : __builtin_clz(x); }
inline int LeadingZeros(u64 x) { return x == 0 ? 64 : __builtin_clzll(x); }
inline int FirstLane(u32 lanes) { return __builtin_ffs(static_cast<int>(lanes)) - 1; }

template <class T>
inline T ShuffleOf(T x, int source, u32 lanes, int line) {
  static_assert(sizeof(T) <= 8 && __is_trivially_copyable(T), "scalars only");
  u64 word = 0;
  memcpy(&word, &x, sizeof(T));
  word = emulation::current->Meet(emulation::Collective::kShuffle, lanes, word, source, line);
  memcpy(&x, &word, sizeof(T));
  return x;
}
template <class T>
inline T ShuffleUp(T x, int by, u32 lanes = kAllLanes, JP_LINE) {
  return ShuffleOf(x, Lane() - by < 0 ? Lane() : Lane() - by, lanes, line);
}
template <class T>
inline T ShuffleDown(T x, int by, u32 lanes = kAllLanes, JP_LINE) {
  return ShuffleOf(x, Lane() + by > 31 ? Lane() : Lane() + by, lanes, line);
}
template <class T>
inline T ShuffleXor(T x, int by, u32 lanes = kAllLanes, JP_LINE) {
  return ShuffleOf(x, (Lane() ^ by) & 31, lanes, line);
}
template <class T>
inline T ShuffleFrom(T x, int lane, u32 lanes = kAllLanes, JP_LINE) {
  return ShuffleOf(x, lane & 31, lanes, line);
}

// --- memory -------------------------------------------------------------------------------------------------------------------

template <class T>
JP_UNSEEN inline T LoadAligned(const T* p, int line) {
  CheckAligned(p, sizeof(T), line);
  T x;
  memcpy(&x, static_cast<const void*>(p), sizeof(T));
  return x;
}
template <class T>
JP_UNSEEN inline void StoreAligned(T* p, const T& x, int line) {
  CheckAligned(p, sizeof(T), line);
  memcpy(static_cast<void*>(p), &x, sizeof(T));
}
template <class T>
inline T LoadSeen(const T* p, emulation::Order order, int line) {
  MaySwitch(line);
  emulation::Ordered(p, sizeof(T), order, line);
  return LoadAligned(p, line);
}
template <class T>
inline void StoreSeen(T* p, const T& x, emulation::Order order, int line) {
  MaySwitch(line);
  emulation::Ordered(p, sizeof(T), order, line);
  StoreAligned(p, x, line);
  Happened();
}

template <class T>
inline T LoadConstant(const T* p) {
  return *p;
}
inline Words4 LoadOnce(const Words4* p, JP_LINE) {
  if (emulation::kChecksOrder) emulation::Plain(p, sizeof(*p), false, __builtin_return_address(0));
  return LoadAligned(p, line);
}
inline void StoreOnce(Words4* p, const Words4& x, JP_LINE) {
  if (emulation::kChecksOrder) emulation::Plain(p, sizeof(*p), true, __builtin_return_address(0));
  StoreAligned(p, x, line);
}
inline u32 LoadAcquire(const u32* p, JP_LINE) { return LoadSeen(p, emulation::Order::kAcquireLoad, line); }
inline void StoreRelease(u32* p, u32 x, JP_LINE) { StoreSeen(p, x, emulation::Order::kReleaseStore, line); }
inline u64 LoadRelaxed(const u64* p, JP_LINE) { return LoadSeen(p, emulation::Order::kRelaxedLoad, line); }
inline void StoreRelaxed(u64* p, u64 x, JP_LINE) { StoreSeen(p, x, emulation::Order::kRelaxedStore, line); }
inline u128 LoadRelaxed(const u128* p, JP_LINE) { return LoadSeen(p, emulation::Order::kRelaxedLoad, line); }
inline void StoreRelaxed(u128* p, u128 x, JP_LINE) { StoreSeen(p, x, emulation::Order::kRelaxedStore, line); }

template <int kBytes>
inline void CopyAsync(void* shared, const void* global, JP_LINE) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "what hardware has");
  emulation::current->Copy(shared, global, kBytes, line);
}
inline void CommitCopies() { emulation::current->CommitCopies(); }
template <int kPending>
inline void WaitForCopies() {
  emulation::current->WaitForCopies(kPending);
}

inline i64 Opaque(i64 x) { return x; }

// --- numbers ------------------------------------------------------------------------------------------------------------------

inline float FromF16(u16 bits) {
  const u32 sign = static_cast<u32>(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return BitCast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x400u) return BitCast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float x = static_cast<float>(magnitude) * 0x1p-24f;
  return sign ? -x : x;
}
inline u16 ToF16(float x) {
  const u32 bits = BitCast<u32>(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return static_cast<u16>(sign | 0x7c00u);  // rounds to 2^16
  if (magnitude < 0x38800000u) {  // a multiple of 2^-24, which is the last place of 1/2
    return static_cast<u16>(sign | (BitCast<u32>(BitCast<float>(magnitude) + 0.5f) - 0x3f000000u));
  }
  return static_cast<u16>(sign | ((magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}
inline float FromBf16(u16 bits) { return BitCast<float>(static_cast<u32>(bits) << 16); }
inline u16 ToBf16(float x) {
  const u32 bits = BitCast<u32>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float MaxOrNan(float a, float b) {
  if (a != a || b != b) return NAN;
  return a > b || (a == b && signbit(b)) ? a : b;
}
inline float MinOrNan(float a, float b) {
  if (a != a || b != b) return NAN;
  return a < b || (a == b && signbit(a)) ? a : b;
}
inline i32 ToI32(float x) {
  if (x >= 0x1p31f) return 2147483647;
  return x > -0x1p31f ? static_cast<i32>(x) : x != x ? 0 : -2147483647 - 1;
}
inline u32 ToU32(float x) {
  if (x >= 0x1p32f) return 4294967295u;
  return x > 0 ? static_cast<u32>(x) : 0u;
}

// --- atomics ------------------------------------------------------------------------------------------------------------------

// A loop that waits for a lock changes nothing; all other atomics are an event.
template <class T>
inline T AtomicReplace(T* p, const T& x, int line) {
  MaySwitch(line);
  emulation::Ordered(p, sizeof(T), emulation::Order::kUpdate, line);
  const T old = LoadAligned(p, line);
  StoreAligned(p, x, line);
  if (memcmp(&old, &x, sizeof(T)) != 0) Happened();
  return old;
}
template <class T>
inline T AtomicCompare(T* p, const T& expected, const T& x, int line) {
  MaySwitch(line);
  const T old = LoadAligned(p, line);
  const bool equal = memcmp(&old, &expected, sizeof(T)) == 0;
  emulation::Ordered(p, sizeof(T), equal ? emulation::Order::kUpdate : emulation::Order::kRelaxedLoad, line);
  if (equal) {
    StoreAligned(p, x, line);
    Happened();
  }
  return old;
}
template <class T, class Fn>
inline T AtomicUpdate(T* p, int line, Fn fn) {
  MaySwitch(line);
  emulation::Ordered(p, sizeof(T), emulation::Order::kUpdate, line);
  const T old = LoadAligned(p, line);
  StoreAligned(p, static_cast<T>(fn(old)), line);
  Happened();
  return old;
}

inline u32 AtomicCas(u32* p, u32 expected, u32 x, JP_LINE) { return AtomicCompare(p, expected, x, line); }
inline u64 AtomicCas(u64* p, u64 expected, u64 x, JP_LINE) { return AtomicCompare(p, expected, x, line); }
inline u128 AtomicCas(u128* p, u128 expected, u128 x, JP_LINE) { return AtomicCompare(p, expected, x, line); }
inline u32 AtomicExchange(u32* p, u32 x, JP_LINE) { return AtomicReplace(p, x, line); }
inline u64 AtomicExchange(u64* p, u64 x, JP_LINE) { return AtomicReplace(p, x, line); }

#define JP_ATOMIC(Name, T, result) \
  inline T Name(T* p, T x, JP_LINE) { \
    return AtomicUpdate(p, line, [x](T old) { return result; }); \
  }
JP_ATOMIC(AtomicAdd, i32, static_cast<u32>(old) + static_cast<u32>(x))
JP_ATOMIC(AtomicAdd, u32, old + x)
JP_ATOMIC(AtomicAdd, i64, static_cast<u64>(old) + static_cast<u64>(x))
JP_ATOMIC(AtomicAdd, u64, old + x)
JP_ATOMIC(AtomicAdd, double, old + x)
JP_ATOMIC(AtomicMin, i32, x < old ? x : old)
JP_ATOMIC(AtomicMin, u32, x < old ? x : old)
JP_ATOMIC(AtomicMin, i64, x < old ? x : old)
JP_ATOMIC(AtomicMin, u64, x < old ? x : old)
JP_ATOMIC(AtomicMax, i32, x > old ? x : old)
JP_ATOMIC(AtomicMax, u32, x > old ? x : old)
JP_ATOMIC(AtomicMax, i64, x > old ? x : old)
JP_ATOMIC(AtomicMax, u64, x > old ? x : old)
JP_ATOMIC(AtomicAnd, u32, old & x)
JP_ATOMIC(AtomicAnd, u64, old & x)
JP_ATOMIC(AtomicOr, u32, old | x)
JP_ATOMIC(AtomicOr, u64, old | x)
JP_ATOMIC(AtomicXor, u32, old ^ x)
JP_ATOMIC(AtomicXor, u64, old ^ x)
#undef JP_ATOMIC

// Hardware flushes subnormal numbers in global memory, not in shared memory, whatever the kernel was compiled for.
inline float AtomicAdd(float* p, float x, JP_LINE) {
  const bool flush = !emulation::current->IsShared(p);
  auto flushed = [flush](float y) { return flush && fabsf(y) < 0x1p-126f ? copysignf(0, y) : y; };
  return AtomicUpdate(p, line, [&](float old) { return flushed(flushed(old) + flushed(x)); });
}
inline void AtomicAddF16(u16* p, u16 x, JP_LINE) {
  AtomicUpdate(p, line, [x](u16 old) { return ToF16(FromF16(old) + FromF16(x)); });
}
inline void AtomicAddBf16(u16* p, u16 x, JP_LINE) {
  AtomicUpdate(p, line, [x](u16 old) { return ToBf16(FromBf16(old) + FromBf16(x)); });
}
inline void AtomicAdd2(float* p, float a, float b, JP_LINE) {
  CheckAligned(p, 8, line);
  if (emulation::current->IsShared(p)) emulation::current->Fail("vector atomics are for global memory", line);
  AtomicAdd(p, a, line);
  AtomicAdd(p + 1, b, line);
}
inline void AtomicAdd4(float* p, float a, float b, float c, float d, JP_LINE) {
  CheckAligned(p, 16, line);
  AtomicAdd2(p, a, b, line);
  AtomicAdd2(p + 2, c, d, line);
}

// --- clusters of blocks -----------------------------------------------------------------------------------------------------------

inline int ClusterRank() { return emulation::current->cluster_rank; }
inline int ClusterSize() { return emulation::current->cluster_size; }
inline void ClusterFence(JP_LINE) { MaySwitch(line); }
inline void ClusterBarrier(JP_LINE) { emulation::current->ClusterBarrier(line); }
template <class T>
inline T* InBlockOfCluster(T* shared, int rank, JP_LINE) {
  return static_cast<T*>(emulation::current->InBlockOfCluster(shared, rank, line));
}

}  // namespace jp

// Winitzki's approximation, then Newton's method on the smaller of x and 1 - x.
inline double erfinv(double x) {
  const double size = fabs(x);
  if (!(size < 1)) return size == 1 ? copysign(INFINITY, x) : NAN;
  const double log_term = log1p(-size * size), half = 2 / (M_PI * 0.147) + log_term / 2;
  double y = sqrt(sqrt(half * half - log_term / 0.147) - half);
  for (int k = 0; k < 4; ++k) {
    const double excess = size < 0.5 ? erf(y) - size : (1 - size) - erfc(y);
    y -= excess / (M_2_SQRTPI * exp(-y * y));
  }
  return copysign(y, x);
}
