// The driver of segmented reductions: N elements, segments given by offsets (CSR) or by sorted ids.
//
// Elements and ends of segments, merged in their order, are cut into tasks of equal size (Merrill and Garland's merge path): one giant
// segment, millions of tiny ones and millions of empty ones are equally balanced. A task finishes the segments that end in it,
// but for its first one, which may have begun before: of that it leaves the state of its own part (the head), as it leaves the
// state of the segment that is still open at its end. Folding these in order finishes the segments that span tasks.
//
// No input can lead to an access out of bounds: offsets are clamped and made monotone, ids are compared with the task's range of
// segments before anything is written, and every result is written by exactly one task.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "reduce.h"
#include "segment_runs.h"
#include "segments_plan.h"

namespace jaxprims {

// Where the segments are; call.flags is the operand: offsets [*batch, count + 1], or ids [*batch, N].
struct Segments {
  int64_t count = 0;
  bool ids = false;
  bool wide = false;  // 64 bits
};

inline SegmentsProblem Describe(const ScanShape& shape, const ScanCall& call, const Segments& segments) {
  SegmentsProblem p;
  p.n = call.n;
  p.segments = segments.count;
  p.members = call.rows();
  p.lanes = call.lanes;
  p.leaf_bytes = *std::ranges::max_element(shape.leaf_bytes);
  p.slots = static_cast<int64_t>(shape.slot_bytes.size());
  p.across = shape.across;
  return p;
}

namespace internal {

// The states that a task leaves for its neighbours.
struct TaskBorders {
  bool head = false, open = false;  // which of them hold something
};

// What a worker has, and how it does a task.
class SegmentsWorker {
 public:
  SegmentsWorker(const ScanShape& shape, const ScanCall& call, const ScanKernel& kernel, const SegmentsPlan& plan)
      : shape_(&shape), call_(&call), kernel_(&kernel), plan_(&plan), worker_(shape, call), buffers_(shape.leaf_bytes.size()) {}

  // Bytes of memory, aligned to 64, that it wants.
  static int64_t Bytes(const ScanShape& shape, const SegmentsPlan& plan) {
    int64_t bytes = shape.StateBytes(plan.strip) + RunList::Bytes(plan.chunk);
    for (const int64_t size : shape.leaf_bytes) {
      bytes += Parts(plan.strip * size, 64) * 64;
      if (!shape.across) bytes += Parts(plan.chunk * size, 64) * 64;
    }
    return bytes;
  }

  void SetMemory(char* memory) {
    aggregate_ = memory;
    memory += shape_->StateBytes(plan_->strip);
    runs_ = RunList(memory, plan_->chunk);
    memory += RunList::Bytes(plan_->chunk);
    for (size_t leaf = 0; leaf < buffers_.size(); ++leaf) {
      buffers_[leaf].identity = memory;
      memory += Parts(plan_->strip * shape_->leaf_bytes[leaf], 64) * 64;
      buffers_[leaf].results = memory;
      if (!shape_->across) memory += Parts(plan_->chunk * shape_->leaf_bytes[leaf], 64) * 64;
    }
    made_for_ = -1;
  }

  void Select(int64_t member, int64_t lane_lo, int64_t lane_hi) {
    lane_lo_ = lane_lo, lane_hi_ = lane_hi;
    worker_.row.Select(member);
  }

  const uint8_t* segments() const { return worker_.row.flags(); }
  ReduceWorker& worker() { return worker_; }

  // Does the part between two cuts. With `head`, the first segment that ends here is not finished: it may have begun before.
  template <class Walk>
  TaskBorders Run(Walk walk, const Cut& from, const Cut& to, bool head, char* head_state, char* open_state) {
    TaskBorders borders;
    next_ = from.segment + (head ? 1 : 0);
    walk.Start(from, to);
    int64_t progress = 0;
    for (int64_t lo = from.element; lo < to.element;) {
      const int64_t far = walk.RunEnd(lo, plan_->chunk) - 1;  // leaves an element, so that the run's end is found below
      if (far - lo >= plan_->chunk) {
        progress = Reduce(lo, far, progress);
        lo = far;
      }
      const int64_t hi = std::min(to.element, lo + plan_->chunk);
      walk.Find(lo, hi, runs_);
      int64_t run = 0, start = lo;
      if (head && runs_.count > 0) {
        head = false;
        if (runs_.Segment(0) == 0) {
          start = lo + runs_.End(0);
          Reduce(lo, start, progress);
          borders.head = true;
          std::memcpy(head_state, aggregate_, static_cast<size_t>(shape_->StateBytes(Lanes())));
          progress = 0, run = 1;
        }
      }
      const int64_t count = runs_.count - run, ended = runs_.count == 0 ? start : lo + runs_.last;
      if (count > 0 && kernel_->scan != nullptr && (ended - start) / count < plan_->long_run) {
        progress = FinishByScan(lo, start, hi, run, from.segment, progress);
      } else {
        progress = FinishOneByOne(lo, start, hi, run, from.segment, progress);
      }
      if (ended == hi) progress = 0;
      lo = hi;
    }
    FillIdentity(to.segment);
    borders.open = progress != 0;
    if (borders.open) std::memcpy(open_state, aggregate_, static_cast<size_t>(shape_->StateBytes(Lanes())));
    return borders;
  }

 private:
  int64_t Lanes() const { return lane_hi_ - lane_lo_; }

  ScanRange Range(int64_t lo, int64_t hi) const {
    ScanRange range{.lo = lo, .hi = hi, .n = call_->n, .lanes = call_->lanes};
    range.lane_lo = lane_lo_, range.lane_hi = lane_hi_;
    return range;
  }

  int64_t Reduce(int64_t lo, int64_t hi, int64_t progress) {
    if (lo >= hi) return progress;
    const ScanRange range = Range(lo, hi);
    return kernel_->reduce(worker_.row.arrays(), worker_.row.uniforms(), nullptr, &range, aggregate_, progress);
  }

  // Each of the chunk's runs by itself, then what is left open.
  int64_t FinishOneByOne(int64_t base, int64_t lo, int64_t hi, int64_t run, int64_t segment, int64_t progress) {
    for (; run < runs_.count; ++run) {
      ...
    }
  }
};

}  // namespace internal
}  // namespace jaxprims
