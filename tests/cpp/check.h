// All of a test framework that these tests need: TEST(Name) { CHECK(...); CHECK_EQ(...); }, run by main in drivers_test.cc.
#pragma once

#include <atomic>
#include <iostream>
#include <mutex>
#include <sstream>
#include <vector>

namespace jaxprims::test {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

struct Registration {
  Registration(const char* name, void (*run)()) { Tests().push_back({name, run}); }
};

inline std::atomic<int> failures{0};

// From any thread; the test goes on. Never inlined, nor is what formats: compilers, and sanitizers above all, would otherwise
// spend most of their time on checks that pass.
[[gnu::noinline, gnu::cold]] inline void Report(const char* file, int line, const char* what) {
  static std::mutex mutex;
  if (failures.fetch_add(1) > 20) return;  // one fault can fail a check in every round of a loop
  const std::lock_guard lock(mutex);
  std::cerr << file << ":" << line << ": " << what << "\n" << std::flush;
}

template <class... Parts>
[[gnu::noinline, gnu::cold]] void Fail(const char* file, int line, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  Report(file, line, text.str().c_str());
}

template <class Got, class Want>
[[gnu::noinline, gnu::cold]] void FailEqual(const char* file, int line, const char* what, const Got& got, const Want& want) {
  std::ostringstream text;
  text << what << ": " << got << ", not " << want;
  Report(file, line, text.str().c_str());
}

}  // namespace jaxprims::test

#define TEST(name)                                                                       \
  static void Test##name();                                                              \
  static const ::jaxprims::test::Registration registration_of_##name(#name, Test##name); \
  static void Test##name()

#define CHECK(condition)                                                                    \
  do {                                                                                      \
    if (!(condition)) ::jaxprims::test::Report(__FILE__, __LINE__, #condition " is false"); \
  } while (false)

#define CHECK_EQ(got, want)                                                                                       \
  do {                                                                                                            \
    const auto& check_got = (got);                                                                                \
    const auto& check_want = (want);                                                                              \
    if (!(check_got == check_want)) ::jaxprims::test::FailEqual(__FILE__, __LINE__, #got, check_got, check_want); \
  } while (false)
