// Workspace: blocks that fit are used again, a bounded amount is kept, threads never share a block.

#include "workspace.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "check.h"

namespace jaxprims::test::workspace_test {
namespace {

constexpr size_t kMegabyte = size_t{1} << 20;

TEST(WorkspaceOfNothing) {
  const Workspace workspace(0);
  CHECK(workspace.data() == nullptr);
}

TEST(WorkspaceIsAligned) {
  for (const size_t bytes :
       {size_t{1}, size_t{63}, size_t{64}, size_t{4096}, size_t{4097}, kMegabyte, 2 * kMegabyte, 5 * kMegabyte + 1}) {
    const Workspace workspace(bytes);
    CHECK_EQ(reinterpret_cast<uintptr_t>(workspace.data()) % 64, uintptr_t{0});
    std::fill_n(workspace.data(), bytes, '\1');
  }
}

TEST(WorkspaceIsUsedAgain) {
  const char* first = nullptr;
  {
    const Workspace workspace(7 * kMegabyte);
    first = workspace.data();
  }
  const size_t kept = WorkspaceCache::Instance().Kept();
  CHECK(kept >= 7 * kMegabyte);
  const Workspace smaller(6 * kMegabyte + 1);
  CHECK(smaller.data() == first);
  CHECK(WorkspaceCache::Instance().Kept() < kept);
}

TEST(WorkspaceTakesTheSmallestBlockThatFitsAndNoneThatIsFarTooLarge) {
  const char* small = nullptr;
  {
    const Workspace a(40 * kMegabyte), b(20 * kMegabyte);
    small = b.data();
  }
  const Workspace again(18 * kMegabyte);
  CHECK(again.data() == small);
  const size_t kept = WorkspaceCache::Instance().Kept();
  CHECK(kept >= 40 * kMegabyte);
  const Workspace little(7 * kMegabyte);  // may find another block, but not this one: it would waste more than three quarters
  CHECK(WorkspaceCache::Instance().Kept() >= 40 * kMegabyte);
}

TEST(WorkspaceOfASmallCallIsUsedAgain) {
  {
    const Workspace warm_up(100);
  }
  const size_t kept = WorkspaceCache::Instance().Kept();
  for (int round = 0; round < 100; ++round) const Workspace small(static_cast<size_t>(round + 1));
  CHECK_EQ(WorkspaceCache::Instance().Kept(), kept);
}

TEST(WorkspaceKeepsABoundedAmountTheLatest) {
  {
    const Workspace given_last(200 * kMegabyte), given_first(90 * kMegabyte);
  }
  CHECK_EQ(WorkspaceCache::Instance().Kept(), 200 * kMegabyte);  // what several steps of 40 million numbers take would stay
  {
    const Workspace too_large(WorkspaceCache::kKept + 1);
  }
  CHECK_EQ(WorkspaceCache::Instance().Kept(), 200 * kMegabyte);
}

TEST(WorkspaceThatCannotBeHad) {
  bool thrown = false;
  try {
    const Workspace workspace(size_t{1} << 60);
  } catch (const std::bad_alloc&) {
    thrown = true;
  }
  CHECK(thrown);
}

TEST(WorkspaceFromManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([t] {
      std::minstd_rand random(static_cast<unsigned>(t + 1));
      const auto mine = static_cast<char>(t);
      for (int round = 0; round < 200; ++round) {
        const size_t bytes = random() % 100'000 + 1;
        const Workspace a(bytes), b(bytes / 2);
        std::fill_n(a.data(), bytes, mine);
        std::fill_n(b.data(), bytes / 2, mine);
        CHECK_EQ(std::count(a.data(), a.data() + bytes, mine), static_cast<std::ptrdiff_t>(bytes));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(WorkspaceCache::Instance().Kept() <= WorkspaceCache::kKept);
}

}  // namespace
}  // namespace jaxprims::test::workspace_test
