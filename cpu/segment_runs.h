// Where segments lie, read from offsets or from sorted ids: cuts of the whole into equal parts, and the runs of elements of one
// segment that end within a chunk. Neither believes what it reads.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "numbers.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace jaxprims::internal {

// A place in the merged order of elements and ends of segments: as many of each lie before it.
struct Cut {
  int64_t segment = 0, element = 0;
};

// The runs that end in a chunk.
struct RunList {
  static constexpr int64_t kSpare = 64;  // elements behind each list that may be written, too

  RunList() = default;
  RunList(char* memory, int64_t chunk)
      : segments(reinterpret_cast<int32_t*>(memory)),
        ends(segments + chunk + kSpare),
        flags(reinterpret_cast<uint8_t*>(ends + chunk + kSpare)) {}
  static int64_t Bytes(int64_t chunk) { return RoundUp(9 * (chunk + kSpare), 64); }

  int64_t count = 0;
  int64_t last = 0;             // the last end in the chunk, of whatever run, or 0
  int32_t* segments = nullptr;  // by run, increasing: its segment, counted from the task's first one
  int32_t* ends = nullptr;      // by run: its end, counted from the chunk's start
  uint8_t* flags = nullptr;     // by element: does a run start here that did not start the chunk? Where ids are compared
};

// A row's segments, and the way through those of one task. Segment s has the elements [offsets[s], offsets[s + 1]).
template <class Index>
class OffsetWalk {
 public:
  OffsetWalk(const uint8_t* operand, int64_t n, int64_t segments)
      : offsets_(reinterpret_cast<const Index*>(operand)), segments_(segments) {
    first_ = std::clamp<int64_t>(offsets_[0], 0, n);
    last_ = std::clamp<int64_t>(offsets_[segments], first_, n);
  }

  // The place with d elements and ends before it, or the end of all.
  Cut At(int64_t d) const {
    d = std::min(d, last_ - first_ + segments_);
    const int64_t ends = FirstNot(std::max<int64_t>(0, d - (last_ - first_)), std::min(segments_, d),
                                  [&](int64_t s) { return End(s) - first_ + s < d; });
    return {ends, first_ + d - ends};
  }

  void Start(const Cut& from, const Cut& to) { base_ = next_ = from.segment, stop_ = to.segment, hi_ = to.element; }

  // An end of the run at `lo`, where that is far; past the task's end if it ends only there.
  int64_t RunEnd(int64_t lo, int64_t /*chunk*/) const { return next_ < stop_ ? std::clamp(End(next_), lo, hi_) : hi_ + 1; }

  // Lists the runs that end in (lo, hi].
  void Find(int64_t lo, int64_t hi, RunList& runs) {
    int64_t count = 0, before = lo;
#if defined(__x86_64__)
    static const bool wide = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    if (wide) count = FindAvx512(lo, std::min(hi, last_), before, runs);
#endif
    for (; next_ < stop_; ++next_) {
      const int64_t end = std::max(before, std::min<int64_t>(offsets_[next_ + 1], last_));
      if (end > hi) break;
      runs.ends[count] = static_cast<int32_t>(end - lo);
      runs.segments[count] = static_cast<int32_t>(next_ - base_);
      count += end > before;  // an empty segment has no run
      before = end;
    }
    runs.count = count;
    runs.last = before - lo;
  }

 private:
  int64_t End(int64_t s) const { return std::clamp<int64_t>(offsets_[s + 1], first_, last_); }

#if defined(__x86_64__)
  // The same, sixteen segments at a time, up to where an end is not in order or beyond `hi`.
  [[gnu::target("avx512f,avx512bw,avx512vl,popcnt")]] int64_t FindAvx512(int64_t lo, int64_t hi, int64_t& before, RunList& runs) {
    int32_t *to = runs.ends, *segments_of = runs.segments;
    int64_t count = 0;
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (; stop_ - next_ >= 16; next_ += 16) {
      const Index* offsets = offsets_ + next_;
      __mmask16 bad, some;
      __m512i ends;
      if constexpr (sizeof(Index) == 4) {
        const __m512i start = _mm512_loadu_si512(offsets), end = _mm512_loadu_si512(offsets + 1);
        const __m512i most = _mm512_set1_epi32(static_cast<int32_t>(std::min<int64_t>(hi, INT32_MAX)));
        const __m512i least = _mm512_set1_epi32(static_cast<int32_t>(std::min<int64_t>(before, INT32_MAX)));
        bad = static_cast<__mmask16>(_mm512_cmplt_epi32_mask(end, start) | _mm512_cmpgt_epi32_mask(end, most));
        some = static_cast<__mmask16>(_mm512_cmpgt_epi32_mask(end, start) & _mm512_cmpgt_epi32_mask(end, least));
        ends = _mm512_sub_epi32(end, _mm512_set1_epi32(static_cast<int32_t>(lo)));
      } else {
        const __m512i most = _mm512_set1_epi64(hi), least = _mm512_set1_epi64(before), from = _mm512_set1_epi64(lo);
        unsigned bits_bad = 0, bits_some = 0;
        __m256i halves[2];
        for (int half = 0; half < 2; ++half) {
          const __m512i start = _mm512_loadu_si512(offsets + 8 * half), end = _mm512_loadu_si512(offsets + 8 * half + 1);
          bits_bad |= static_cast<unsigned>(_mm512_cmplt_epi64_mask(end, start) | _mm512_cmpgt_epi64_mask(end, most)) << 8 * half;
          bits_some |= static_cast<unsigned>(_mm512_cmpgt_epi64_mask(end, start) & _mm512_cmpgt_epi64_mask(end, least))
                       << 8 * half;
          halves[half] = _mm512_maskz_cvtepi64_epi32(0xff, _mm512_sub_epi64(end, from));
        }
        bad = static_cast<__mmask16>(bits_bad), some = static_cast<__mmask16>(bits_some);
        ends = _mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(halves[0]), halves[1], 1);
      }
      if (bad != 0) break;
      const __m512i segments = _mm512_add_epi32(lane, _mm512_set1_epi32(static_cast<int32_t>(next_ - base_)));
      _mm512_storeu_si512(to + count, _mm512_maskz_compress_epi32(some, ends));
      _mm512_storeu_si512(segments_of + count, _mm512_maskz_compress_epi32(some, segments));
      count += std::popcount(static_cast<unsigned>(some));
      before = std::max<int64_t>(before, offsets[16]);
    }
    return count;
  }
#endif

  const Index* offsets_;
  int64_t segments_, first_, last_;
  int64_t base_ = 0, next_ = 0, stop_ = 0, hi_ = 0;
};

// The same of ids [N]; the elements of ids outside [0, segments) are left out.
template <class Index>
class IdWalk {
 public:
  IdWalk(const uint8_t* operand, int64_t n, int64_t segments)
      : ids_(reinterpret_cast<const Index*>(operand)), segments_(segments), last_(n) {
    auto below = [&](int64_t segment) { return FirstNot(0, n, [&](int64_t i) { return int64_t{ids_[i]} < segment; }); };
    if (n > 0 && ids_[0] < 0) first_ = below(0);
    if (n > 0 && int64_t{ids_[n - 1]} >= segments) last_ = std::max(first_, below(segments));
  }

  Cut At(int64_t d) const {
    d = std::min(d, last_ - first_ + segments_);
    const int64_t lo = std::max<int64_t>(0, d - segments_), hi = std::min(last_ - first_, d);
    const int64_t elements =
        FirstNot(lo, hi, [&](int64_t i) { return i + std::clamp<int64_t>(ids_[first_ + i], 0, segments_) < d; });
    return {d - elements, first_ + elements};
  }

  void Start(const Cut& from, const Cut& to) { base_ = next_ = from.segment, stop_ = to.segment, hi_ = to.element; }

  int64_t RunEnd(int64_t lo, int64_t chunk) const {
    if (hi_ - lo <= chunk || ids_[lo + chunk] != ids_[lo]) return lo;
    int64_t step = chunk, same = lo + chunk;
    for (; hi_ - same > step && ids_[same + step] == ids_[lo]; step *= 2) same += step;
    return FirstNot(same + 1, std::min(hi_, same + step), [&](int64_t i) { return ids_[i] == ids_[lo]; });
  }

  void Find(int64_t lo, int64_t hi, RunList& runs) {
    const int64_t size = hi - lo;
    runs.count = ListStarts(ids_ + lo, size, base_, runs);
    runs.last = runs.count == 0 ? 0 : runs.ends[runs.count - 1];
    const int64_t id = ids_[hi - 1];
    if ((hi == last_ || ids_[hi] != id) && id < stop_) {
      runs.ends[runs.count] = static_cast<int32_t>(size);
      runs.segments[runs.count++] = static_cast<int32_t>(std::max(id, base_ - 1) - base_);
      runs.last = size;
    }
    Keep(runs);
  }

 private:
  // Lists the runs that end in a chunk before its end, of whatever id.
  static int64_t ListStarts(const Index* ids, int64_t size, int64_t base, RunList& runs) {
#if defined(__x86_64__)
    static const bool wide = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    if (wide) return ListStartsAvx512(ids, size, base, runs);
#endif
    Compare(ids, size, runs.flags);
    std::memset(runs.flags + size, 0, RunList::kSpare);
    int64_t count = 0;
    for (int64_t word = 0; word < size; word += 64) {
      for (uint64_t starts = Bits(runs.flags + word); starts != 0; starts &= starts - 1, ++count) {
        const int64_t end = word + std::countr_zero(starts);
        runs.ends[count] = static_cast<int32_t>(end);
        int64_t segment;  // ids that are not sorted, as they should be, may be so low that the difference overflows
        if (__builtin_sub_overflow(int64_t{ids[end - 1]}, base, &segment)) segment = kLeast;
        runs.segments[count] = static_cast<int32_t>(std::clamp(segment, kLeast, kMost));
      }
    }
    return count;
  }

#if defined(__x86_64__)
  // The same without a branch for each run.
  [[gnu::target("avx512f,avx512bw,avx512vl,popcnt")]] static int64_t ListStartsAvx512(const Index* ids, int64_t size,
                                                                                      int64_t base, RunList& runs) {
    int32_t *ends = runs.ends, *segments_of = runs.segments;
    int64_t count = 0;
    __m512i at = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (int64_t i = 0; i < size; i += 16, at = _mm512_add_epi32(at, _mm512_set1_epi32(16))) {
      auto lanes = static_cast<__mmask16>(size - i >= 16 ? 0xffff : (1 << (size - i)) - 1);
      if (i == 0) lanes = static_cast<__mmask16>(lanes & 0xfffe);
      __mmask16 starts;
      __m512i segments;  // of the elements before
      if constexpr (sizeof(Index) == 4) {
        const __m512i before = _mm512_maskz_loadu_epi32(lanes, ids + i - 1);
        starts = _mm512_mask_cmpneq_epi32_mask(lanes, before, _mm512_maskz_loadu_epi32(lanes, ids + i));
        segments = _mm512_sub_epi32(before, _mm512_set1_epi32(static_cast<int32_t>(base)));
      } else {
        const auto low = static_cast<__mmask8>(lanes), high = static_cast<__mmask8>(lanes >> 8);
        const __m512i first = _mm512_maskz_loadu_epi64(low, ids + i - 1), second = _mm512_maskz_loadu_epi64(high, ids + i + 7);
        const int starts_low = _mm512_mask_cmpneq_epi64_mask(low, first, _mm512_maskz_loadu_epi64(low, ids + i));
        const int starts_high = _mm512_mask_cmpneq_epi64_mask(high, second, _mm512_maskz_loadu_epi64(high, ids + i + 8));
        starts = static_cast<__mmask16>(starts_low | starts_high << 8);
        const __m512i from = _mm512_set1_epi64(base);
        // Masked forms: the others read registers that the compiler takes for uninitialised.
        const __m256i low_segments = _mm512_maskz_cvtsepi64_epi32(0xff, _mm512_sub_epi64(first, from));
        const __m256i high_segments = _mm512_maskz_cvtsepi64_epi32(0xff, _mm512_sub_epi64(second, from));
        segments = _mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(low_segments), high_segments, 1);
      }
      __builtin_prefetch(ids + i + kAhead);
      if (sizeof(Index) == 8) __builtin_prefetch(ids + i + kAhead + 8);
      _mm512_storeu_si512(ends + count, _mm512_maskz_compress_epi32(starts, at));
      _mm512_storeu_si512(segments_of + count, _mm512_maskz_compress_epi32(starts, segments));
      count += std::popcount(static_cast<unsigned>(starts));
    }
    return count;
  }
#endif

  static void Compare(const Index* __restrict ids, int64_t size, uint8_t* __restrict flags) {
    flags[0] = 0;
    for (int64_t i = 1; i < size; ++i) flags[i] = ids[i] != ids[i - 1];
  }

  // 64 bytes, each 0 or 1, as bits.
  static uint64_t Bits(const uint8_t* flags) {
    uint64_t bits = 0;
    for (int64_t k = 0; k < 8; ++k) {
      uint64_t eight;
      std::memcpy(&eight, flags + 8 * k, 8);
      bits |= (eight * 0x0102040810204080) >> 56 << (8 * k);
    }
    return bits;
  }

  // Of the runs listed, those of the task's segments that are still to come; all of them, if the ids are as promised.
  void Keep(RunList& runs) {
    if (runs.count == 0) return;
    const auto next = static_cast<int32_t>(next_ - base_), stop = static_cast<int32_t>(stop_ - base_);
    int32_t before = next - 1;
    bool good = true;
    for (int64_t k = 1; k < runs.count; ++k) good &= runs.segments[k] > runs.segments[k - 1];
    if (!good || runs.segments[0] < next || runs.segments[runs.count - 1] >= stop) {
      int64_t kept = 0;
      for (int64_t k = 0; k < runs.count; ++k) {
        const int32_t segment = runs.segments[k];
        if (segment <= before || segment >= stop) continue;
        runs.ends[kept] = runs.ends[k];
        runs.segments[kept++] = before = segment;
      }
      runs.count = kept;
    }
    if (runs.count > 0) next_ = base_ + runs.segments[runs.count - 1] + 1;
  }

  static constexpr int64_t kAhead = 1024;  // ids that are asked for ahead of time
  static constexpr int64_t kLeast = std::numeric_limits<int32_t>::min(), kMost = std::numeric_limits<int32_t>::max();

  const Index* ids_;
  int64_t segments_, first_ = 0, last_;
  int64_t base_ = 0, next_ = 0, stop_ = 0, hi_ = 0;
};

}  // namespace jaxprims::internal
