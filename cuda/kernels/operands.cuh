// Operands with batch axes that some of them lack; runs of neighbours in as few accesses as their place allows.
#pragma once

namespace jp {

constexpr int kMaxAxes = 4;  // the launcher joins axes that lie alike

// Words of a kernel's parameter. stride: bytes, by batch axis; 0 where the operand lacks the axis.
struct Operand {
  char* data;
  i64 stride[kMaxAxes];
};
struct Batch {
  i64 rank, members;
  i64 size[kMaxAxes];
};

// The length of a list of operands: C++ has no arrays of none.
JP_DEVICE constexpr int AtLeastOne(int n) { return n > 0 ? n : 1; }

// A member's position on each axis.
struct Member {
  i64 at[kMaxAxes];
};

JP_DEVICE Member MemberOf(const Batch& batch, i64 number) {
  Member m = {};
#pragma unroll
  for (int axis = kMaxAxes - 1; axis >= 0; --axis) {
    if (axis >= batch.rank) continue;
    if (axis > 0) {
      m.at[axis] = number % batch.size[axis];
      number /= batch.size[axis];
    } else {
      m.at[0] = number;
    }
  }
  return m;
}

template <class T>
JP_DEVICE T* Place(const Operand& operand, const Member& member) {
  char* p = operand.data;
#pragma unroll
  for (int axis = 0; axis < kMaxAxes; ++axis) p += member.at[axis] * operand.stride[axis];
  return reinterpret_cast<T*>(p);
}

// The widest word that a run of so many bytes consists of.
JP_DEVICE constexpr int WordBytes(int bytes) { return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : bytes % 2 == 0 ? 2 : 1; }
JP_DEVICE u64 LoadOnce(const u64* p) { return *p; }
JP_DEVICE u32 LoadOnce(const u32* p) { return *p; }
JP_DEVICE u16 LoadOnce(const u16* p) { return *p; }
JP_DEVICE void StoreOnce(u64* p, u64 x) { *p = x; }
JP_DEVICE void StoreOnce(u32* p, u32 x) { *p = x; }
JP_DEVICE void StoreOnce(u16* p, u16 x) { *p = x; }
template <int kBytes>
struct WordType;
template <> struct WordType<16> { using type = Words4; };
template <> struct WordType<8> { using type = u64; };
template <> struct WordType<4> { using type = u32; };
template <> struct WordType<2> { using type = u16; };

// x, which is a multiple of this power of two: the compiler gets to know it. Runs that begin at multiples of their length are all
// as aligned as their array is, so that whether they are is asked once, before a loop.
template <int kPower>
JP_DEVICE i64 MultipleOf(i64 x) {
  static_assert((kPower & (kPower - 1)) == 0, "a power of two");
  return x & -i64{kPower};
}

// May a run of kCount elements from array[first] on be read, or written, in its widest words? And so those that are multiples of
// their length away. Of an address in parts the compiler would not see what is a multiple.
template <int kCount, class T>
JP_DEVICE bool IsWide(const T* array, i64 first) {
  constexpr int kWord = WordBytes(kCount * static_cast<int>(sizeof(T)));
  if constexpr (kWord <= static_cast<int>(sizeof(T))) return true;
  return (reinterpret_cast<u64>(array) + static_cast<u64>(first) * sizeof(T)) % kWord == 0;
}

// out = p[0 .. kCount), each read once by the grid.
template <bool kWide, int kCount, class T>
JP_DEVICE void ReadRun(const T* p, T (&out)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T)), kWord = WordBytes(kBytes);
  if constexpr (kWide && kWord > static_cast<int>(sizeof(T))) {
    using Word = typename WordType<kWord>::type;
#pragma unroll
    for (int k = 0; k < kBytes / kWord; ++k) {
      const Word word = LoadOnce(reinterpret_cast<const Word*>(p) + k);
      memcpy(out + k * (kWord / static_cast<int>(sizeof(T))), &word, kWord);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kCount; ++k) out[k] = p[k];
  }
}
template <int kCount, class T>
JP_DEVICE void ReadRun(const T* array, i64 first, T (&out)[kCount]) {
  if (IsWide<kCount>(array, first)) {
    ReadRun<true>(array + first, out);
  } else {
    ReadRun<false>(array + first, out);
  }
}

// A warp asks L2 for array[first .. last), which will be read soon.
template <class T>
JP_DEVICE void AskFor(const T* array, i64 first, i64 last) {
  constexpr int kLine = 128;
  const char* const end = reinterpret_cast<const char*>(array + last);
  for (const char* p = reinterpret_cast<const char*>(array + first) + Lane() * kLine; p < end; p += kWarp * kLine) Prefetch(p);
}

// p[0 .. kCount) = in, each written once by the grid.
template <bool kWide, int kCount, class T>
JP_DEVICE void WriteRun(T* p, const T (&in)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T)), kWord = WordBytes(kBytes);
  if constexpr (kWide && kWord > static_cast<int>(sizeof(T))) {
    using Word = typename WordType<kWord>::type;
#pragma unroll
    for (int k = 0; k < kBytes / kWord; ++k) {
      Word word;
      memcpy(&word, in + k * (kWord / static_cast<int>(sizeof(T))), kWord);
      StoreOnce(reinterpret_cast<Word*>(p) + k, word);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kCount; ++k) p[k] = in[k];
  }
}

}  // namespace jp
