// Tests of the C++ half without Python, JAX or a compiler of kernels, so that sanitizers see all of it. The tests themselves are
// in the files beside this one, one for each header of cpu/.

#include <chrono>
#include <cstring>
#include <iostream>

#include "check.h"

// Without this a sanitizer's allocator ends the process where malloc would return null, which is one of the things tested.
// NOLINTBEGIN(bugprone-reserved-identifier): the sanitizers chose the names
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1:detect_stack_use_after_return=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }
// NOLINTEND(bugprone-reserved-identifier)

// Runs the tests whose name contains the first argument: all of them when there is none.
int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  const char* wanted = argc > 1 ? argv[1] : "";
  int run = 0;
  for (const auto& test : jaxprims::test::Tests()) {
    if (std::strstr(test.name, wanted) == nullptr) continue;
    const int before = jaxprims::test::failures;
    const auto start = Clock::now();
    test.run();
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
    std::cout << (jaxprims::test::failures == before ? "ok     " : "FAILED ") << test.name << " (" << ms << " ms)" << "\n"
              << std::flush;
    ++run;
  }
  std::cout << run << " tests, " << jaxprims::test::failures << " failed checks" << "\n" << std::flush;
  return run > 0 && jaxprims::test::failures == 0 ? 0 : 1;
}
