// With JP_CHECK_ORDER, kernels are compiled for a sanitizer of threads whose calls are ours: every plain access is reported to
// the emulation, which knows what other blocks have been told of by fences, releases and acquires.
#pragma once

#ifdef JP_CHECK_ORDER
#define JP_UNSEEN __attribute__((no_sanitize("thread"), noinline))  // the emulation's own accesses
#else
#define JP_UNSEEN
#endif

namespace emulation {

#ifdef JP_CHECK_ORDER
constexpr bool kChecksOrder = true;
#else
constexpr bool kChecksOrder = false;
#endif

inline void Ordered(const void* p, size_t bytes, Order order, int line) {
  if (kChecksOrder) current->Ordered(p, static_cast<int>(bytes), order, line);
}
JP_UNSEEN inline void Plain(const void* p, size_t bytes, bool write, const void* from) {
  if (current != nullptr) current->Plain(p, static_cast<int>(bytes), write, from);
}

}  // namespace emulation

#ifdef JP_CHECK_ORDER
#define JP_HOOK(name, bytes, write)                                                                                  \
  extern "C" __attribute__((visibility("hidden"), used, no_sanitize("thread"))) inline void __tsan_##name(void* p) { \
    emulation::Plain(p, bytes, write, __builtin_return_address(0));                                                  \
  }
#define JP_HOOKS(bytes)                        \
  JP_HOOK(read##bytes, bytes, false)           \
  JP_HOOK(write##bytes, bytes, true)           \
  JP_HOOK(unaligned_read##bytes, bytes, false) \
  JP_HOOK(unaligned_write##bytes, bytes, true)
JP_HOOKS(1)
JP_HOOKS(2)
JP_HOOKS(4)
JP_HOOKS(8)
JP_HOOKS(16)
#undef JP_HOOKS
#undef JP_HOOK
#define JP_HOOK(name, write)                                                                                                     \
  extern "C" __attribute__((visibility("hidden"), used, no_sanitize("thread"))) inline void __tsan_##name(void* p,               \
                                                                                                          unsigned long bytes) { \
    emulation::Plain(p, bytes, write, __builtin_return_address(0));                                                              \
  }
JP_HOOK(read_range, false)
JP_HOOK(write_range, true)
#undef JP_HOOK
extern "C" __attribute__((visibility("hidden"), used)) inline void __tsan_init() {}
extern "C" __attribute__((visibility("hidden"), used)) inline void __tsan_func_entry(void*) {}
extern "C" __attribute__((visibility("hidden"), used)) inline void __tsan_func_exit() {}
#endif
