// A call that does nothing: its result is its operand, in the same place. XLA's partitioner forgets that it is; then it is a
// copy.
#pragma once

#include <exception>

#include "xla/ffi/api/ffi.h"

namespace jaxprims {

namespace ffi = xla::ffi;

// copy(to, from, bytes): may throw.
template <class Copy>
ffi::Error Held(const ffi::AnyBuffer& x, ffi::Result<ffi::AnyBuffer> same, Copy copy) {
  if (x.untyped_data() == same->untyped_data() || x.size_bytes() == 0) return ffi::Error::Success();
  try {
    copy(same->untyped_data(), x.untyped_data(), x.size_bytes());
    return ffi::Error::Success();
  } catch (const std::exception& e) {
    return ffi::Error::Internal(e.what());
  }
}

}  // namespace jaxprims
