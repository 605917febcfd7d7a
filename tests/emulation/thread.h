// What a kernel on the host sees of the emulation: the thread that runs. Included by the kernels (device.cuh) and by the driver.
#pragma once

#include <stdint.h>

namespace emulation {

// How an access that others may see is ordered with this thread's other ones; an update is relaxed.
enum class Order : int { kRelaxedLoad, kAcquireLoad, kRelaxedStore, kReleaseStore, kUpdate };

enum class Collective : int { kBarrier, kBallot, kAny, kAll, kMatch, kShuffle };

// `line`: where in the kernel's source; all threads that meet must come from one place.
class Thread {
 public:
  int thread = 0, threads = 0, cluster_rank = 0, cluster_size = 1;
  int64_t block = 0, blocks = 0;
  char* fixed_shared = nullptr;  // of JP_SHARED's variables
  char* dynamic_shared = nullptr;
  int until_switch = 1;       // accesses that others can see, before another thread may run
  int64_t* events = nullptr;  // counts what may let a waiting thread go on: if nothing happens, all wait for ever

  virtual uint64_t Meet(Collective kind, uint32_t lanes, uint64_t x, int source_lane, int line) = 0;
  virtual uint32_t ActiveLanes(int line) = 0;
  virtual bool BlockBarrier(bool x, int line) = 0;
  virtual void NamedBarrier(int number, int count, int line) = 0;
  virtual void ClusterBarrier(int line) = 0;
  virtual void Switch(int line) = 0;
  virtual void Copy(void* shared, const void* global, int bytes, int line) = 0;
  virtual void CommitCopies() = 0;
  virtual void WaitForCopies(int pending) = 0;
  virtual void* InBlockOfCluster(void* shared, int rank, int line) = 0;
  // Of kernels compiled with JP_CHECK_ORDER. from: the code's address.
  virtual void Plain(const void* p, int bytes, bool write, const void* from) = 0;
  virtual void Ordered(const void* p, int bytes, Order order, int line) = 0;
  virtual void Fenced() = 0;
  virtual bool IsShared(const void* p) const = 0;
  [[noreturn]] virtual void Fail(const char* what, int line) = 0;

 protected:
  ~Thread() = default;
};

// A kernel's symbol `<name>_emulated`.
struct Kernel {
  void (*run)(const void* words);
  int64_t parameter_bytes;
  int max_threads, resident;
};

}  // namespace emulation
