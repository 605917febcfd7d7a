// The driver of segmented reductions: N elements, segments given by offsets (CSR) or by sorted ids.
//
// Elements and ends of segments, merged in their order, are cut into tasks of equal size (Merrill and Garland's merge path): one
// giant segment, millions of tiny ones and millions of empty ones are equally balanced. A task finishes the segments that end in
// it, but for its first one, which may have begun before: of that it leaves the state of its own part (the head), as it leaves
// the state of the segment that is still open at its end. Folding these in order finishes the segments that span tasks.
//
// No input can lead to an access out of bounds: offsets are clamped and made monotone, ids are compared with the task's range of
// segments before anything is written, and every result is written by exactly one task.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "numbers.h"
#include "reduce.h"
#include "segment_runs.h"
#include "segments_plan.h"

namespace jaxprims {

inline SegmentsProblem DescribeSegments(const OrderedShape& shape, const OrderedCall& call, const Segments& segments) {
  SegmentsProblem p;
  p.n = call.n;
  p.segments = segments.count;
  p.members = call.rows();
  p.lanes = call.lanes;
  p.leaf_bytes = shape.leaf_bytes;
  p.slots = static_cast<int64_t>(shape.slot_bytes.size());
  p.state_bytes = Sum(shape.slot_bytes);
  p.across = shape.across, p.work = shape.work;
  return p;
}

namespace internal {

// Calls f with the number of bytes of an element, as a constant where it is a usual one, so that copies become single moves.
template <class F>
void WithBytes(int64_t bytes, F f) {
  switch (bytes) {
    case 1:
      return f(std::integral_constant<size_t, 1>());
    case 2:
      return f(std::integral_constant<size_t, 2>());
    case 4:
      return f(std::integral_constant<size_t, 4>());
    case 8:
      return f(std::integral_constant<size_t, 8>());
    case 16:
      return f(std::integral_constant<size_t, 16>());
    default:
      return f(static_cast<size_t>(bytes));
  }
}

// The states that a task leaves for its neighbours.
struct TaskBorders {
  bool head = false, open = false;  // which of them hold something
};

// What a worker has, and how it does a task.
class SegmentsWorker {
 public:
  SegmentsWorker(const OrderedShape& shape, const OrderedCall& call, const OrderedKernel& kernel, const SegmentsPlan& plan)
      : shape_(&shape),
        call_(&call),
        kernel_(&kernel),
        plan_(&plan),
        row_(call),
        outs_(shape.leaf_bytes.size(), arena_.get()),
        buffers_(shape.leaf_bytes.size(), arena_.get()),
        identity_(shape.leaf_bytes.size(), arena_.get()) {}

  // Bytes of memory, aligned to 64, that it wants.
  static int64_t Bytes(const SegmentsProblem& p, const SegmentsPlan& plan) {
    int64_t bytes = (1 + FoldStates(plan)) * StateBytes(p.slots, plan.strip) + RunList::Bytes(plan.chunk);
    for (const int64_t size : p.leaf_bytes) bytes += LeafBytes(p.across, plan, size);
    return bytes;
  }

  void SetMemory(char* memory) {
    aggregate_ = memory;
    memory += StateBytes(*shape_, plan_->strip);
    fold_ = memory;
    memory += FoldStates(*plan_) * StateBytes(*shape_, plan_->strip);
    runs_ = RunList(memory, plan_->chunk);
    memory += RunList::Bytes(plan_->chunk);
    for (size_t leaf = 0; leaf < buffers_.size(); ++leaf) {
      buffers_[leaf] = memory;
      memory += LeafBytes(shape_->across, *plan_, shape_->leaf_bytes[leaf]);
      identity_[leaf] = memory - RoundUp(shape_->leaf_bytes[leaf], 64);
    }
  }

  // The member of the batch and the lanes that are worked on.
  void Select(int64_t member, int64_t lane_lo, int64_t lane_hi) {
    lane_lo_ = lane_lo, lane_hi_ = lane_hi;
    if (member != member_) row_.Select(member);
    member_ = member;
  }

  const uint8_t* segments() const { return row_.flags(); }

  PairwiseFold Fold() const { return {*kernel_, row_.uniforms(), fold_, StateBytes(*shape_, plan_->strip), Lanes()}; }

  // Writes the result of a segment; the identity's if there is no state.
  void Finish(int64_t segment, const void* state) {
    PointOuts(segment);
    FinishTo(*shape_, *kernel_, row_.uniforms(), state, outs_, Lanes());
  }

  // Does the part between two cuts. With `head`, the first segment that ends here is not finished: it may have begun before.
  template <class Walk>
  TaskBorders Run(Walk& walk, const Cut& from, const Cut& to, bool head, char* head_state, char* open_state) {
    TaskBorders borders;
    next_ = from.segment + (head ? 1 : 0);
    walk.Start(from, to);
    int64_t progress = 0;
    for (int64_t lo = from.element, hi = 0; lo < to.element; lo = hi) {
      // A long run but for its last element, so that its end is found in the chunk that follows.
      hi = walk.RunEnd(lo, plan_->chunk) - 1;
      if (hi - lo >= plan_->chunk) {
        progress = Reduce(lo, hi, progress);
        continue;
      }
      hi = std::min(to.element, lo + plan_->chunk);
      PrefetchBehind(*shape_, row_.arrays(), lo, hi);
      walk.Find(lo, hi, runs_);
      int64_t run = 0, start = lo;
      if (head && runs_.count > 0 && runs_.segments[0] == 0) {
        start = lo + runs_.ends[0];
        Reduce(lo, start, progress);
        std::memcpy(head_state, aggregate_, static_cast<size_t>(StateBytes(*shape_, Lanes())));
        borders.head = true;
        progress = 0;
        run = 1;
      }
      head = head && runs_.count == 0;
      const int64_t count = runs_.count - run;
      if (count == 0 || kernel_->runs == nullptr) {
        progress = FinishOneByOne(from.segment, run, lo, start, hi, progress);
      } else {
        FinishByRuns(from.segment, run, lo, start, progress);
        hi = lo + runs_.last;  // the next chunk starts where a run does
      }
      if (lo + runs_.last == hi) progress = 0;
    }
    FillIdentity(to.segment);
    borders.open = progress != 0 && open_state != nullptr;
    if (borders.open) std::memcpy(open_state, aggregate_, static_cast<size_t>(StateBytes(*shape_, Lanes())));
    return borders;
  }

 private:
  static int64_t FoldStates(const SegmentsPlan& plan) { return plan.tasks > 1 ? FoldLevels(plan.tasks + 1) : 0; }

  // Of a leaf's results in a chunk, and its identity behind them.
  static int64_t LeafBytes(bool across, const SegmentsPlan& plan, int64_t size) {
    return RoundUp(across ? 0 : plan.chunk * size, 64) + RoundUp(size, 64);
  }

  int64_t Lanes() const { return lane_hi_ - lane_lo_; }

  OrderedRange Range(int64_t lo, int64_t hi) const {
    OrderedRange range{.lo = lo, .hi = hi, .n = call_->n, .lanes = call_->lanes};
    range.lane_lo = lane_lo_, range.lane_hi = lane_hi_;
    return range;
  }

  void PointOuts(int64_t segment) {
    for (size_t leaf = 0; leaf < outs_.size(); ++leaf) {
      outs_[leaf] = row_.outs()[leaf] + (segment * call_->lanes + lane_lo_) * shape_->leaf_bytes[leaf];
    }
  }

  int64_t Reduce(int64_t lo, int64_t hi, int64_t progress) {
    if (lo >= hi) return progress;
    const OrderedRange range = Range(lo, hi);
    return kernel_->reduce(row_.arrays(), row_.uniforms(), nullptr, &range, aggregate_, progress);
  }

  // The chunk from `base`, of which [lo, hi) and the runs from `run` on are left: each run by itself, then what stays open.
  int64_t FinishOneByOne(int64_t segment, int64_t run, int64_t base, int64_t lo, int64_t hi, int64_t progress) {
    for (; run < runs_.count; ++run) {
      FinishRun(segment, run, base, lo, progress);
      lo = base + runs_.ends[run];
      progress = 0;
    }
    return Reduce(lo, hi, progress);
  }

  void FinishRun(int64_t segment, int64_t run, int64_t base, int64_t lo, int64_t progress) {
    const int64_t at = segment + runs_.segments[run];
    Reduce(lo, base + runs_.ends[run], progress);
    FillIdentity(at);
    Finish(at, aggregate_);
    next_ = at + 1;
  }

  // The chunk's runs by one call.
  void FinishByRuns(int64_t segment, int64_t run, int64_t base, int64_t lo, int64_t progress) {
    if (progress != 0) {  // the first one began in another chunk
      FinishRun(segment, run, base, lo, progress);
      lo = base + runs_.ends[run++];
    }
    const int64_t count = runs_.count - run;
    if (count == 0) return;
    const int64_t first = runs_.segments[run], end = runs_.segments[runs_.count - 1] + 1;
    const bool dense = end - first == count;
    FillIdentity(segment + (dense ? first : end));
    next_ = segment + end;
    if (dense) {
      PointOuts(segment + first);
    } else {
      outs_.assign(buffers_.begin(), buffers_.end());
    }
    kernel_->runs(row_.arrays(), row_.uniforms(), outs_.data(), runs_.ends + run, base, lo, count);
    if (!dense) Scatter(segment, run);
  }

  // Copies results from the buffers to where they belong.
  void Scatter(int64_t segment, int64_t run) {
    const int64_t count = runs_.count - run;
    const int32_t* segments = runs_.segments + run;
    for (size_t leaf = 0; leaf < outs_.size(); ++leaf) {
      WithBytes(shape_->leaf_bytes[leaf], [&](auto size) {
        const char* from = buffers_[leaf];
        char* to = row_.outs()[leaf] + segment * static_cast<int64_t>(size);
        for (int64_t k = 0; k < count; ++k) {
          std::memcpy(to + static_cast<size_t>(segments[k]) * size, from + static_cast<size_t>(k) * size, size);
        }
      });
    }
  }

  // The results of segments [next_, end), which are empty.
  void FillIdentity(int64_t end) {
    if (next_ >= end) return;
    outs_.assign(identity_.begin(), identity_.end());
    FinishTo(*shape_, *kernel_, row_.uniforms(), nullptr, outs_, 1);
    const bool whole = Lanes() == call_->lanes;  // then the segments' results lie end to end
    const int64_t step = whole ? end - next_ : 1;
    for (; next_ < end; next_ += step) {
      PointOuts(next_);
      for (size_t leaf = 0; leaf < outs_.size(); ++leaf) {
        Repeat(identity_[leaf], shape_->leaf_bytes[leaf], step * Lanes(), static_cast<char*>(outs_[leaf]));
      }
    }
  }

  // Copies an element `count` times, ever larger parts at once.
  static void Repeat(const char* element, int64_t bytes, int64_t count, char* to) {
    std::memcpy(to, element, static_cast<size_t>(bytes));
    for (int64_t done = bytes, part = 0; done < count * bytes; done += part) {
      part = std::min({done, count * bytes - done, std::max<int64_t>(1, kScanBuffer / bytes) * bytes});
      std::memcpy(to + done, to, static_cast<size_t>(part));
    }
  }

  const OrderedShape* shape_;
  const OrderedCall* call_;
  const OrderedKernel* kernel_;
  const SegmentsPlan* plan_;
  OrderedRow row_;
  Arena<256> arena_;
  List<void*> outs_;
  List<char*> buffers_, identity_;  // by leaf: a chunk's results; the identity's results
  char* aggregate_ = nullptr;
  char* fold_ = nullptr;
  RunList runs_;
  int64_t member_ = -1, lane_lo_ = 0, lane_hi_ = 1;
  int64_t next_ = 0;  // the first segment whose result is not written yet
};

}  // namespace internal

// Bytes of workspace that a plan needs: all workers, then the two states of each task's borders where a member has several tasks.
inline int64_t WorkspaceBytes(const SegmentsProblem& p, const SegmentsPlan& plan) {
  if (p.segments * p.members * p.lanes == 0) return 0;
  const int64_t pieces = p.members * plan.tasks * CeilDiv(p.lanes, plan.strip), state = StateBytes(p.slots, plan.strip);
  return plan.threads * internal::SegmentsWorker::Bytes(p, plan) + (plan.tasks > 1 ? 2 * pieces * state : 0);
}

namespace internal {

template <class Walk, class Pool>
void RunSegments(Pool& pool, const OrderedShape& shape, const OrderedCall& call, const OrderedKernel& kernel,
                 const SegmentsPlan& plan, const SegmentsProblem& problem) {
  const int64_t segments = problem.segments;
  const int64_t members = call.rows(), tasks = plan.tasks, strips = CeilDiv(call.lanes, plan.strip);
  const int64_t pieces = members * tasks * strips, state = StateBytes(shape, plan.strip);
  const int64_t bytes = SegmentsWorker::Bytes(problem, plan);
  Workspace workspace(static_cast<size_t>(WorkspaceBytes(problem, plan)));
  char* states = workspace.data() + plan.threads * bytes;
  std::vector<Cut> cuts(tasks > 1 ? static_cast<size_t>(members * (tasks + 1)) : 0);
  std::vector<TaskBorders> borders(tasks > 1 ? static_cast<size_t>(pieces) : 0);
  auto workers = WorkersOf<SegmentsWorker>(plan.threads, shape, call, kernel, plan);
  for (int w = 0; w < plan.threads; ++w) workers[static_cast<size_t>(w)].SetMemory(workspace.data() + w * bytes);

  if (tasks > 1) {
    constexpr int64_t kCutsPerTask = 16;
    const auto all = static_cast<int64_t>(cuts.size());
    WorkAssist(pool, CeilDiv(all, kCutsPerTask), plan.threads, [&](int64_t task, int worker) {
      SegmentsWorker& me = workers[static_cast<size_t>(worker)];
      for (int64_t c = task * kCutsPerTask; c < std::min(all, (task + 1) * kCutsPerTask); ++c) {
        me.Select(c / (tasks + 1), 0, 1);
        cuts[static_cast<size_t>(c)] = Walk(me.segments(), call.n, segments).At(c % (tasks + 1) * plan.items);
      }
    });
    for (int64_t c = 1; c < all; ++c) {  // whatever the operand holds, tasks do not overlap
      if (c % (tasks + 1) == 0) continue;
      Cut& cut = cuts[static_cast<size_t>(c)];
      const Cut& before = cuts[static_cast<size_t>(c - 1)];
      cut = {std::max(cut.segment, before.segment), std::max(cut.element, before.element)};
    }
  }

  // Pieces are numbered as they lie in memory: strip within task within member.
  WorkAssist(pool, CeilDiv(pieces, plan.grain), plan.threads, [&](int64_t group, int worker) {
    SegmentsWorker& me = workers[static_cast<size_t>(worker)];
    for (int64_t piece = group * plan.grain; piece < std::min(pieces, (group + 1) * plan.grain); ++piece) {
      const int64_t strip = piece % strips, task = piece / strips % tasks, member = piece / strips / tasks;
      me.Select(member, strip * plan.strip, std::min(call.lanes, (strip + 1) * plan.strip));
      Walk walk(me.segments(), call.n, segments);
      if (tasks == 1) {
        me.Run(walk, walk.At(0), walk.At(call.n + segments), false, nullptr, nullptr);
        continue;
      }
      const Cut* cut = &cuts[static_cast<size_t>(member * (tasks + 1) + task)];
      char* own = states + 2 * piece * state;
      borders[static_cast<size_t>(piece)] =
          me.Run(walk, cut[0], cut[1], task > 0 && cut[1].segment > cut[0].segment, own, own + state);
    }
  });
  if (tasks == 1) return;

  WorkAssist(pool, members * strips, plan.threads, [&](int64_t task, int worker) {
    SegmentsWorker& me = workers[static_cast<size_t>(worker)];
    const int64_t member = task / strips, strip = task % strips;
    const int64_t lane_lo = strip * plan.strip, lane_hi = std::min(call.lanes, lane_lo + plan.strip);
    me.Select(member, lane_lo, lane_hi);
    PairwiseFold fold = me.Fold();
    auto push = [&](const char* from) {
      std::memcpy(fold.Next(), from, static_cast<size_t>(StateBytes(shape, lane_hi - lane_lo)));
      fold.Push();
    };
    for (int64_t t = 0; t < tasks; ++t) {
      const Cut* cut = &cuts[static_cast<size_t>(member * (tasks + 1) + t)];
      const int64_t piece = (member * tasks + t) * strips + strip;
      const TaskBorders& border = borders[static_cast<size_t>(piece)];
      const char* own = states + 2 * piece * state;
      if (t > 0 && cut[1].segment > cut[0].segment) {
        if (border.head) push(own);
        me.Finish(cut[0].segment, fold.Total());
        fold.Clear();
      }
      if (border.open) push(own + state);
    }
  });
}

}  // namespace internal

template <class Pool>
void RunSegments(Pool& pool, const OrderedShape& shape, const OrderedCall& call, const Segments& segments,
                 const OrderedKernel& kernel, const SegmentsPlan& plan) {
  if (segments.count == 0 || call.rows() == 0 || call.lanes == 0) return;
  ExpectLargeResults(shape, call, call.rows() * segments.count * call.lanes);
  using internal::IdWalk, internal::OffsetWalk;
  const SegmentsProblem problem = DescribeSegments(shape, call, segments);
  auto run = [&](auto index) {
    using Index = decltype(index);
    if (segments.ids) return internal::RunSegments<IdWalk<Index>>(pool, shape, call, kernel, plan, problem);
    internal::RunSegments<OffsetWalk<Index>>(pool, shape, call, kernel, plan, problem);
  };
  segments.wide ? run(int64_t{}) : run(int32_t{});
}

}  // namespace jaxprims
