// KernelTable: entries and variants are added once, whoever comes first, and seen whole by everybody.

#include "kernel_table.h"

#include <atomic>
#include <cstdint>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"

namespace jaxprims::test::kernel_table_test {
namespace {

std::unique_ptr<HistEntry> NewEntry(const std::string& spec) {
  auto entry = std::make_unique<HistEntry>();
  entry->spec = spec;
  entry->shape.positions = {false, true};
  entry->shape.bins.resize(2);
  return entry;
}

HistKernel NewKernel() {
  HistKernel kernel;
  kernel.fill = {[](void* const*, const void* const*, int64_t, int64_t) {}};
  kernel.combine.resize(3);
  return kernel;
}

// The one table of the process, as its entries are never removed: each test has its own keys.
KernelTable<HistEntry>& table = KernelTable<HistEntry>::Instance();

TEST(KernelTableKeepsTheFirstEntry) {
  CHECK(table.Find(1) == nullptr);
  HistEntry* first = table.Add(1, NewEntry("a"));
  CHECK(table.Find(1) == first);
  CHECK(table.Add(1, NewEntry("another spec with the same hash")) == first);
  CHECK_EQ(first->spec, "a");
  CHECK(table.Find(-1) == nullptr);
}

TEST(KernelTableKeepsTheFirstVariant) {
  HistEntry& entry = *table.Add(2, NewEntry("b"));
  CHECK(entry.variants[5].load() == nullptr);
  KernelTable<HistEntry>::AddVariant(entry, 5, NewKernel());
  const HistKernel* first = entry.variants[5].load();
  KernelTable<HistEntry>::AddVariant(entry, 5, NewKernel());
  CHECK(first != nullptr && entry.variants[5].load() == first);
  for (const int none : {-1, HistEntry::kVariants}) {
    bool thrown = false;
    try {
      KernelTable<HistEntry>::AddVariant(entry, none, NewKernel());
    } catch (const std::out_of_range&) {
      thrown = true;
    }
    CHECK(thrown);
  }
}

TEST(KernelTableOfEachFamily) {
  auto& scans = KernelTable<OrderedEntry>::Instance();
  CHECK(table.Add(3, NewEntry("c")) != nullptr);
  CHECK(scans.Find(3) == nullptr);  // a table of its own
  OrderedEntry& entry = *scans.Add(3, std::make_unique<OrderedEntry>());
  KernelTable<OrderedEntry>::AddVariant(entry, 2, OrderedKernel{});
  CHECK(entry.variants[0].load() == nullptr && entry.variants[2].load() != nullptr);
}

TEST(KernelTableFromManyThreads) {
  constexpr int kThreads = 8, kKeys = 40;
  std::latch start(kThreads);
  std::vector<std::vector<const HistKernel*>> seen(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      for (int64_t key = 100; key < 100 + kKeys; ++key) {
        const std::string spec = "spec " + std::to_string(key);
        HistEntry* entry = table.Find(key);
        if (entry == nullptr) entry = table.Add(key, NewEntry(spec));
        CHECK_EQ(entry->spec, spec);
        const auto variant = static_cast<size_t>(key % HistEntry::kVariants);
        const HistKernel* kernel = entry->variants[variant].load(std::memory_order_acquire);
        if (kernel == nullptr) {
          KernelTable<HistEntry>::AddVariant(*entry, static_cast<int>(variant), NewKernel());
          kernel = entry->variants[variant].load(std::memory_order_acquire);
        }
        CHECK_EQ(kernel->combine.size(), size_t{3});
        kernel->fill[0](nullptr, nullptr, 0, 0);
        seen[static_cast<size_t>(t)].push_back(kernel);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& kernels : seen) CHECK(kernels == seen[0]);
}

}  // namespace
}  // namespace jaxprims::test::kernel_table_test
