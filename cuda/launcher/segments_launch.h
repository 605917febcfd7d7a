// Launching segmented reductions (segments.cuh). A plan: the algorithm (segments_tiles.h), then how many blocks each member of
// the batch (across: and strip) gets, 0 to choose.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "launch.h"
#include "numbers.h"
#include "ordered_words.h"
#include "reduce_choice.h"
#include "reduce_launch.h"
#include "segments_tiles.h"
#include "shapes.h"

namespace jaxprims::cuda {

struct SegmentsProblem {
  int64_t n = 0, segments = 0, lanes = 1, members = 1;
  bool ids = false;
};

struct SegmentsPlan {
  const char* kernel = "SegmentsShort";
  int algorithm = jp::kSegmentsShort;
  int threads = 256;
  int64_t shared = 0, parts = 1;
  int64_t width = 1, slices = 1, strips = 1;  // across
};

namespace reduction {

inline constexpr int64_t kMostParts = 4096;  // of a member whose size is not known yet: more than any device has resident blocks
inline constexpr int64_t kLeastShare = 256;  // elements and ends of a block that plans may ask for

// Parts of a member at most, whatever the plan.
inline int64_t MostParts(const CudaOrderedShape& shape, int64_t n, int64_t segments, int64_t lanes) {
  const int bytes = static_cast<int>(shape.state_bytes);
  const int64_t most = shape.across ? std::max<int64_t>(1, kMostPartials / std::max<int64_t>(1, lanes)) : kMostParts;
  if (n < 0 || segments < 0) return most;
  if (shape.across) return std::min(most, CeilDiv(n + segments, 2 * jp::ColumnDepth(bytes)) + 1);
  return CeilDiv(n + segments, std::min<int64_t>(kLeastShare, jp::SegmentsTile(bytes))) + 1;
}

// occupancy(kernel, threads, shared): blocks of it that a multiprocessor holds.
template <class F>
SegmentsPlan PlanSegments(const CudaOrderedShape& shape, const SegmentsProblem& p, int64_t room, int multiprocessors,
                          std::span<const int64_t> plan, F occupancy) {
  const int bytes = static_cast<int>(shape.state_bytes);
  const int forced = static_cast<int>(plan.empty() ? 0 : plan[0]);
  const int64_t number = plan.size() > 1 ? plan[1] : 0, total = p.n + (p.ids ? 0 : p.segments);
  SegmentsPlan chosen;
  int64_t worth = 1;  // elements and ends that are worth a block
  if (shape.across) {
    chosen.kernel = "SegmentsAcross";
    chosen.threads = jp::AcrossThreads(bytes);
    chosen.width = StripWidth(p.lanes, chosen.threads / 2);
    chosen.strips = CeilDiv(p.lanes, chosen.width);
    chosen.slices = std::max<int64_t>(1, std::min(chosen.threads / chosen.width, total / jp::ColumnDepth(bytes)));
    chosen.shared = int64_t{chosen.threads} * jp::PieceBytes(bytes);
    worth = 2 * jp::ColumnDepth(bytes) * chosen.slices;
  } else if (forced == jp::kSegmentsLong ||
             (forced != jp::kSegmentsShort && p.n / std::max<int64_t>(1, p.segments) >= jp::LongSegment(p.ids))) {
    chosen.kernel = "SegmentsLong";
    chosen.algorithm = jp::kSegmentsLong;
    chosen.threads = jp::kReduceThreads;
    worth = int64_t{jp::kReduceWarps} * jp::WarpTile(InBytes(shape), bytes);
  } else {
    chosen.threads = jp::SegmentsThreads(bytes);
    chosen.shared = jp::ShortSharedBytes(bytes);
    worth = jp::SegmentsTile(bytes);
  }
  const int64_t capacity = std::max(1, multiprocessors * occupancy(chosen.kernel, chosen.threads, chosen.shared));
  const int64_t most = number > 0 ? total : CeilDiv(total, worth);
  chosen.parts = number > 0 ? number : BlocksOfRow(p.members * chosen.strips, capacity);
  room = std::min(room, MostParts(shape, p.n, p.segments, p.lanes));
  chosen.parts = std::clamp<int64_t>(chosen.parts, 1, std::max<int64_t>(1, std::min(most, room)));
  return chosen;
}

}  // namespace reduction

inline Workspace SegmentsWorkspace(const CudaOrderedShape& shape, int64_t n, int64_t lanes, int64_t segments,
                                   int64_t /*members*/) {
  const int64_t piece = jp::PieceBytes(static_cast<int>(shape.state_bytes));
  if (shape.across && lanes < 0) return {.base = piece * reduction::kMostPartials};
  return {.base = piece * std::max<int64_t>(1, lanes) * reduction::MostParts(shape, n, segments, lanes)};
}

inline void LaunchSegments(Launcher& launcher, const CudaOrderedShape& shape, const OrderedCall& call, const Segments& segments,
                           char* workspace, int64_t workspace_bytes, std::span<const int64_t> plan) {
  const int64_t members = call.rows(), lanes = call.lanes;
  if (members == 0 || lanes == 0 || segments.count == 0) return;
  const int bytes = static_cast<int>(shape.state_bytes), multiprocessors = launcher.device().multiprocessors;
  const int64_t piece = jp::PieceBytes(bytes);
  const SegmentsPlan chosen = reduction::PlanSegments(
      shape, {call.n, segments.count, lanes, members, segments.ids}, workspace_bytes / (piece * members * lanes), multiprocessors,
      plan, [&](const char* kernel, int threads, int64_t shared) { return launcher.Occupancy(kernel, threads, shared); });
  auto launch = [&](const char* kernel, const Grid& grid, int64_t parts, int64_t width, int64_t slices) {
    Words words;
    PutCall(words, shape, call);
    words.Int(segments.count);
    words.Int(segments.ids ? 1 : 0);
    words.Int(segments.wide ? 1 : 0);
    words.Int(parts);
    words.Pointer(workspace);
    words.Int(width);
    words.Int(slices);
    words.Int(chosen.strips);
    Grid possible = grid;
    possible.blocks = std::min(grid.blocks, reduction::kMostBlocks);
    launcher.Launch(kernel, possible, words);
  };
  if (segments.ids && shape.identity) {
    const int64_t worth = CeilDiv(segments.count * lanes, 8 * jp::kReduceThreads);
    const int64_t parts = std::clamp<int64_t>(worth, 1, std::max<int64_t>(1, 16 * int64_t{multiprocessors} / members));
    launch("SegmentsIdentity", {members * parts, jp::kReduceThreads}, parts, 1, 1);
  }
  if (segments.ids && call.n == 0) return;
  launch(chosen.kernel, {members * chosen.parts * chosen.strips, chosen.threads, chosen.shared}, chosen.parts, chosen.width,
         chosen.slices);
  if (chosen.parts == 1) return;
  const int threads = jp::SegmentsThreads(bytes);
  launch("SegmentsBorders", {members * chosen.strips, threads, shape.across ? threads * piece : 0}, chosen.parts, chosen.width,
         threads / chosen.width);
}

// The plan's numbers, by name.
inline std::vector<std::pair<std::string, int64_t>> ExplainSegments(const CudaOrderedShape& shape, const DeviceInfo& device,
                                                                    int64_t n, int64_t lanes, int64_t members, bool ids,
                                                                    int64_t num_segments, std::span<const int64_t> plan) {
  const SegmentsPlan chosen = reduction::PlanSegments(
      shape, {n, num_segments, lanes, std::max<int64_t>(1, members), ids}, reduction::MostParts(shape, n, num_segments, lanes),
      device.multiprocessors, plan, [&](const char*, int threads, int64_t shared) {
        const int64_t fit = shared == 0 ? device.blocks_per_multiprocessor : device.shared_per_multiprocessor / (shared + 1024);
        return static_cast<int>(std::min<int64_t>(fit, std::max(1, device.threads_per_multiprocessor / threads / 2)));
      });
  if (shape.across) {
    return {{"threads", chosen.threads},
            {"lanes of a strip", chosen.width},
            {"slices", chosen.slices},
            {"strips", chosen.strips},
            {"parts", chosen.parts}};
  }
  return {{"algorithm", chosen.algorithm},
          {"threads", chosen.threads},
          {"elements of a tile", chosen.algorithm == jp::kSegmentsShort
                                     ? jp::SegmentsTile(static_cast<int>(shape.state_bytes))
                                     : jp::WarpTile(reduction::InBytes(shape), static_cast<int>(shape.state_bytes))},
          {"blocks of a member", chosen.parts}};
}

}  // namespace jaxprims::cuda
