// Types and numbers of host and device. No `#pragma once`: the text of a kernel may hold it, and include it.
#ifndef JP_HOST_DEVICE_H
#define JP_HOST_DEVICE_H

#ifndef JP_HOST_DEVICE
#define JP_HOST_DEVICE inline
#endif

namespace jp {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;
struct alignas(16) u128 {
  u64 lo, hi;
};
struct alignas(16) Words4 {
  u32 w[4];
};

constexpr int kWarp = 32;
constexpr u32 kAllLanes = 0xffffffffu;

}  // namespace jp

#endif
