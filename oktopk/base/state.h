// SPDX-License-Identifier: Apache-2.0
// Saved state as bytes: plain values, arrays and texts one after the other, little-endian, read
// back in the order in which they were written. seal() puts magic, version and a checksum before
// them; StateReader refuses anything else with a UsageError, before anything is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"

namespace oktopk {

inline constexpr std::size_t kStateHeadBytes = 32;  // what seal() puts before the content

class StateWriter {
 public:
  template <class T>
  void put(const T& value) {
    static_assert(std::is_arithmetic_v<T>);
    append(std::as_bytes(std::span(&value, 1)));
  }
  template <class T>
  void put_all(std::span<const T> values) {
    static_assert(std::is_arithmetic_v<T>);
    put(std::uint64_t{values.size()});
    append(std::as_bytes(values));
  }
  void put_text(std::string_view text) { put_all(std::span<const char>(text)); }
  // Another state, sealed, or anything else that is bytes.
  void put_bytes(std::span<const std::byte> bytes) {
    put(std::uint64_t{bytes.size()});
    append(bytes);
  }

  // All that was put, sealed.
  Bytes seal() const;

 private:
  void append(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  Bytes bytes_;
};

class StateReader {
 public:
  // UsageError unless `sealed` is what seal() gave, whole. REQUIRES: sealed outlives the reader.
  explicit StateReader(std::span<const std::byte> sealed);

  template <class T>
  T take() {
    static_assert(std::is_arithmetic_v<T>);
    if constexpr (std::is_same_v<T, bool>) {
      const auto value = take<std::uint8_t>();
      require(value <= 1, "state: ", int{value}, " where true or false was expected");
      return value == 1;
    } else {
      T value;
      std::memcpy(&value, next(sizeof(T)).data(), sizeof(T));
      return value;
    }
  }
  template <class T>
  std::vector<T> take_all() {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    const auto count = take<std::uint64_t>();
    require(count <= bytes_.size() / sizeof(T), "state: an array of ", count, " values, but only ",
            bytes_.size(), " bytes are left");
    std::vector<T> values(count);
    const auto from = next(count * sizeof(T));
    if (count > 0) std::memcpy(values.data(), from.data(), from.size());
    return values;
  }
  std::string take_text() {
    const auto text = take_all<char>();
    return {text.begin(), text.end()};
  }
  Bytes take_bytes() {
    const auto size = take<std::uint64_t>();
    const auto bytes = next(size);
    return {bytes.begin(), bytes.end()};
  }
  // UsageError when something is left: it was written by other code.
  void finish() const;

 private:
  std::span<const std::byte> next(std::size_t size);
  std::span<const std::byte> bytes_;
};

}  // namespace oktopk
