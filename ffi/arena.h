// Memory for the short lists of one call, beside them: of the half microsecond that a small call takes, the heap would be a
// third.
#pragma once

#include <array>
#include <cstddef>
#include <memory_resource>
#include <vector>

namespace jaxprims {

template <size_t kBytes>
class Arena {
 public:
  Arena() = default;
  // Lists that are copied lie on the heap; none may take over what lies in another arena, so a call that is moved is copied.
  Arena(const Arena& /*other*/) : Arena() {}
  Arena(Arena&&) = delete;
  Arena& operator=(const Arena& /*other*/) { return *this; }
  Arena& operator=(Arena&&) = delete;
  ~Arena() = default;

  // What the lists are made with; more than the arena has comes from the heap.
  std::pmr::memory_resource* get() { return &resource_; }

 private:
  std::array<std::byte, kBytes> bytes_;  // NOLINT(cppcoreguidelines-pro-type-member-init): lists begin with what they hold
  std::pmr::monotonic_buffer_resource resource_{bytes_.data(), kBytes};
};

template <class T>
using List = std::pmr::vector<T>;

}  // namespace jaxprims
