// The CUDA half's launcher on a driver that only takes notes.

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <latch>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "batch_axes.h"
#include "check.h"
#include "launch.h"
#include "ordered_words.h"
#include "pools.h"

namespace jaxprims::test::launcher_test {
namespace {

using namespace jaxprims::cuda;

// --- a driver of two devices; a stream's context has its number, and its device is the last bit of it --------------------------

std::array<char, 1024> numbered{};

// Handles are places in an array that nobody reads.
template <class Handle>
Handle HandleOf(int number) {
  return reinterpret_cast<Handle>(&numbered.at(static_cast<size_t>(number)));
}
int NumberOf(const void* handle) { return static_cast<int>(static_cast<const char*>(handle) - numbered.data()); }
CUstream StreamAt(int number) { return HandleOf<CUstream>(number); }

struct Launched {
  std::string kernel;
  CUlaunchConfig config;
  unsigned cluster;
  std::vector<uint64_t> words;
};

struct Notes {
  std::mutex mutex;
  std::map<std::string, int> calls;
  std::vector<Launched> launches;
  std::map<std::pair<std::string, int>, int> attributes;  // set, by kernel and attribute
  int loaded = 0;                                         // libraries
};

Notes notes;
thread_local CUcontext current = nullptr;
constexpr int kMissing = 500;
constexpr size_t kParameterWords = 3;

int Count(const std::string& call) {
  const std::lock_guard lock(notes.mutex);
  return notes.calls[call];
}

CUresult Note(const std::string& call) {
  const std::lock_guard lock(notes.mutex);
  ++notes.calls[call];
  return 0;
}

const std::array<const char*, 2> kKernels{"Small", "Large"};

const char* NameOf(const void* kernel) { return kKernels.at(static_cast<size_t>(NumberOf(kernel))); }

Driver NotingDriver() {
  Driver d{};
  d.cuGetErrorName = [](CUresult error, const char** name) -> CUresult {
    if (error != kMissing) return 1;
    *name = "CUDA_ERROR_NOT_FOUND";
    return 0;
  };
  d.cuGetErrorString = [](CUresult, const char** text) -> CUresult {
    *text = "named symbol not found";
    return 0;
  };
  d.cuDeviceGetName = [](char* name, int length, CUdevice device) -> CUresult {
    std::strncpy(name, device == 0 ? "first" : "second", static_cast<size_t>(length));
    return 0;
  };
  d.cuDeviceGetAttribute = [](int* value, CUdevice_attribute attribute, CUdevice device) -> CUresult {
    *value = 1000 * (device + 1) + attribute;
    return 0;
  };
  d.cuCtxGetCurrent = [](CUcontext* context) -> CUresult {
    *context = current;
    return 0;
  };
  d.cuCtxSetCurrent = [](CUcontext context) -> CUresult {
    current = context;
    return Note("cuCtxSetCurrent");
  };
  d.cuCtxGetDevice = [](CUdevice* device) -> CUresult {
    *device = NumberOf(current) % 2;
    return 0;
  };
  d.cuStreamGetCtx = [](CUstream stream, CUcontext* context) -> CUresult {
    *context = reinterpret_cast<CUcontext>(stream);
    return 0;
  };
  d.cuLibraryLoadData = [](CUlibrary* library, const void* image, void*, void**, unsigned, void*, void**, unsigned) -> CUresult {
    if (std::strcmp(static_cast<const char*>(image), "broken") == 0) return 200;
    const std::lock_guard lock(notes.mutex);
    *library = HandleOf<CUlibrary>(++notes.loaded);
    ++notes.calls["cuLibraryLoadData"];
    return 0;
  };
  d.cuLibraryUnload = [](CUlibrary) -> CUresult { return Note("cuLibraryUnload"); };
  d.cuLibraryGetKernel = [](CUkernel* kernel, CUlibrary, const char* name) -> CUresult {
    for (size_t k = 0; k < kKernels.size(); ++k) {
      if (std::strcmp(kKernels.at(k), name) == 0) {
        *kernel = HandleOf<CUkernel>(static_cast<int>(k));
        return Note("cuLibraryGetKernel");
      }
    }
    return kMissing;
  };
  d.cuKernelGetFunction = [](CUfunction* function, CUkernel kernel) -> CUresult {
    *function = reinterpret_cast<CUfunction>(kernel);
    return Note("cuKernelGetFunction");
  };
  d.cuKernelGetAttribute = [](int* value, CUfunction_attribute attribute, CUkernel, CUdevice) -> CUresult {
    *value = attribute == kMaxDynamicSharedSizeBytes ? 48 << 10 : attribute == kNumRegs ? 40 : 0;
    return 0;
  };
  d.cuKernelSetAttribute = [](CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice) -> CUresult {
    const std::lock_guard lock(notes.mutex);
    notes.attributes[{NameOf(kernel), attribute}] = value;
    ++notes.calls["cuKernelSetAttribute"];
    return 0;
  };
  d.cuKernelGetParamInfo = [](CUkernel, size_t, size_t* offset, size_t* bytes) -> CUresult {
    *offset = 0, *bytes = kParameterWords * sizeof(uint64_t);
    return 0;
  };
  d.cuOccupancyMaxActiveBlocksPerMultiprocessor = [](int* blocks, CUfunction, int threads, size_t shared) -> CUresult {
    *blocks = shared > (200 << 10) ? 0 : 2048 / threads;
    return Note("occupancy");
  };
  d.cuOccupancyMaxActiveClusters = [](int* clusters, CUfunction, const CUlaunchConfig* config) -> CUresult {
    Note("clusters");
    const unsigned size = config->attribute_count > 0 ? config->attributes[0].value.cluster.x : 1;
    if (config->shared_bytes > (200 << 10)) return kNoSuchCluster;
    *clusters = static_cast<int>(100 / size + config->block_x / 1024);
    return 0;
  };
  d.cuLaunchKernelEx = [](const CUlaunchConfig* config, CUfunction function, void** parameters, void**) -> CUresult {
    const auto* words = static_cast<const uint64_t*>(parameters[0]);
    const unsigned cluster =
        config->attribute_count == 1 && config->attributes[0].id == kClusterDimension ? config->attributes[0].value.cluster.x : 1;
    const std::lock_guard lock(notes.mutex);
    notes.launches.push_back({NameOf(function), *config, cluster, {words, words + kParameterWords}});
    return config->block_x > 1024 ? kMissing : 0;
  };
  d.cuMemsetD8Async = [](CUdeviceptr to, unsigned char byte, size_t bytes, CUstream) -> CUresult {
    std::memset(reinterpret_cast<void*>(to), byte, bytes);  // NOLINT(performance-no-int-to-ptr): the driver's type
    return Note("cuMemsetD8Async");
  };
  return d;
}

const Driver driver = NotingDriver();

template <class F>
std::string ErrorOf(F f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

Words ThreeWords() {
  Words words;
  for (const int64_t x : {1, 2, 3}) words.Int(x);
  return words;
}

// --- libraries ------------------------------------------------------------

std::string ImageOf(const std::string& kernel) {
  Note("image of " + kernel);
  return kernel == "Broken" ? "broken" : "image";
}

TEST(DeviceIsDescribed) {
  const DeviceInfo info = DescribeDevice(driver, 1);
  CHECK_EQ(info.ordinal, 1);
  CHECK_EQ(info.name, "second");
  CHECK_EQ(info.multiprocessors, 2016);
  CHECK_EQ(info.shared_per_block, 2097);
  CHECK_EQ(info.shared_per_multiprocessor, 2081);
  CHECK_EQ(info.l2_bytes, 2038);
  CHECK_EQ(info.major, 2075);
}

TEST(LibraryLaunches) {
  Library library(driver, 0, ImageOf);
  Launcher launcher(library, StreamAt(16));
  CHECK_EQ(launcher.device().name, "first");
  notes.launches.clear();
  launcher.Launch("Small", {.blocks = 7, .threads = 96, .shared = 64}, ThreeWords());
  launcher.Launch("Large", {.blocks = 8, .threads = 32, .cluster = 4}, ThreeWords());
  launcher.Launch("Small", {.blocks = 0, .threads = 96}, ThreeWords());  // nothing to do
  CHECK_EQ(notes.launches.size(), size_t{2});
  const Launched& first = notes.launches[0];
  CHECK_EQ(first.kernel, "Small");
  CHECK_EQ(first.config.grid_x, 7u);
  CHECK_EQ(first.config.grid_y, 1u);
  CHECK_EQ(first.config.block_x, 96u);
  CHECK_EQ(first.config.shared_bytes, 64u);
  CHECK(first.config.stream == StreamAt(16));
  CHECK_EQ(first.cluster, 1u);
  CHECK(first.words == (std::vector<uint64_t>{1, 2, 3}));
  CHECK_EQ(notes.launches[1].cluster, 4u);

  std::array<char, 6> memory{};
  launcher.Fill(memory.data() + 1, 0xff, 4);
  launcher.Fill(nullptr, 0, 0);
  CHECK_EQ(std::string(memory.begin(), memory.end()), std::string("\0\xff\xff\xff\xff\0", 6));
}

TEST(LibraryLoadsAKernelWhenItIsFirstWanted) {
  Library library(driver, 0, ImageOf);
  CHECK(library.Describe().empty());
  const int compiled = Count("image of Large");
  const size_t launches = notes.launches.size();
  Launcher loader(library, StreamAt(2), true);
  std::array<char, 2> memory{};
  loader.Launch("Large", {.blocks = 1, .threads = 32}, ThreeWords());
  loader.Launch("Small", {.blocks = 0, .threads = 32}, ThreeWords());
  loader.Fill(memory.data(), 1, 2);
  const auto described = library.Describe();
  CHECK_EQ(described.size(), size_t{1});
  CHECK_EQ(described.at("Large").registers, 40);
  CHECK(memory[0] == 0 && notes.launches.size() == launches);

  const int loaded = Count("cuLibraryLoadData"), functions = Count("cuKernelGetFunction");
  Launcher(library, StreamAt(2)).Launch("Large", {.blocks = 1, .threads = 32}, ThreeWords());
  CHECK_EQ(Count("image of Large"), compiled + 1);
  CHECK_EQ(Count("cuLibraryLoadData"), loaded);
  CHECK_EQ(Count("cuKernelGetFunction"), functions);
}

TEST(LibraryTellsErrorsInTheDriversWords) {
  Library library(driver, 0, ImageOf);
  Launcher launcher(library, nullptr);
  const int unloaded = Count("cuLibraryUnload");
  const Grid one{.blocks = 1, .threads = 32};
  CHECK(ErrorOf([&] { launcher.Launch("None", one, ThreeWords()); }).find("named symbol not found") != std::string::npos);
  CHECK_EQ(Count("cuLibraryUnload"), unloaded + 1);
  CHECK(ErrorOf([&] { launcher.Launch("Broken", one, ThreeWords()); }).find("cuLibraryLoadData") != std::string::npos);
  CHECK(ErrorOf([&] { launcher.Launch("Small", {.blocks = 1, .threads = 2048}, ThreeWords()); }).find("launch of Small") !=
        std::string::npos);
  CHECK(!ErrorOf([&] { launcher.Launch("Small", {.blocks = int64_t{1} << 31, .threads = 32}, ThreeWords()); }).empty());
  CHECK(!ErrorOf([&] { launcher.Launch("Small", one, Words{}); }).empty());
}

TEST(LibraryAllowsSharedMemoryOnce) {
  Library library(driver, 0, ImageOf);
  Launcher launcher(library, nullptr);
  const int calls = Count("cuKernelSetAttribute");
  const std::pair<std::string, int> limit{"Large", kMaxDynamicSharedSizeBytes};
  launcher.Launch("Large", {.blocks = 1, .threads = 32, .shared = 48 << 10}, ThreeWords());
  CHECK_EQ(Count("cuKernelSetAttribute"), calls);
  CHECK_EQ(launcher.Occupancy("Large", 256, 100 << 10), 8);
  CHECK_EQ(notes.attributes[limit], 100 << 10);
  launcher.Launch("Large", {.blocks = 1, .threads = 32, .shared = 64 << 10}, ThreeWords());  // less: stays
  CHECK_EQ(notes.attributes[limit], 100 << 10);
  launcher.Launch("Large", {.blocks = 16, .threads = 32, .shared = 120 << 10, .cluster = 16}, ThreeWords());
  CHECK_EQ(notes.attributes[limit], 120 << 10);
  CHECK_EQ(notes.attributes[std::pair(std::string("Large"), static_cast<int>(kNonPortableClusterSizeAllowed))], 1);
  CHECK_EQ(Count("cuKernelSetAttribute"), calls + 3);
  const int asked = Count("occupancy");
  for (int k = 0; k < 3; ++k) CHECK_EQ(launcher.Occupancy("Large", 128, 0), 16);
  CHECK_EQ(Count("occupancy"), asked + 1);
}

TEST(LibraryAsksOnceHowManyClustersThereCanBe) {
  Library library(driver, 0, ImageOf);
  Launcher launcher(library, nullptr);
  const int asked = Count("clusters");
  for (int k = 0; k < 3; ++k) {
    CHECK_EQ(launcher.Clusters("Small", {.blocks = 4, .threads = 1024, .shared = 100 << 10, .cluster = 4}), 26);
    CHECK_EQ(launcher.Clusters("Small", {.blocks = 4, .threads = 512, .shared = 100 << 10, .cluster = 4}), 25);
    CHECK_EQ(launcher.Clusters("Small", {.blocks = 16, .threads = 512, .shared = 100 << 10, .cluster = 16}), 6);
    CHECK_EQ(launcher.Clusters("Small", {.blocks = 8, .threads = 512, .shared = 220 << 10, .cluster = 8}), 0);  // not an error
  }
  CHECK_EQ(Count("clusters"), asked + 4);
  const std::pair wide{std::string("Small"), static_cast<int>(kNonPortableClusterSizeAllowed)};
  CHECK_EQ(notes.attributes[wide], 1);
}

TEST(LibraryFromManyThreads) {
  constexpr int kThreads = 8;
  Library library(driver, 0, ImageOf);
  const int compiled = Count("image of Small") + Count("image of Large");
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      Launcher launcher(library, StreamAt(t), t % 2 == 0);
      for (int k = 0; k < 50; ++k) {
        const int64_t shared = (40 + k) << 10;
        CHECK_EQ(launcher.Occupancy(kKernels.at(static_cast<size_t>(k) % 2), 64, shared), 32);
        launcher.Launch("Large", {.blocks = 1, .threads = 32, .shared = shared}, ThreeWords());
        library.Describe();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(Count("image of Small") + Count("image of Large"), compiled + 2);
  CHECK_EQ(notes.attributes[std::pair(std::string("Large"), static_cast<int>(kMaxDynamicSharedSizeBytes))], 89 << 10);
}

TEST(StreamContextIsLeftAsItWas) {
  current = HandleOf<CUcontext>(4);
  {
    const StreamContext context(driver, StreamAt(7));
    CHECK_EQ(context.device(), 1);
    CHECK(current == HandleOf<CUcontext>(7));
  }
  CHECK(current == HandleOf<CUcontext>(4));
  const int switched = Count("cuCtxSetCurrent");
  CHECK_EQ(StreamContext(driver, StreamAt(4)).device(), 0);
  CHECK_EQ(StreamContext(driver, nullptr).device(), 0);
  CHECK_EQ(Count("cuCtxSetCurrent"), switched);
  current = nullptr;
}

// Notes how often a spec is described.
struct NotingCompiler {
  std::atomic<int>* described;
  const char* error = nullptr;

  std::string Describe(const std::string& spec, const DeviceInfo& info) const {
    ++*described;
    if (error != nullptr) throw std::runtime_error(error);
    return spec + " on the " + info.name;
  }
  std::string Image(const std::string& spec, const DeviceInfo& info, const std::string& kernel) const {
    Note(kernel + " of " + spec + " on the " + info.name);
    return "image";
  }
};

TEST(LibraryTableDescribesOnce) {
  constexpr int kThreads = 8, kKeys = 20;
  LibraryTable<std::string> table;
  std::atomic<int> described{0};
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  std::vector<std::vector<Library*>> seen(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      for (int k = 0; k < 2 * kKeys; ++k) {
        const int64_t key = k / 2;
        const std::string spec = "spec " + std::to_string(key);
        auto& loaded = table.Find(driver, key, spec, k % 2, NotingCompiler{&described});
        CHECK_EQ(loaded.shape, spec + (k % 2 == 0 ? " on the first" : " on the second"));
        Launcher(loaded.library, nullptr, true).Launch("Small", {.blocks = 1, .threads = 32}, ThreeWords());
        seen[static_cast<size_t>(t)].push_back(&loaded.library);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(described.load(), 2 * kKeys);
  CHECK_EQ(Count("Small of spec 3 on the second"), 1);
  for (const auto& libraries : seen) CHECK(libraries == seen[0]);
}

TEST(LibraryTableOfFaultySpecs) {
  LibraryTable<std::string> table;
  std::atomic<int> described{0};
  const NotingCompiler good{&described}, bad{&described, "does not compile"};
  CHECK_EQ(ErrorOf([&] { table.Find(driver, 1, "a", 0, bad); }), "does not compile");
  CHECK(table.Known(1, "a", 0) == nullptr);
  CHECK_EQ(table.Find(driver, 1, "a", 0, good).shape, "a on the first");  // the next call tries again
  CHECK_EQ(table.Find(driver, 1, "a", 0, bad).shape, "a on the first");
  CHECK_EQ(ErrorOf([&] { table.Find(driver, 1, "b", 0, good); }), "two specs have the same hash");
  CHECK(table.Known(1, "a", 0) != nullptr && table.Known(1, "b", 0) == nullptr && table.Known(1, "a", 1) == nullptr);
}

// --- words ------------------------------------------------------------

// As in operands.cuh and ordered.cuh.
struct WordsOfOperand {
  char* data;
  int64_t stride[kMaxAxes];
};

TEST(WordsOfACall) {
  std::array<char, 64> memory{};
  auto operand = [&](int at, int64_t stride) {
    Operand o;
    o.data = memory.data() + at;
    o.strides[1] = stride;
    return o;
  };
  CudaOrderedShape shape;
  shape.slot_bytes = {4, 4, 8};
  OrderedCall call;
  call.n = 100, call.lanes = 5;
  call.batch = {3, 7};
  call.arrays = {operand(1, 10), operand(2, 20)};
  call.outs = {operand(3, 30), operand(4, 40)};
  call.init = {{operand(5, 50), 2}, {operand(6, 60), 1}};  // a complex number and a real one
  Words words;
  PutCall(words, shape, call);
  struct {
    int64_t rank, members, size[kMaxAxes];
    int64_t n, lanes, has_init;
    WordsOfOperand arrays[2], cut, uniforms[1], outs[2], init[3];
    int64_t init_lane[3];
  } p;
  CHECK_EQ(words.bytes(), sizeof(p));
  std::memcpy(&p, words.data(), sizeof(p));
  CHECK_EQ(p.rank, 2);
  CHECK_EQ(p.members, 21);
  CHECK_EQ(p.size[1], 7);
  CHECK_EQ(p.size[3], 1);
  CHECK_EQ(p.n, 100);
  CHECK_EQ(p.lanes, 5);
  CHECK_EQ(p.has_init, 1);
  CHECK(p.arrays[1].data == memory.data() + 2 && p.arrays[1].stride[1] == 20);
  CHECK(p.cut.data == nullptr && p.uniforms[0].data == nullptr);
  CHECK(p.outs[0].data == memory.data() + 3 && p.outs[1].stride[1] == 40);
  CHECK(p.init[0].data == memory.data() + 5 && p.init[1].data == memory.data() + 9 && p.init[2].data == memory.data() + 6);
  CHECK_EQ(p.init[1].stride[1], 50);
  CHECK_EQ(p.init_lane[0], 8);
  CHECK_EQ(p.init_lane[1], 8);
  CHECK_EQ(p.init_lane[2], 8);

  call.init.clear();
  Words without;
  PutCall(without, shape, call);
  CHECK_EQ(without.bytes(), sizeof(p));
  std::memcpy(&p, without.data(), sizeof(p));
  CHECK(p.has_init == 0 && p.init[2].data == nullptr);
  CHECK(!ErrorOf([&] { without.PutBatch(std::vector<int64_t>{2, 2, 2, 2, 2}); }).empty());
}

// --- batch axes ------------------------------------------------------------

Operand OperandAt(char* data, std::vector<int64_t> strides) {
  Operand o;
  o.data = data;
  std::copy(strides.begin(), strides.end(), o.strides.begin());
  return o;
}

std::vector<int64_t> JoinedSizes(std::vector<int64_t> sizes, std::vector<std::vector<int64_t>> strides) {
  static char memory = 0;
  OrderedCall call;
  call.batch.assign(sizes.begin(), sizes.end());
  for (auto& s : strides) call.arrays.push_back(OperandAt(&memory, std::move(s)));
  JoinAxes(call);
  return {call.batch.begin(), call.batch.end()};
}

TEST(AxesThatLieAlikeAreJoined) {
  using Sizes = std::vector<int64_t>;
  CHECK(JoinedSizes({}, {{}}).empty());
  CHECK(JoinedSizes({1, 1}, {{8, 8}}).empty());
  CHECK(JoinedSizes({2, 3, 4}, {{48, 16, 4}}) == Sizes{24});
  CHECK(JoinedSizes({2, 3, 4}, {{48, 16, 4}, {96, 32, 8}}) == Sizes{24});
  CHECK(JoinedSizes({2, 3, 4}, {{48, 16, 4}, {0, 0, 0}}) == Sizes{24});  // one operand for all
  CHECK(JoinedSizes({2, 3, 4}, {{48, 16, 4}, {0, 16, 4}}) == (Sizes{2, 12}));
  CHECK(JoinedSizes({2, 3, 4}, {{48, 16, 4}, {12, 4, 0}}) == (Sizes{6, 4}));
  CHECK(JoinedSizes({2, 3, 4}, {{48, 16, 4}, {16, 0, 4}}) == (Sizes{2, 3, 4}));
  CHECK(JoinedSizes({2, 1, 4}, {{16, 777, 4}}) == Sizes{8});  // the stride of an axis of size 1 says nothing
  CHECK(JoinedSizes({1, 5, 1}, {{0, 12, 12}}) == Sizes{5});
}

// Where a call's operands lie, member after member.
template <class Call>
std::vector<std::vector<char*>> Places(const Call& call) {
  std::vector<std::vector<char*>> places;
  int64_t members = 1;
  for (const int64_t size : call.batch) members *= size;
  BatchIndex index(call.batch);
  for (int64_t m = 0; m < members; ++m) {
    index.Select(m);
    auto& row = places.emplace_back();
    Call copy = call;
    ForEachOperand(copy, [&](const Operand& o) { row.push_back(index.Place(o)); });
  }
  return places;
}

template <class Call>
void ExpectSamePlaces(const Call& call) {
  std::vector<std::vector<char*>> seen;
  InPieces(call, [&](const Call& piece) {
    CHECK(piece.batch.size() <= kMaxAxes);
    for (auto& row : Places(piece)) seen.push_back(std::move(row));
  });
  CHECK(seen == Places(call));
}

TEST(PiecesOfABatchAreAllOfIt) {
  if (kRacesOnly) return;
  static std::array<char, 1 << 20> memory;
  std::mt19937 random(1);
  auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 400; ++round) {
    const int64_t rank = below(9);
    std::vector<int64_t> sizes;
    for (int64_t axis = 0; axis < rank; ++axis) sizes.push_back(round % 50 == 0 ? below(3) : 1 + below(3));
    auto operand = [&](uint32_t mask) {
      Operand o;
      o.data = memory.data() + below(64);
      int64_t stride = 4;
      for (size_t axis = sizes.size(); axis-- > 0;) {
        if ((mask >> axis & 1) == 0) continue;
        o.strides[axis] = stride;
        stride *= sizes[axis];
      }
      return o;
    };
    OrderedCall scan;
    scan.batch.assign(sizes.begin(), sizes.end());
    const uint32_t all = 0xffff;
    for (int k = 0; k < 2; ++k) scan.arrays.push_back(operand(below(2) != 0 ? all : static_cast<uint32_t>(random())));
    scan.uniforms.push_back(operand(static_cast<uint32_t>(random()) & static_cast<uint32_t>(random())));
    scan.outs.push_back(operand(all));
    if (below(2) != 0) scan.init.push_back({operand(static_cast<uint32_t>(random())), 1});
    if (below(2) != 0) scan.flags = operand(static_cast<uint32_t>(random()));
    ExpectSamePlaces(scan);
    HistCall hist;
    hist.batch.assign(sizes.begin(), sizes.end());
    hist.arrays = {Operand{}, operand(all)};
    hist.uniforms = scan.uniforms;
    hist.dests = {operand(static_cast<uint32_t>(random()))};
    hist.outs = scan.outs;
    ExpectSamePlaces(hist);
  }
}

}  // namespace
}  // namespace jaxprims::test::launcher_test
