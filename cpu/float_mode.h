// The thread's floating-point mode (denormals, rounding). XLA runs with denormals flushed to zero; tasks take over the mode of
// the thread that XLA called, so that a result does not depend on which thread computed it.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace jaxprims {

#if defined(__x86_64__)
inline uint64_t GetFloatMode() { return _mm_getcsr() & ~0x3fU; }  // without the exception flags
inline void SetFloatMode(uint64_t mode) { _mm_setcsr(static_cast<uint32_t>(mode)); }
#elif defined(__aarch64__)
inline uint64_t GetFloatMode() {
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
inline void SetFloatMode(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
inline uint64_t GetFloatMode() { return 0; }
inline void SetFloatMode(uint64_t) {}
#endif

// For a scope.
class ScopedFloatMode {
 public:
  explicit ScopedFloatMode(uint64_t mode) : before_(GetFloatMode()) { SetFloatMode(mode); }
  ~ScopedFloatMode() { SetFloatMode(before_); }
  ScopedFloatMode(const ScopedFloatMode&) = delete;
  ScopedFloatMode& operator=(const ScopedFloatMode&) = delete;

 private:
  const uint64_t before_;
};

}  // namespace jaxprims
