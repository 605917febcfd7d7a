// The histogram driver: carries a plan out with a kernel's functions (made by jaxprims/targets/cpu/histogram/kernel.py, which
// documents them).
//
// Same machine, same number of threads, same bits on every run: which elements go into which subhistogram depends on the plan
// alone, whoever takes a task, and subhistograms are combined in order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "hist_call.h"
#include "hist_plan.h"
#include "numbers.h"
#include "operand.h"
#include "work_assist.h"
#include "workspace.h"

namespace jaxprims {

// Functions of one variant of one spec.
struct HistKernel {
  using Update = void (*)(const void* const* arrays, const void* const* uniforms, void* const* tables, const int64_t* bins,
                          int64_t lo, int64_t hi, int64_t bin_lo, int64_t bin_hi);
  using Fill = void (*)(void* const* tables, const void* const* uniforms, int64_t lo, int64_t hi);
  using Combine = void (*)(void* const* outs, const void* const* dests, const void* const* uniforms, const void* table,
                           int64_t parts, int64_t stride, int64_t lo, int64_t hi);
  Update update = nullptr;
  std::vector<Fill> fill;        // by histogram
  std::vector<Combine> combine;  // by histogram
};

inline HistProblem DescribeHist(const HistShape& shape, const HistCall& call) {
  HistProblem p;
  p.elements = call.elements;
  p.batch = Product(call.batch);
  p.bin_bytes = p.updates = 0;
  p.work = shape.work;
  p.map = shape.map && call.bins[0] == call.elements;
  p.chooses = shape.chooses;
  for (size_t g = 0; g < shape.bins.size(); ++g) {
    const auto& bins = shape.bins[g];
    p.bins = std::max(p.bins, call.bins[g]);
    p.bin_bytes += bins.entry_bytes;
    p.updates += bins.updates;
    p.slots = std::max(p.slots, bins.slots);
    p.lanes = std::max(p.lanes, bins.lanes);
    p.in_place = p.in_place && bins.in_place;
    p.must_in_place = p.must_in_place || !bins.identity;
  }
  return p;
}

namespace internal {

// Where part k of `parts` equal ones starts.
inline int64_t Part(int64_t size, int64_t parts, int64_t k) {
  if (parts == 1) return size * k;
  return static_cast<int64_t>(static_cast<__int128>(size) * k / parts);
}

// Pointers of one member of the batch, and of the subhistograms that a task works on.
class HistMember {
 public:
  HistMember(const HistShape& shape, const HistCall& call, const HistKernel& kernel, bool soa)
      : shape_(shape),
        call_(call),
        kernel_(kernel),
        soa_(soa),
        index_(call.batch),
        arrays_(call.arrays.size(), arena_.get()),
        uniforms_(call.uniforms.size(), arena_.get()),
        dests_(call.dests.size(), arena_.get()),
        outs_(call.outs.size(), arena_.get()),
        tables_(soa ? call.outs.size() : shape.bins.size(), arena_.get()) {}

  void Select(int64_t member) {
    index_.Select(member);
    Place();
  }

  void Next() {
    if (!index_.Next()) return Place();
    ForEachOperand([&](const Operand& operand, char*& p) { p += index_.Stride(operand); });
  }

  // The subhistogram that starts at `table`: one table for each histogram, in a row.
  void SelectTable(char* table, int64_t copies) {
    for (size_t g = 0; g < shape_.bins.size(); ++g) {
      tables_[g] = table;
      table += TableBytes(shape_, call_, g, copies);
    }
  }

  // The first leaf of the selected member's result.
  char* out() const { return outs_[0]; }

  static int64_t TableBytes(const HistShape& shape, const HistCall& call, size_t g, int64_t copies) {
    return ((call.bins[g] + 1) * shape.bins[g].entry_bytes * copies + 127) / 64 * 64;
  }

  void Fill(int64_t lo, int64_t hi) {
    size_t leaf = 0;
    for (size_t g = 0; g < shape_.bins.size(); ++g) {
      const auto& bins = shape_.bins[g];
      // The spare bin, where dropped elements go, starts from the identity too: the operator never sees arbitrary bits. It
      // belongs to the range that has the last bin.
      const bool spare = !soa_ && hi >= call_.bins[g] && (lo < call_.bins[g] || lo == 0);
      const int64_t top = std::min(hi, call_.bins[g]) + (spare ? 1 : 0);
      if (lo < top) {
        if (soa_ && bins.dest) {
          for (size_t k = 0; k < bins.leaf_bytes.size(); ++k) {
            const int64_t size = bins.leaf_bytes[k];
            char* out = outs_[leaf + k] + lo * size;
            const char* dest = dests_[leaf + k] + lo * size;
            if (out != dest) std::memcpy(out, dest, static_cast<size_t>((top - lo) * size));
          }
        } else {
          kernel_.fill[g](reinterpret_cast<void* const*>(tables_.data() + (soa_ ? leaf : g)),
                          reinterpret_cast<const void* const*>(uniforms_.data()), lo, top);
        }
      }
      leaf += bins.leaf_bytes.size();
    }
  }

  void Update(int64_t lo, int64_t hi, int64_t bin_lo, int64_t bin_hi) {
    if (lo >= hi) return;
    kernel_.update(reinterpret_cast<const void* const*>(arrays_.data()), reinterpret_cast<const void* const*>(uniforms_.data()),
                   reinterpret_cast<void* const*>(tables_.data()), call_.bins.data(), lo, hi, bin_lo, bin_hi);
  }

  // The first element whose (sorted) index is not below `bin`.
  int64_t LowerBound(int64_t bin) const {
    const char* data = arrays_[static_cast<size_t>(call_.sorted_array)];
    return FirstNot(0, call_.elements, [&](int64_t i) { return SortedIndex(data, i) < bin; });
  }

  // Where range r of `ranges` starts when each is to have as many elements: an index, between 0 and the number of bins.
  int64_t SortedBoundary(int64_t r, int64_t ranges, int64_t bins) const {
    if (r == 0 || r == ranges || call_.elements == 0) return r == 0 ? 0 : bins;
    const char* data = arrays_[static_cast<size_t>(call_.sorted_array)];
    return std::clamp<int64_t>(SortedIndex(data, Part(call_.elements, ranges, r)), 0, bins);
  }

  void Combine(int64_t parts, int64_t stride, int64_t lo, int64_t hi) {
    size_t leaf = 0;
    for (size_t g = 0; g < shape_.bins.size(); ++g) {
      const int64_t top = std::min(hi, call_.bins[g]);
      if (lo < top) {
        kernel_.combine[g](reinterpret_cast<void* const*>(outs_.data() + leaf),
                           reinterpret_cast<const void* const*>(dests_.data() + leaf),
                           reinterpret_cast<const void* const*>(uniforms_.data()), tables_[g], parts, stride, lo, top);
      }
      leaf += shape_.bins[g].leaf_bytes.size();
    }
  }

 private:
  void Place() {
    ForEachOperand([&](const Operand& operand, char*& p) { p = index_.Place(operand); });
  }

  template <class F>
  void ForEachOperand(F f) {
    auto each = [&](const List<Operand>& operands, List<char*>& pointers) {
      for (size_t i = 0; i < operands.size(); ++i) f(operands[i], pointers[i]);
    };
    each(call_.arrays, arrays_);
    each(call_.uniforms, uniforms_);
    each(call_.dests, dests_);
    each(call_.outs, outs_);
    if (soa_) tables_ = outs_;
  }

  int64_t SortedIndex(const char* data, int64_t i) const {
    if (call_.sorted_bytes == 8) return reinterpret_cast<const int64_t*>(data)[i];
    return reinterpret_cast<const int32_t*>(data)[i];
  }

  const HistShape& shape_;
  const HistCall& call_;
  const HistKernel& kernel_;
  const bool soa_;
  BatchIndex index_;
  Arena<256> arena_;
  List<char*> arrays_, uniforms_, dests_, outs_, tables_;
};

}  // namespace internal

// With sorted indices the ranges (of a plan that has them) are cut so that each has as many elements, and each reads only its
// own: the result is updated where it lies, in order, by all threads, and every element is read once. Indices that are not sorted
// as promised give a wrong result, never an access out of bounds.
template <class Pool>
void RunHist(Pool& pool, const HistShape& shape, const HistCall& call, const HistKernel& kernel, const HistPlan& plan) {
  const HistProblem problem = DescribeHist(shape, call);
  if (problem.batch == 0 || problem.bins == 0) return;
  const int64_t parts = plan.subhistograms, ranges = plan.ranges, n = call.elements, bins = problem.bins;
  for (size_t g = 0, leaf = 0; g < shape.bins.size(); ++g) {
    for (const int64_t size : shape.bins[g].leaf_bytes) {
      ExpectLarge(call.outs[leaf++].data, static_cast<size_t>(problem.batch * call.bins[g] * size));
    }
  }
  int64_t table_bytes = 0;
  for (size_t g = 0; g < shape.bins.size(); ++g) table_bytes += internal::HistMember::TableBytes(shape, call, g, plan.copies);

  if (plan.soa || (parts == 1 && ranges == 1)) {
    // No subhistogram outlives its task: each worker has one (or none), used for one member of the batch after the other.
    const int64_t units = problem.batch * ranges;
    const int64_t cost = std::max<int64_t>(1, n * problem.updates * problem.lanes + bins);
    const int64_t grain =
        std::clamp<int64_t>(kUpdatesPerThread / cost, 1, std::max<int64_t>(1, units / (int64_t{4} * plan.threads)));
    Workspace workspace(static_cast<size_t>(table_bytes * Tables(plan)));
    // A result that looks like a subhistogram is one, but for the spare bin behind it: that is the next member's first bin, which
    // the same worker fills afterwards. The last member of a task has no such neighbour.
    const auto& only = shape.bins[0];
    const bool in_place = !plan.soa && plan.copies == 1 && shape.bins.size() == 1 && only.in_place && !only.dest &&
                          only.leaf_bytes.size() == 1 && only.leaf_bytes[0] == only.entry_bytes && ranges == 1;
    WorkAssist(pool, CeilDiv(units, grain), plan.threads, [&](int64_t task, int worker) {
      internal::HistMember member(shape, call, kernel, plan.soa);
      member.Select(task * grain / ranges);
      if (!plan.soa) member.SelectTable(workspace.data() + worker * table_bytes, plan.copies);
      for (int64_t unit = task * grain; unit < std::min(units, (task + 1) * grain); ++unit) {
        const int64_t r = ranges == 1 ? 0 : unit % ranges;
        if (unit > task * grain && r == 0) member.Next();
        if (in_place && unit + 1 < std::min(units, (task + 1) * grain)) {
          member.SelectTable(member.out(), 1);
          member.Fill(0, bins);
          member.Update(0, n, 0, bins);
          continue;
        }
        if (in_place) member.SelectTable(workspace.data() + worker * table_bytes, 1);
        int64_t lo = internal::Part(bins, ranges, r), hi = internal::Part(bins, ranges, r + 1), first = 0, last = n;
        if (problem.map) {
          member.Update(lo, hi, lo, hi);
          continue;
        }
        if (call.sorted_array >= 0 && ranges > 1) {
          lo = member.SortedBoundary(r, ranges, bins), hi = std::max(lo, member.SortedBoundary(r + 1, ranges, bins));
          first = member.LowerBound(lo), last = member.LowerBound(hi);
        }
        member.Fill(lo, hi);
        member.Update(first, last, lo, hi);
        if (!plan.soa) member.Combine(1, table_bytes, lo, hi);
      }
    });
    return;
  }

  Workspace workspace(static_cast<size_t>(table_bytes * Tables(plan)));
  for (int64_t b = 0; b < problem.batch; ++b) {
    WorkAssist(pool, parts * ranges, plan.threads, [&](int64_t task, int) {
      const int64_t p = task / ranges, r = task % ranges;
      const int64_t lo = internal::Part(bins, ranges, r), hi = internal::Part(bins, ranges, r + 1);
      internal::HistMember member(shape, call, kernel, false);
      member.Select(b);
      member.SelectTable(workspace.data() + p * table_bytes, plan.copies);
      member.Fill(lo, hi);
      member.Update(internal::Part(n, parts, p), internal::Part(n, parts, p + 1), lo, hi);
    });
    const int64_t blocks =
        std::clamp<int64_t>(bins * problem.lanes * parts * plan.copies / kUpdatesPerThread, 1, int64_t{8} * plan.threads);
    WorkAssist(pool, blocks, plan.threads, [&](int64_t task, int) {
      internal::HistMember member(shape, call, kernel, false);
      member.Select(b);
      member.SelectTable(workspace.data(), plan.copies);
      member.Combine(parts, table_bytes, internal::Part(bins, blocks, task), internal::Part(bins, blocks, task + 1));
    });
  }
}

}  // namespace jaxprims
