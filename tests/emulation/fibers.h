// Contexts of execution that are switched by hand, each with its own stack.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace emulation {

// A suspended computation. The stack belongs to the pool.
#ifdef __x86_64__
using Context = void*;  // of the stack: what must be kept across calls is on it
extern "C" void jp_emulation_switch(Context* from, Context to);
asm(R"(
  .text
  .p2align 4
  .type jp_emulation_switch, @function
jp_emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size jp_emulation_switch, .-jp_emulation_switch
)");
inline void SwitchContext(Context& from, Context& to) { jp_emulation_switch(&from, to); }
// On `stack`, `entry` shall run; it must not return.
inline void MakeContext(Context& context, char* stack, size_t bytes, void (*entry)()) {
  auto* top = reinterpret_cast<uint64_t*>(stack + bytes);
  *--top = 0;  // where entry would return to; aligns the stack as a call does
  *--top = reinterpret_cast<uint64_t>(entry);
  for (int k = 0; k < 6; ++k) *--top = 0;
  context = top;
}
#else
using Context = ucontext_t;
inline void SwitchContext(Context& from, Context& to) { swapcontext(&from, &to); }
inline void MakeContext(Context& context, char* stack, size_t bytes, void (*entry)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = bytes;
  context.uc_link = nullptr;
  makecontext(&context, entry, 0);
}
#endif

// Stacks of one size, kept for later launches. Below each lies a page that nobody may touch.
class Stacks {
 public:
  static constexpr ptrdiff_t kBytes = 128 * 1024, kGuard = 4096;

  char* operator[](size_t k) {
    while (k >= stacks_.size()) Grow();
    return stacks_[k];
  }
  bool IsStack(const void* p) const { return PlaceOf(p) >= kGuard; }
  bool IsGuard(const void* p) const {
    const ptrdiff_t place = PlaceOf(p);
    return place >= 0 && place < kGuard;
  }

 private:
  // In a stack and its guard; -1: in none.
  ptrdiff_t PlaceOf(const void* p) const {
    for (const char* chunk : chunks_) {
      const auto at = static_cast<size_t>(static_cast<const char*>(p) - chunk);
      if (at < kChunk * (kBytes + kGuard)) return static_cast<ptrdiff_t>(at % (kBytes + kGuard));
    }
    return -1;
  }

  static constexpr size_t kChunk = 256;

  void Grow() {
    void* p =
        mmap(nullptr, kChunk * (kBytes + kGuard), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    auto* chunk = static_cast<char*>(p);
    chunks_.push_back(chunk);
    for (size_t k = 0; k < kChunk; ++k) {
      char* guard = chunk + k * (kBytes + kGuard);
      mprotect(guard, kGuard, PROT_NONE);
      stacks_.push_back(guard + kGuard);
    }
  }

  std::vector<char*> stacks_, chunks_;
};

}  // namespace emulation
