// Runs a grid of threads on the host, one fiber for each, several blocks at a time, in an order drawn at random.
//
// Threads switch only where others could notice: collectives, barriers, atomics and accesses with a memory order. All in between
// is one step. A seed gives one order of steps; launches differ in how many blocks are under way, in which order blocks start,
// and in how long a thread runs before others do.
#pragma once

#include <dlfcn.h>
#include <fenv.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "fibers.h"
#include "memory_order.h"
#include "thread.h"

namespace emulation {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du) {
    for (int k = 0; k < 4; ++k) Next();
  }
  uint64_t Next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ * 0x2545f4914f6cdd1du >> 16;
  }
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>((Next() & 0xffffffffu) * n >> 32); }

 private:
  uint64_t state_;
};

struct GridShape {
  int64_t blocks = 1;
  int threads = 1, cluster = 1;
  size_t dynamic_shared = 0, fixed_shared = 0;
  bool all_at_once = false;  // a cooperative launch
};

class Grid;
struct Block;
struct WarpState;

enum class State { kReady, kMeeting, kActive, kBlockBarrier, kNamedBarrier, kClusterBarrier, kExited };

class Fiber final : public Thread {
 public:
  uint64_t Meet(Collective kind, uint32_t lanes, uint64_t x, int source_lane, int line) override;
  uint32_t ActiveLanes(int line) override;
  bool BlockBarrier(bool x, int line) override;
  void NamedBarrier(int number, int count, int line) override;
  void ClusterBarrier(int line) override;
  void Switch(int line) override;
  void Copy(void* shared, const void* global, int bytes, int line) override;
  void CommitCopies() override;
  void WaitForCopies(int pending) override;
  void* InBlockOfCluster(void* shared, int rank, int line) override;
  void Plain(const void* p, int bytes, bool write, const void* from) override;
  void Ordered(const void* p, int bytes, Order order, int line) override;
  void Fenced() override;
  bool IsShared(const void* p) const override;
  [[noreturn]] void Fail(const char* what, int line) override;

  void Suspend(State why, int where);
  void FailWith(const std::string& what, int where);

  struct Pending {
    void* to;
    const void* from;
    int bytes, group;
  };

  Grid* grid = nullptr;
  Block* in = nullptr;
  WarpState* warp = nullptr;
  Context context{};
  State state = State::kExited;
  int line = 0;
  uint64_t result = 0;
  // of the collective or barrier that it waits at
  Collective kind{};
  uint32_t lanes = 0;
  uint64_t value = 0;
  int source_lane = 0, number = 0, count = 0;
  int group = 0;  // of copies, the one that is open
  std::vector<Pending> copies;
};

struct WarpState {
  Block* block = nullptr;
  Fiber* fibers = nullptr;  // of lane 0
  uint32_t live = 0, ready = 0;
  uint32_t meeting = 0, awaited = 0;  // lanes that wait at a collective, and all that such lanes wait for
  uint32_t active = 0;                // lanes that wait to be told which others are active
  int queue_place = -1;
};

struct Barrier {
  int arrived = 0, line = 0;
  bool any = false;
};

struct Cluster {
  int live = 0;
  Barrier barrier;
};

struct Block {
  int64_t number = -1;  // -1: free
  size_t slot = 0;
  int live = 0;
  char* shared = nullptr;
  Cluster* cluster = nullptr;
  Barrier barrier;
  std::vector<Fiber> fibers;
  std::vector<WarpState> warps;
};

class Grid {
 public:
  // Afterwards `where` points to the thread that runs, whenever one runs.
  Grid(const Kernel& kernel, std::string name, std::string source, Thread** where, const GridShape& shape, const void* words,
       uint64_t seed)
      : kernel_(kernel),
        name_(std::move(name)),
        source_(std::move(source)),
        where_(where),
        shape_(shape),
        words_(words),
        random_(seed),
        seed_(seed) {}

  // Empty, or what went wrong.
  std::string Run();

 private:
  friend class Fiber;

  static constexpr int kMaxFibers = 4096;
  static constexpr int64_t kPatience = 2000;  // turns of every warp that polls

  static Grid*& Running() {
    static Grid* running = nullptr;
    return running;
  }
  static Stacks& StackPool() {
    static auto* stacks = new Stacks;
    return *stacks;
  }
  static void Entry();
  static void OnSignal(int number, siginfo_t* info, void* context);

  void Prepare();
  void StartCluster();
  void StartBlock(Block& block, int64_t number);
  void RunWarp(WarpState& warp);
  void RunFiber(Fiber& fiber);
  void Exit(Fiber& fiber);
  void Complete(WarpState& warp, uint32_t lanes);
  void TellActive(WarpState& warp);
  void MakeReady(WarpState& warp, uint32_t lanes);
  void Wake(Fiber& fiber) { MakeReady(*fiber.warp, 1u << (fiber.thread & 31)); }
  void CheckBlockBarrier(Block& block);
  void CheckClusterBarrier(Cluster& cluster);
  void Garbage(char* p, size_t bytes);
  std::string Position(const Fiber& fiber, int line) const;
  std::string Waiting() const;
  std::string CodeLine(const void* address) const;

  const Kernel& kernel_;
  const std::string name_, source_;
  Thread** const where_;
  const GridShape shape_;
  const void* const words_;
  Random random_;
  const uint64_t seed_;

  Context scheduler_{};
  std::vector<Block> blocks_;  // that can be under way at once
  std::vector<Cluster> clusters_;
  std::vector<WarpState*> queue_;  // warps with ready threads
  std::vector<int64_t> order_;     // of clusters
  size_t started_ = 0, under_way_ = 0;
  std::unique_ptr<char[]> memory_;
  char *shared_ = nullptr, *shared_end_ = nullptr;
  size_t shared_stride_ = 0, fixed_offset_ = 0;
  int64_t events_ = 0, events_seen_ = -1, idle_ = 0, live_ = 0;
  uint32_t patience_ = 1, burst_ = 1;
  std::string error_;
  Fiber* running_ = nullptr;
  MemoryOrder memory_order_;
  pthread_t host_{};
  sigjmp_buf escape_{};
};

// --- threads ------------------------------------------------------------------------------------------------------------------

inline void Fiber::Suspend(State why, int where) {
  state = why;
  line = where;
  if (why != State::kReady) warp->ready &= ~(1u << (thread & 31));
  SwitchContext(context, grid->scheduler_);
}

inline void Fiber::FailWith(const std::string& what, int where) {
  if (grid->error_.empty()) grid->error_ = grid->Position(*this, where) + ": " + what;
  Suspend(State::kExited, where);
}
inline void Fiber::Fail(const char* what, int where) {
  FailWith(what, where);
  abort();  // the scheduler does not come back
}

inline uint64_t Fiber::Meet(Collective kind_, uint32_t lanes_, uint64_t x, int source, int where) {
  WarpState& w = *warp;
  const uint32_t me = 1u << (thread & 31);
  kind = kind_, lanes = lanes_, value = x, source_lane = source;
  line = where;
  if (!(lanes & me)) FailWith("a collective of lanes that this one is none of", where);
  if (lanes & ~w.live) FailWith("a collective of lanes that have exited or never were", where);
  if (w.awaited & lanes) {
    const uint32_t others = w.meeting & lanes;
    const Fiber* other = &w.fibers[std::countr_zero(others != 0 ? others : w.meeting)];
    if (others == 0 || other->lanes != lanes || other->kind != kind || other->line != line) {
      FailWith(
          "lanes of a warp wait for each other at different collectives; another is at " + grid->Position(*other, other->line),
          where);
    }
  }
  w.meeting |= me;
  w.awaited |= lanes;
  if ((w.meeting & lanes) == lanes) {
    grid->Complete(w, lanes);
    if (grid->random_.Below(4) != 0) return result;
    Suspend(State::kReady, where);
  } else {
    Suspend(State::kMeeting, where);
  }
  return result;
}

inline void Grid::Complete(WarpState& warp, uint32_t lanes) {
  Fiber* const fibers = warp.fibers;
  uint32_t set = 0;
  for (uint32_t m = lanes; m != 0; m &= m - 1) {
    const int k = std::countr_zero(m);
    set |= static_cast<uint32_t>(fibers[k].value != 0) << k;
  }
  for (uint32_t m = lanes; m != 0; m &= m - 1) {
    Fiber& f = fibers[std::countr_zero(m)];
    switch (f.kind) {
      case Collective::kBarrier:
        break;
      case Collective::kBallot:
        f.result = set;
        break;
      case Collective::kAny:
        f.result = set != 0;
        break;
      case Collective::kAll:
        f.result = set == lanes;
        break;
      case Collective::kMatch:
        f.result = 0;
        for (uint32_t o = lanes; o != 0; o &= o - 1) {
          const int k = std::countr_zero(o);
          f.result |= static_cast<uint64_t>(fibers[k].value == f.value) << k;
        }
        break;
      case Collective::kShuffle:
        f.result = lanes >> f.source_lane & 1 ? fibers[f.source_lane].value : random_.Next();
        break;
    }
  }
  warp.meeting &= ~lanes;
  warp.awaited &= ~lanes;
  MakeReady(warp, lanes);
}

inline uint32_t Fiber::ActiveLanes(int where) {
  warp->active |= 1u << (thread & 31);
  Suspend(State::kActive, where);
  return static_cast<uint32_t>(result);
}

// Those that came to one place are active together, as a rule: hardware promises nothing.
inline void Grid::TellActive(WarpState& warp) {
  uint32_t rest = warp.active;
  MakeReady(warp, rest);
  warp.active = 0;
  while (rest != 0) {
    const int line = warp.fibers[std::countr_zero(rest)].line;
    uint32_t group = 0;
    const bool apart = random_.Below(4) == 0;
    for (uint32_t m = rest; m != 0; m &= m - 1) {
      const int k = std::countr_zero(m);
      if (warp.fibers[k].line == line && (group == 0 || !apart || random_.Below(2) == 0)) group |= 1u << k;
    }
    for (uint32_t m = group; m != 0; m &= m - 1) warp.fibers[std::countr_zero(m)].result = group;
    rest &= ~group;
  }
}

inline bool Fiber::BlockBarrier(bool x, int where) {
  Barrier& b = in->barrier;
  if (b.arrived > 0 && b.line != where) {
    FailWith("threads of a block wait at different barriers; others are at line " + std::to_string(b.line), where);
  }
  if (b.arrived++ == 0) b.any = false;
  b.line = where;
  b.any = b.any || x;
  state = State::kBlockBarrier;
  grid->CheckBlockBarrier(*in);
  if (state == State::kBlockBarrier) Suspend(State::kBlockBarrier, where);
  return result != 0;
}

inline void Grid::CheckBlockBarrier(Block& block) {
  if (block.barrier.arrived == 0 || block.barrier.arrived < block.live) return;
  block.barrier.arrived = 0;
  for (Fiber& f : block.fibers) {
    if (f.state != State::kBlockBarrier) continue;
    f.result = block.barrier.any;
    Wake(f);
  }
}

inline void Fiber::NamedBarrier(int number_, int count_, int where) {
  if (number_ < 1 || number_ > 15) FailWith("there is no named barrier " + std::to_string(number_), where);
  if (count_ <= 0 || count_ % 32 != 0 || count_ > threads) {
    FailWith("a barrier of " + std::to_string(count_) + " threads is not possible", where);
  }
  number = number_, count = count_;
  int arrived = 1;
  for (const Fiber& f : in->fibers) {
    if (f.state != State::kNamedBarrier || f.number != number) continue;
    if (f.count != count) FailWith("threads disagree how many meet at a named barrier; " + grid->Position(f, f.line), where);
    ++arrived;
  }
  if (arrived < count) return Suspend(State::kNamedBarrier, where);
  for (Fiber& f : in->fibers) {
    if (f.state == State::kNamedBarrier && f.number == number) grid->Wake(f);
  }
}

inline void Fiber::ClusterBarrier(int where) {
  Barrier& b = in->cluster->barrier;
  if (b.arrived > 0 && b.line != where) {
    FailWith("threads of a cluster wait at different barriers; others are at line " + std::to_string(b.line), where);
  }
  ++b.arrived;
  b.line = where;
  state = State::kClusterBarrier;
  grid->CheckClusterBarrier(*in->cluster);
  if (state == State::kClusterBarrier) Suspend(State::kClusterBarrier, where);
}

inline void Grid::CheckClusterBarrier(Cluster& cluster) {
  if (cluster.barrier.arrived == 0 || cluster.barrier.arrived < cluster.live) return;
  cluster.barrier.arrived = 0;
  std::vector<int64_t> numbers;
  for (const Block& block : blocks_) {
    if (block.number >= 0 && block.cluster == &cluster) numbers.push_back(block.number);
  }
  memory_order_.Meet(numbers);
  for (Block& block : blocks_) {
    if (block.number < 0 || block.cluster != &cluster) continue;
    for (Fiber& f : block.fibers) {
      if (f.state == State::kClusterBarrier) Wake(f);
    }
  }
}

inline void Fiber::Switch(int where) {
  Suspend(State::kReady, where);
  until_switch = 1 + static_cast<int>(grid->random_.Below(grid->patience_));
}

inline void Fiber::Copy(void* shared, const void* global, int bytes, int where) {
  const auto size = static_cast<size_t>(bytes);
  if (reinterpret_cast<uintptr_t>(shared) % size != 0 || reinterpret_cast<uintptr_t>(global) % size != 0) {
    FailWith("misaligned address", where);
  }
  const char* to = static_cast<char*>(shared);
  if (to < in->shared || to + size > in->shared + grid->shared_stride_) FailWith("not the block's shared memory", where);
  if (grid->random_.Below(4) == 0) {  // it may be done at any time
    memcpy(shared, global, size);
  } else {
    memset(shared, static_cast<int>(grid->random_.Below(256)), size);
    copies.push_back({shared, global, bytes, group});
  }
}
inline void Fiber::Plain(const void* p, int bytes, bool write, const void* from) {
  if (IsShared(p) || grid->StackPool().IsStack(p)) return;
  if (const auto* other = grid->memory_order_.Plain(block, p, bytes, write, from)) {
    FailWith(std::string(write ? "writes" : "reads") + " at" + grid->CodeLine(from) + ", and block " +
                 std::to_string(other->block) + " accessed it at" + grid->CodeLine(other->from) + "; nothing orders the two",
             line);
  }
}
inline void Fiber::Ordered(const void* p, int bytes, Order order, int where) {
  if (IsShared(p)) return;
  if (const auto* other = grid->memory_order_.Ordered(block, p, bytes, order)) {
    FailWith("an access with a memory order; block " + std::to_string(other->block) + " accessed it without at" +
                 grid->CodeLine(other->from) + "; nothing orders the two",
             where);
  }
}
inline void Fiber::Fenced() { grid->memory_order_.Fence(block); }

inline void Fiber::CommitCopies() { ++group; }
inline void Fiber::WaitForCopies(int pending) {
  size_t kept = 0;
  for (const Pending& c : copies) {
    if (c.group >= group - pending) {
      copies[kept++] = c;
    } else {
      memcpy(c.to, c.from, static_cast<size_t>(c.bytes));
    }
  }
  copies.resize(kept);
}

inline void* Fiber::InBlockOfCluster(void* shared, int rank, int where) {
  char* p = static_cast<char*>(shared);
  if (p < in->shared || p >= in->shared + grid->shared_stride_) FailWith("not the block's shared memory", where);
  if (rank < 0 || rank >= cluster_size) FailWith("the cluster has no block " + std::to_string(rank), where);
  return p + (rank - cluster_rank) * static_cast<ptrdiff_t>(grid->shared_stride_);
}
inline bool Fiber::IsShared(const void* p) const { return p >= grid->shared_ && p < grid->shared_end_; }

// --- the grid -----------------------------------------------------------------------------------------------------------------

inline void Grid::MakeReady(WarpState& warp, uint32_t lanes) {
  warp.ready |= lanes;
  for (uint32_t m = lanes; m != 0; m &= m - 1) warp.fibers[std::countr_zero(m)].state = State::kReady;
  if (warp.queue_place < 0) {
    warp.queue_place = static_cast<int>(queue_.size());
    queue_.push_back(&warp);
  }
  ++events_;
}

inline void Grid::Garbage(char* p, size_t bytes) {
  uint64_t words[32];
  for (uint64_t& w : words) w = random_.Next() * 0x9e3779b97f4a7c15u;
  for (size_t at = 0; at < bytes; at += sizeof(words)) memcpy(p + at, words, std::min(sizeof(words), bytes - at));
}

inline void Grid::Prepare() {
  const auto cluster = static_cast<size_t>(shape_.cluster);
  const auto clusters = static_cast<size_t>(shape_.blocks) / cluster;
  const size_t most = std::max<size_t>(1, static_cast<size_t>(kMaxFibers / shape_.threads) / cluster);
  // How this launch is run: 1/4 block after block, in order or not; else some at once.
  const uint32_t mode = random_.Below(8);
  size_t at_once = mode < 2 ? 1 : 1 + random_.Below(static_cast<uint32_t>(std::min(most, clusters)));
  if (shape_.all_at_once) at_once = clusters;
  order_.resize(clusters);
  std::iota(order_.begin(), order_.end(), int64_t{0});
  if (mode == 1 || mode == 3) {
    for (size_t k = clusters; k > 1; --k) std::swap(order_[k - 1], order_[random_.Next() % k]);
  } else if (mode == 4) {
    std::reverse(order_.begin(), order_.end());
  }
  patience_ = 1u << (2 * random_.Below(5));
  burst_ = 1u << (2 * random_.Below(4));

  at_once = std::min(at_once, clusters);
  fixed_offset_ = (shape_.dynamic_shared + 255) / 256 * 256;
  shared_stride_ = fixed_offset_ + (shape_.fixed_shared + 255) / 256 * 256;
  memory_.reset(new char[at_once * cluster * shared_stride_ + 256]);
  shared_ = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory_.get()) + 255) / 256 * 256);
  shared_end_ = shared_ + at_once * cluster * shared_stride_;

  clusters_.resize(at_once);
  blocks_.resize(at_once * cluster);
  const auto threads = static_cast<size_t>(shape_.threads), warps = (threads + 31) / 32;
  for (size_t slot = 0; slot < blocks_.size(); ++slot) {
    Block& block = blocks_[slot];
    block.slot = slot;
    block.cluster = &clusters_[slot / cluster];
    block.shared = shared_ + slot * shared_stride_;
    block.fibers = std::vector<Fiber>(threads);
    block.warps.resize(warps);
    for (size_t w = 0; w < warps; ++w) {
      block.warps[w].block = &block;
      block.warps[w].fibers = &block.fibers[w * 32];
    }
    for (size_t t = 0; t < threads; ++t) {
      Fiber& f = block.fibers[t];
      f.thread = static_cast<int>(t);
      f.threads = shape_.threads;
      f.blocks = shape_.blocks;
      f.cluster_size = shape_.cluster;
      f.cluster_rank = static_cast<int>(slot % cluster);
      f.dynamic_shared = block.shared;
      f.fixed_shared = block.shared + fixed_offset_;
      f.events = &events_;
      f.grid = this;
      f.in = &block;
      f.warp = &block.warps[t / 32];
    }
  }
}

inline void Grid::StartCluster() {
  const auto cluster = static_cast<size_t>(shape_.cluster);
  const auto free = std::find_if(clusters_.begin(), clusters_.end(), [](const Cluster& c) { return c.live == 0; });
  const auto first = static_cast<size_t>(free - clusters_.begin()) * cluster;
  *free = {};
  free->live = shape_.cluster * shape_.threads;
  const int64_t number = order_[started_++];
  ++under_way_;
  for (size_t k = 0; k < cluster; ++k) StartBlock(blocks_[first + k], number * shape_.cluster + static_cast<int64_t>(k));
}

inline void Grid::StartBlock(Block& block, int64_t number) {
  block.number = number;
  block.live = shape_.threads;
  block.barrier = {};
  live_ += shape_.threads;
  Garbage(block.shared, shared_stride_);
  const auto first = block.slot * static_cast<size_t>(shape_.threads);
  for (Fiber& f : block.fibers) {
    f.block = number;
    f.state = State::kReady;
    f.line = 0;
    f.until_switch = 1 + static_cast<int>(random_.Below(patience_));
    f.group = 0;
    f.copies.clear();
    MakeContext(f.context, StackPool()[first + static_cast<size_t>(f.thread)], Stacks::kBytes, Entry);
  }
  for (WarpState& w : block.warps) {
    const auto lanes = std::min<size_t>(32, block.fibers.size() - static_cast<size_t>(w.fibers - block.fibers.data()));
    w.live = lanes == 32 ? ~0u : (1u << lanes) - 1;
    w.meeting = w.awaited = w.active = 0;
    MakeReady(w, w.live);
  }
}

inline void Grid::Entry() {
  Fiber& f = *Running()->running_;
  f.grid->kernel_.run(f.grid->words_);
  f.grid->Exit(f);
  f.Suspend(State::kExited, f.line);
}

inline void Grid::Exit(Fiber& fiber) {
  WarpState& w = *fiber.warp;
  Block& block = *fiber.in;
  const uint32_t me = 1u << (fiber.thread & 31);
  fiber.state = State::kExited;
  if (w.awaited & me) {
    const Fiber& other = w.fibers[std::countr_zero(w.meeting)];
    fiber.FailWith("exited, while a collective waits for it: " + Position(other, other.line), fiber.line);
  }
  w.live &= ~me;
  ++events_;
  --live_;
  --block.live;
  --block.cluster->live;
  CheckBlockBarrier(block);
  CheckClusterBarrier(*block.cluster);
  if (block.live == 0) Garbage(block.shared, shared_stride_);
  if (block.cluster->live == 0) --under_way_;
}

inline void Grid::RunFiber(Fiber& fiber) {
  running_ = &fiber;
  *where_ = &fiber;
  SwitchContext(scheduler_, fiber.context);
}

// All of a warp's ready threads, in one of many orders, until they wait or let others run.
inline void Grid::RunWarp(WarpState& warp) {
  ++idle_;
  const uint32_t ready = warp.ready, active = warp.active;
  const uint64_t r = random_.Next();
  const uint32_t step = static_cast<uint32_t>(r) | 1, from = static_cast<uint32_t>(r >> 8);
  const bool in_order = (r >> 16 & 3) == 0;
  for (uint32_t k = 0; k < 32; ++k) {
    const uint32_t lane = in_order ? k : (from + k * step) & 31;
    if (!(ready >> lane & 1) || !(warp.ready >> lane & 1)) continue;
    RunFiber(warp.fibers[lane]);
    if (!error_.empty()) return;
  }
  if (warp.active != 0 && (warp.ready == 0 || (active != 0 && random_.Below(2) == 0))) TellActive(warp);
}

inline std::string Grid::Run() {
  static std::vector<char> signal_stack(64 * 1024);
  Prepare();
  Running() = this;
  struct sigaction action{}, before_segv{}, before_bus{}, before_fpe{};
  action.sa_sigaction = OnSignal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  stack_t stack{}, stack_before{};
  stack.ss_sp = signal_stack.data();
  stack.ss_size = signal_stack.size();
  sigaltstack(&stack, &stack_before);
  host_ = pthread_self();
  fenv_t arithmetic{};  // XLA's threads may flush subnormal numbers
  fegetenv(&arithmetic);
  fesetenv(FE_DFL_ENV);
  sigaction(SIGSEGV, &action, &before_segv);
  sigaction(SIGBUS, &action, &before_bus);
  sigaction(SIGFPE, &action, &before_fpe);

  if (sigsetjmp(escape_, 1) == 0) {
    while (error_.empty()) {
      while (started_ < order_.size() && under_way_ < clusters_.size()) StartCluster();
      if (queue_.empty()) {
        if (live_ == 0) break;
        error_ = "kernel " + name_ + ": deadlock" + Waiting();
        break;
      }
      const size_t place = random_.Below(static_cast<uint32_t>(queue_.size()));
      WarpState& warp = *queue_[place];
      for (uint32_t times = 1 + random_.Below(burst_); times > 0 && warp.ready != 0 && error_.empty(); --times) RunWarp(warp);
      if (warp.ready == 0) {
        queue_[static_cast<size_t>(warp.queue_place)] = queue_.back();
        queue_.back()->queue_place = warp.queue_place;
        queue_.pop_back();
        warp.queue_place = -1;
      }
      if (events_ != events_seen_) {
        events_seen_ = events_;
        idle_ = 0;
      } else if (idle_ > kPatience * (1 + static_cast<int64_t>(queue_.size()))) {
        error_ = "kernel " + name_ + ": nothing happens any more, all threads wait" + Waiting();
      }
    }
  }

  sigaction(SIGSEGV, &before_segv, nullptr);
  sigaction(SIGBUS, &before_bus, nullptr);
  sigaction(SIGFPE, &before_fpe, nullptr);
  sigaltstack(&stack_before, nullptr);
  fesetenv(&arithmetic);
  *where_ = nullptr;
  Running() = nullptr;
  if (!error_.empty()) {
    error_ += "\n  (grid of " + std::to_string(shape_.blocks) + " blocks of " + std::to_string(shape_.threads) +
              " threads; seed " + std::to_string(seed_) + "; source " + source_ + ")";
  }
  return error_;
}

inline void Grid::OnSignal(int number, siginfo_t* info, void*) {
  Grid* grid = Running();
  if (grid == nullptr || !pthread_equal(pthread_self(), grid->host_)) {
    signal(number, SIG_DFL);
    return;
  }
  const char* what = number == SIGFPE                     ? "a division by zero, or another arithmetic fault"
                     : StackPool().IsGuard(info->si_addr) ? "the thread's stack is too small"
                                                          : "an access to memory that is not there";
  if (grid->error_.empty()) grid->error_ = grid->Position(*grid->running_, grid->running_->line) + " or later: " + what;
  siglongjmp(grid->escape_, 1);
}

inline std::string Grid::Position(const Fiber& fiber, int line) const {
  std::string text = "kernel " + name_ + ", block " + std::to_string(fiber.block) + ", thread " + std::to_string(fiber.thread) +
                     ", line " + std::to_string(line);
  std::ifstream file(source_);
  std::string words;
  for (int k = 0; k < line && std::getline(file, words); ++k) {
  }
  if (line > 0 && file) text += " `" + words.substr(std::min(words.size(), words.find_first_not_of(' '))) + "`";
  return text;
}

// Of an address in the kernel's code, if it was compiled with lines.
inline std::string Grid::CodeLine(const void* address) const {
  Dl_info info;
  if (dladdr(address, &info) == 0 || source_.size() < 3) return " ?";
  const auto offset = static_cast<const char*>(address) - static_cast<const char*>(info.dli_fbase) - 1;
  char command[1024];
  snprintf(command, sizeof(command), "addr2line -i -e %.*s.so %#tx", static_cast<int>(source_.size() - 3), source_.c_str(),
           offset);
  std::string text;
  if (FILE* lines = popen(command, "r")) {
    char line[512];
    while (fgets(line, sizeof(line), lines) != nullptr)
      text += " " + std::string(line, strcspn(line, "\n")).substr(std::string(line).rfind(':') + 1);
    pclose(lines);
  }
  return " line" + text;
}

inline std::string Grid::Waiting() const {
  std::map<std::pair<int, int>, std::pair<int, const Fiber*>> places;
  for (const Block& block : blocks_) {
    for (const Fiber& f : block.fibers) {
      if (block.number < 0 || f.state == State::kExited) continue;
      auto& place = places[{static_cast<int>(f.state), f.line}];
      if (place.first++ == 0) place.second = &f;
    }
  }
  static constexpr const char* kWhat[] = {"poll",
                                          "wait at a collective",
                                          "wait",
                                          "wait at a block's barrier",
                                          "wait at a named barrier",
                                          "wait at a cluster's barrier",
                                          ""};
  std::string text;
  for (const auto& [key, place] : places) {
    text += "\n  " + std::to_string(place.first) + " threads " + kWhat[key.first] + ", as " + Position(*place.second, key.second);
  }
  return text;
}

}  // namespace emulation
