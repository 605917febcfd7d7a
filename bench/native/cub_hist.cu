// Histograms as CUB's users make them: HistogramEven for counts; for any other operator keys are sorted with their values, and
// values of equal keys reduced.
#include "cub.h"

namespace {

// Memory for the sorted copies lies in front of the temporary memory of CUB's own.
size_t Aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

template <class Value, class Op>
int SortAndReduce(void* temporary, size_t* bytes, const int32_t* keys, const Value* values, int32_t* unique, Value* reduced,
                  int32_t* count, int64_t n, int64_t bins, Op op) {
  int bits = 1;
  while (bits < 31 && (int64_t{1} << bits) < bins) ++bits;
  const int items = static_cast<int>(n);
  const size_t keys_bytes = Aligned(sizeof(int32_t) * static_cast<size_t>(n));
  const size_t values_bytes = Aligned(sizeof(Value) * static_cast<size_t>(n));
  auto* sorted_keys = static_cast<int32_t*>(temporary);
  auto* sorted = reinterpret_cast<Value*>(static_cast<char*>(temporary) + keys_bytes);
  void* rest = temporary ? static_cast<char*>(temporary) + keys_bytes + values_bytes : nullptr;
  size_t sort_bytes = 0, reduce_bytes = 0;
  TRY(cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, keys, sorted_keys, values, sorted, items, 0, bits));
  TRY(cub::DeviceReduce::ReduceByKey(nullptr, reduce_bytes, sorted_keys, unique, sorted, reduced, count, op, items));
  if (!temporary) {
    *bytes = keys_bytes + values_bytes + (sort_bytes > reduce_bytes ? sort_bytes : reduce_bytes);
    return 0;
  }
  TRY(cub::DeviceRadixSort::SortPairs(rest, sort_bytes, keys, sorted_keys, values, sorted, items, 0, bits));
  return cub::DeviceReduce::ReduceByKey(rest, reduce_bytes, sorted_keys, unique, sorted, reduced, count, op, items);
}

}  // namespace

ENTRY count_even(void* temporary, size_t* bytes, const int32_t* samples, int32_t* counts, int64_t n, int64_t bins) {
  return cub::DeviceHistogram::HistogramEven(temporary, *bytes, samples, counts, static_cast<int>(bins) + 1, 0,
                                             static_cast<int32_t>(bins), static_cast<int>(n));
}

ENTRY add_f32(void* temporary, size_t* bytes, const int32_t* keys, const float* values, int32_t* unique, float* reduced,
              int32_t* count, int64_t n, int64_t bins) {
  return SortAndReduce(temporary, bytes, keys, values, unique, reduced, count, n, bins, Add());
}

ENTRY add_i32(void* temporary, size_t* bytes, const int32_t* keys, const int32_t* values, int32_t* unique, int32_t* reduced,
              int32_t* count, int64_t n, int64_t bins) {
  return SortAndReduce(temporary, bytes, keys, values, unique, reduced, count, n, bins, Add());
}

ENTRY saturating(void* temporary, size_t* bytes, const int32_t* keys, const uint32_t* values, int32_t* unique, uint32_t* reduced,
                 int32_t* count, int64_t n, int64_t bins) {
  return SortAndReduce(temporary, bytes, keys, values, unique, reduced, count, n, bins, Saturating());
}

ENTRY argmax(void* temporary, size_t* bytes, const int32_t* keys, const Pair* values, int32_t* unique, Pair* reduced,
             int32_t* count, int64_t n, int64_t bins) {
  return SortAndReduce(temporary, bytes, keys, values, unique, reduced, count, n, bins, Argmax());
}
