// What g++'s sanitizer of undefined behaviour calls, so that a kernel that is misaligned, or shifts too far, fails its launch
// with the line. (Hardware needs alignment where the host does not.)
#pragma once

namespace emulation {

struct SourceLocation {
  const char* file;
  unsigned line, column;
};

[[noreturn]] inline void Undefined(const SourceLocation* at, const char* what) {
  current->Fail(what, static_cast<int>(at->line));
}

}  // namespace emulation

#define JP_UNDEFINED(name, what)                                                                    \
  extern "C" __attribute__((visibility("hidden"), used)) inline void __ubsan_handle_##name##_abort( \
      const emulation::SourceLocation* at) {                                                        \
    emulation::Undefined(at, what);                                                                 \
  }
JP_UNDEFINED(type_mismatch_v1, "misaligned address, or a null pointer")
JP_UNDEFINED(pointer_overflow, "pointer arithmetic overflows")
JP_UNDEFINED(out_of_bounds, "index beyond an array")
JP_UNDEFINED(shift_out_of_bounds, "shift by too many bits, or of a negative number")
JP_UNDEFINED(add_overflow, "signed addition overflows")
JP_UNDEFINED(sub_overflow, "signed subtraction overflows")
JP_UNDEFINED(mul_overflow, "signed multiplication overflows")
JP_UNDEFINED(negate_overflow, "signed negation overflows")
JP_UNDEFINED(divrem_overflow, "division by zero, or of the least integer by -1")
JP_UNDEFINED(load_invalid_value, "neither true nor false: memory that was never written?")
JP_UNDEFINED(float_cast_overflow, "conversion of a number that the integer cannot hold")
JP_UNDEFINED(missing_return, "a function returns nothing")
JP_UNDEFINED(builtin_unreachable, "unreachable code is reached")
#undef JP_UNDEFINED
