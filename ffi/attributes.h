// Attributes of a handler's call, read into a struct. XLA hands them over in the order of their names, and looks each up by a
// binary search, some thirty comparisons of strings in all; where a member's name comes in that order is known when this is
// compiled. What does not fit is an error, as it is there.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace jaxprims {

// A member of the struct: its type, and its attribute's name.
template <class T>
struct Member {
  using Type = T;
  std::string_view name;
};

// kMembers: makes a tuple of the members, in their order in the struct.
template <class T, auto kMembers>
class Attributes {
  static constexpr auto kAll = kMembers();
  static constexpr size_t kCount = std::tuple_size_v<decltype(kAll)>;

  // How many names come before each.
  static constexpr std::array<size_t, kCount> kPlaces = std::apply(
      [](const auto&... member) {
        auto before = [&](std::string_view name) { return (size_t{member.name < name} + ...); };
        return std::array{before(member.name)...};
      },
      kAll);

  template <size_t kMember>
  static auto Get(const XLA_FFI_Attrs& attrs, xla::ffi::DiagnosticEngine& diagnostic) {
    constexpr auto kThis = std::get<kMember>(kAll);
    using Decoded = std::optional<typename decltype(kThis)::Type>;
    constexpr size_t kPlace = kPlaces[kMember];
    const XLA_FFI_ByteSpan& name = *attrs.names[kPlace];
    if (std::string_view(name.ptr, name.len) != kThis.name) {
      diagnostic.Emit("Unexpected attribute: ") << std::string_view(name.ptr, name.len);
      return Decoded();
    }
    return Decoded(
        xla::ffi::AttrDecoding<typename decltype(kThis)::Type>::Decode(attrs.types[kPlace], attrs.attrs[kPlace], diagnostic));
  }

 public:
  static std::optional<T> Decode(XLA_FFI_AttrType type, const void* attr, xla::ffi::DiagnosticEngine& diagnostic) {
    const auto& attrs = *static_cast<const XLA_FFI_Attrs*>(attr);
    if (type != XLA_FFI_AttrType_DICTIONARY || attrs.size != kCount) {
      diagnostic.Emit("Wrong number of attributes: wanted ") << kCount;
      return std::nullopt;
    }
    return [&]<size_t... kMember>(std::index_sequence<kMember...> /*all*/) -> std::optional<T> {
      const std::tuple found{Get<kMember>(attrs, diagnostic)...};
      if (!(std::get<kMember>(found).has_value() && ...)) return std::nullopt;
      return T{*std::get<kMember>(found)...};
    }(std::make_index_sequence<kCount>());
  }
};

}  // namespace jaxprims

// XLA_FFI_REGISTER_STRUCT_ATTR_DECODING by the names' order; ...: the members.
#define JAXPRIMS_ATTRIBUTES(T, ...)                                                                           \
  template <>                                                                                                 \
  struct xla::ffi::AttrsBinding<T> {                                                                          \
    using Attrs = T;                                                                                          \
  };                                                                                                          \
  template <>                                                                                                 \
  struct xla::ffi::AttrDecoding<T> {                                                                          \
    using Type = T;                                                                                           \
    static std::optional<T> Decode(XLA_FFI_AttrType type, void* attr, DiagnosticEngine& diagnostic) {         \
      using jaxprims::Member;                                                                                 \
      return jaxprims::Attributes<T, [] { return std::tuple{__VA_ARGS__}; }>::Decode(type, attr, diagnostic); \
    }                                                                                                         \
  }
