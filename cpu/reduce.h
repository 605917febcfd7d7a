// The driver of reductions: blocks of rows reduced by a kernel (made by jaxprims/targets/cpu/ordered/reduce.py), their aggregates
// combined in order.
//
// A row's leaves (of a fixed number of elements) are combined as a balanced tree that keeps their order: rounding errors of a sum
// grow with the tree's height, not with the row's length. A task's block is 2^k leaves, that is a subtree, so the bits depend
// neither on the number of threads nor on how much a task takes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "numbers.h"
#include "ordered_call.h"
#include "ordered_kernel.h"
#include "ordered_row.h"
#include "reduce_plan.h"
#include "work_assist.h"
#include "workspace.h"

namespace jaxprims {

namespace internal {

// Combines states in the order in which they come: the first 2^k make a balanced tree, likewise what follows. It keeps a state
// for each bit of the number of those that came.
class PairwiseFold {
 public:
  // memory: `FoldLevels` states, `stride` bytes apart, of `lanes` lanes each.
  PairwiseFold(const OrderedKernel& kernel, const void* const* uniforms, char* memory, int64_t stride, int64_t lanes)
      : kernel_(kernel), uniforms_(uniforms), memory_(memory), stride_(stride), lanes_(lanes) {}

  // Where the next state is to be written, before Push.
  char* Next() const { return memory_ + depth_ * stride_; }

  void Push() {
    ++depth_;
    for (int64_t c = ++count_; c % 2 == 0; c /= 2) Merge();
  }

  // The combination of all, or null if there were none.
  const char* Total() {
    while (depth_ > 1) Merge();
    return depth_ == 0 ? nullptr : memory_;
  }

  void Clear() { depth_ = count_ = 0; }

 private:
  void Merge() {
    --depth_;
    char* before = memory_ + (depth_ - 1) * stride_;
    kernel_.combine(uniforms_, before, before + stride_, before, lanes_);
  }

  const OrderedKernel& kernel_;
  const void* const* uniforms_;
  char* memory_;
  int64_t stride_, lanes_;
  int64_t depth_ = 0, count_ = 0;
};

// The results of states, or of the identity where there is none.
inline void FinishTo(const OrderedShape& shape, const OrderedKernel& kernel, const void* const* uniforms, const void* state,
                     const List<void*>& outs, int64_t lanes) {
  if (state != nullptr || shape.identity) return kernel.finish(uniforms, state, outs.data(), lanes);
  for (size_t leaf = 0; leaf < outs.size(); ++leaf) {  // nothing, of an operator without identity: some bits or other
    std::memset(outs[leaf], 0, static_cast<size_t>(lanes * shape.leaf_bytes[leaf]));
  }
}

// What a worker has: the pointers of a row, and room for pointers to results.
struct ReduceWorker {
  ReduceWorker(const OrderedShape& shape, const OrderedCall& call) : row(call), outs(shape.leaf_bytes.size(), arena.get()) {}
  OrderedRow row;
  Arena<128> arena;
  List<void*> outs;
};

// Asks for what lies behind [lo, hi) of the arrays, some distance ahead. At the end of a row or a chunk the processor's window
// holds no loads of what follows, and hardware prefetchers stop at a page's end.
inline void PrefetchBehind(const OrderedShape& shape, const void* const* arrays, int64_t lo, int64_t hi) {
  constexpr int64_t kAhead = 4096, kLine = 64;
  for (size_t k = 0; k < shape.array_bytes.size(); ++k) {
    const char* from = static_cast<const char*>(arrays[k]) + hi * shape.array_bytes[k] + kAhead;
    for (int64_t back = std::min(kAhead, (hi - lo) * shape.array_bytes[k]); back > 0; back -= kLine)
      __builtin_prefetch(from - back);
  }
}

// Elements that lie in memory as rows of arrays; another class may make them of what lies there (stencil_reduce.h).
struct RowElements {
  // The elements of a range of the row that `me` is at, as a state.
  void Reduce(const OrderedShape& shape, const OrderedKernel& kernel, ReduceWorker& me, int64_t /*row*/,
              const OrderedRange& range, void* state) {
    if (!shape.across) PrefetchBehind(shape, me.row.arrays(), range.lo, range.hi);
    kernel.reduce(me.row.arrays(), me.row.uniforms(), nullptr, &range, state, 0);
  }
};

// Consecutive rows that share their uniforms and lie end to end in all arrays, or, spaced, are equally far apart in each of
// these, `inner` at a time that are so as well: rows [k * count, (k + 1) * count) do.
struct JoinedRows {
  int64_t count = 1;
  int64_t inner = 1;  // 1: all are equally far apart
  bool spaced = false;
  size_t axis = 0, outer = 0;  // batch axes along which a row follows another, and `inner` rows follow as many
};

inline JoinedRows Joined(const OrderedShape& shape, const OrderedCall& call) {
  const bool may_be_spaced = shape.folds_spaced && call.n >= kReduceSpaced;
  JoinedRows rows;
  rows.axis = call.batch.size();
  while (rows.axis > 0 && call.batch[rows.axis - 1] == 1) --rows.axis;
  rows.axis = rows.outer = rows.axis - (rows.axis > 0);
  for (size_t axis = call.batch.size(); axis-- > 0;) {
    if (call.batch[axis] == 1) continue;
    bool joins = true;
    auto look = [&](const Operand& operand, int64_t end_to_end) {
      const int64_t step = may_be_spaced ? operand.strides[rows.outer] : end_to_end;
      joins = joins && operand.strides[axis] == rows.count / rows.inner * step;
      rows.spaced = rows.spaced || step != end_to_end;
    };
    auto all = [&] {
      joins = true;
      for (size_t k = 0; k < call.arrays.size(); ++k) look(call.arrays[k], call.n * call.lanes * shape.array_bytes[k]);
      for (const Operand& uniform : call.uniforms) look(uniform, 0);
    };
    all();
    if (!joins && may_be_spaced && rows.inner == 1 && rows.count < kReduceRows) {
      rows.inner = rows.count, rows.outer = axis;
      all();
    }
    if (!joins) break;
    rows.count *= call.batch[axis];
  }
  return rows;
}

// Short rows that are joined, a row in each lane of a vector (jaxprims/targets/cpu/ordered/scan_abreast.py) or folded along
// vectors (reduce_rows.py); or, across, a strip of them, or bundles that lie end to end.
template <class Pool>
void ReduceShortRows(Pool& pool, const OrderedShape& shape, const OrderedCall& call, const OrderedKernel& kernel,
                     const ReduceProblem& problem, const ReducePlan& plan) {
  const int64_t joined = problem.joined, n = call.n, strips = CeilDiv(call.lanes, plan.strip), pieces = call.rows() * strips;
  std::vector<int64_t> steps;
  if (plan.spaced) {
    const JoinedRows rows = Joined(shape, call);
    for (const size_t axis : {rows.axis, rows.outer}) {
      for (const Operand& array : call.arrays) steps.push_back(array.strides[axis]);
      for (const Operand& uniform : call.uniforms) steps.push_back(uniform.strides[axis]);
    }
  }
  auto workers = WorkersOf<ReduceWorker>(plan.threads, shape, call);
  WorkAssist(pool, CeilDiv(pieces, plan.grain), plan.threads, [&](int64_t task, int worker) {
    ReduceWorker& me = workers[static_cast<size_t>(worker)];
    const int64_t end = std::min(pieces, (task + 1) * plan.grain);
    for (int64_t piece = task * plan.grain, count = 0; piece < end; piece += count) {
      const int64_t row = piece / strips;
      count = strips > 1 ? 1 : std::min(end - piece, joined - row % joined);
      me.row.Select(row);
      OrderedRange range{.hi = count * n, .n = count * n, .period = n, .lanes = call.lanes, .steps = steps.data()};
      range.inner = problem.inner > 1 ? problem.inner : count;
      range.far = plan.far ? 1 : 0;
      range.lane_lo = piece % strips * plan.strip;
      range.lane_hi = std::min(call.lanes, range.lane_lo + plan.strip);
      for (size_t leaf = 0; leaf < me.outs.size(); ++leaf) me.outs[leaf] = me.row.outs()[leaf];
      kernel.scan(me.row.arrays(), me.row.uniforms(), me.outs.data(), nullptr, &range, nullptr, nullptr, 0);
    }
  });
}

}  // namespace internal

inline ReduceProblem DescribeReduce(const OrderedShape& shape, const OrderedCall& call) {
  ReduceProblem p;
  p.n = call.n;
  p.rows = call.rows();
  const internal::JoinedRows rows = internal::Joined(shape, call);
  p.joined = rows.count, p.inner = rows.inner, p.spaced = rows.spaced;
  p.lanes = call.lanes;
  p.slots = static_cast<int64_t>(shape.slot_bytes.size());
  p.state_bytes = Sum(shape.slot_bytes);
  for (size_t k = 0; k < call.arrays.size(); ++k) {
    const bool alike = std::ranges::all_of(call.arrays[k].strides, [](int64_t step) { return step == 0; });
    if (!alike || p.rows == 1) p.bytes += shape.array_bytes[k];
  }
  p.across = shape.across, p.work = shape.work;
  p.init = !call.init.empty(), p.folds_rows = shape.folds_rows;
  return p;
}

template <class Pool, class Elements = internal::RowElements>
void RunReduce(Pool& pool, const OrderedShape& shape, const OrderedCall& call, const OrderedKernel& kernel,
               const ReducePlan& plan, const Elements& elements = {}) {
  const int64_t rows = call.rows(), lanes = call.lanes, n = call.n;
  if (rows == 0 || lanes == 0) return;
  ExpectLargeResults(shape, call, rows * lanes);
  const ReduceProblem problem = DescribeReduce(shape, call);
  if (plan.periodic) return internal::ReduceShortRows(pool, shape, call, kernel, problem, plan);

  const int64_t blocks = BlocksOf(problem, plan), strips = CeilDiv(lanes, plan.strip);
  const int64_t pieces = rows * blocks * strips, stride = StateBytes(shape, plan.strip);
  const int64_t bytes = WorkerBytes(problem, plan);
  Workspace workspace(static_cast<size_t>(WorkspaceBytes(problem, plan)));
  char* aggregates = workspace.data() + plan.threads * bytes;
  auto workers = WorkersOf<internal::ReduceWorker>(plan.threads, shape, call);
  std::vector<Elements> sources(static_cast<size_t>(plan.threads), elements);

  auto finish = [&](internal::ReduceWorker& me, char* memory, const char* total, int64_t lane_lo, int64_t lane_hi) {
    if (me.row.Init(shape, lane_lo, lane_hi, memory)) {
      if (total != nullptr) kernel.combine(me.row.uniforms(), memory, total, memory, lane_hi - lane_lo);
      total = memory;
    }
    for (size_t leaf = 0; leaf < me.outs.size(); ++leaf) me.outs[leaf] = me.row.outs()[leaf] + lane_lo * shape.leaf_bytes[leaf];
    internal::FinishTo(shape, kernel, me.row.uniforms(), total, me.outs, lane_hi - lane_lo);
  };

  // Pieces are numbered as they lie in memory: strip within block within row.
  WorkAssist(pool, CeilDiv(pieces, plan.grain), plan.threads, [&](int64_t task, int worker) {
    internal::ReduceWorker& me = workers[static_cast<size_t>(worker)];
    char* memory = workspace.data() + worker * bytes;
    const int64_t first = task * plan.grain, end = std::min(pieces, first + plan.grain);
    int64_t strip = first % strips, block = first / strips % blocks, row = first / strips / blocks;
    me.row.Select(row);
    for (int64_t piece = first;;) {
      const int64_t lo = block * plan.block, hi = std::min(n, lo + plan.block);
      OrderedRange range{.lo = lo, .hi = hi, .n = n, .lanes = lanes};
      range.far = plan.far ? 1 : 0;
      range.lane_lo = strip * plan.strip;
      range.lane_hi = std::min(lanes, range.lane_lo + plan.strip);
      const int64_t width = range.lane_hi - range.lane_lo;
      internal::PairwiseFold fold(kernel, me.row.uniforms(), memory + stride, stride, width);
      for (; range.lo < hi; range.lo = range.hi) {
        range.hi = std::min(hi, range.lo + plan.leaf);
        sources[static_cast<size_t>(worker)].Reduce(shape, kernel, me, row, range, fold.Next());
        fold.Push();
      }
      if (blocks == 1) {
        finish(me, memory, fold.Total(), range.lane_lo, range.lane_hi);
      } else {
        std::memcpy(aggregates + piece * stride, fold.Total(), static_cast<size_t>(StateBytes(shape, width)));
      }
      if (++piece == end) break;
      if (++strip < strips) continue;
      strip = 0;
      if (++block < blocks) continue;
      block = 0;
      ++row;
      me.row.Next();
    }
  });
  if (blocks == 1) return;

  const int64_t folds = rows * strips;
  const int threads = pieces * plan.strip < kUpdatesPerThread ? 1 : plan.threads;
  WorkAssist(pool, folds, threads, [&](int64_t task, int worker) {
    internal::ReduceWorker& me = workers[static_cast<size_t>(worker)];
    char* memory = workspace.data() + worker * bytes;
    const int64_t row = task / strips, strip = task % strips;
    const int64_t lane_lo = strip * plan.strip, lane_hi = std::min(lanes, lane_lo + plan.strip);
    me.row.Select(row);
    internal::PairwiseFold fold(kernel, me.row.uniforms(), memory + stride, stride, lane_hi - lane_lo);
    for (int64_t block = 0; block < blocks; ++block) {
      std::memcpy(fold.Next(), aggregates + ((row * blocks + block) * strips + strip) * stride,
                  static_cast<size_t>(StateBytes(shape, lane_hi - lane_lo)));
      fold.Push();
    }
    finish(me, memory, fold.Total(), lane_lo, lane_hi);
  });
}

}  // namespace jaxprims
