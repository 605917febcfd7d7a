// What a plan's header needs on the host; in kernels device.cuh has the same names.
#pragma once

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

}  // namespace jp
