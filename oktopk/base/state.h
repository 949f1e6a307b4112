// SPDX-License-Identifier: Apache-2.0
// Saved state as bytes: plain values, arrays and texts one after the other, little-endian, read back in the order in
// which they were written. A seal of magic, version and checksum stands before them; StateReader refuses anything else
// with a UsageError, before anything is allocated. write_state() needs no more memory than the state: it measures,
// makes room once, and then writes.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"

namespace oktopk {

inline constexpr std::size_t kStateHeadBytes = 32;  // the seal, before the content

class StateWriter {
 public:
  StateWriter() : StateWriter(false) {}
  // If `counts_only`, writes nothing but counts bytes.
  explicit StateWriter(bool counts_only) : bytes_(kStateHeadBytes), counts_only_(counts_only) {}
  // Bytes of seal and content so far; makes room for so many.
  std::size_t size() const { return bytes_.size() + counted_; }
  void reserve(std::size_t size) { bytes_.reserve(size); }

  template <class... T>
  void put(const T&... values) {
    static_assert((std::is_arithmetic_v<T> && ...));
    (append(std::as_bytes(std::span(&values, 1))), ...);
  }
  template <class T>
  void put_all(std::span<const T> values) {
    static_assert(std::is_arithmetic_v<T> || std::is_same_v<T, std::byte>);
    put(std::uint64_t{values.size()});
    append(std::as_bytes(values));
  }
  // As put_all(): `count` values of `width` bytes, which copy_to(std::byte*) writes in place.
  template <class CopyTo>
  void put_filled(std::size_t count, std::size_t width, const CopyTo& copy_to) {
    put(std::uint64_t{count});
    if (counts_only_) {
      counted_ += count * width;
    } else {
      bytes_.resize(bytes_.size() + count * width);
      copy_to(bytes_.data() + bytes_.size() - count * width);
    }
  }
  void put_text(std::string_view text) { put_all(std::span<const char>(text)); }
  // Another state, sealed, or any other bytes.
  void put_bytes(std::span<const std::byte> bytes) { put_all(bytes); }

  // Another state that write(*this) puts, sealed in place; take_view() reads it.
  template <class Write>
  void put_state(const Write& write) {
    const std::size_t start = size();
    put(std::uint64_t{0});
    append(std::array<std::byte, kStateHeadBytes>{});
    write(*this);
    if (!counts_only_) seal_nested(start);
  }

  // All that was put, sealed: a copy, or the written bytes themselves.
  Bytes seal() const& { return StateWriter(*this).seal(); }
  Bytes seal() &&;

 private:
  void append(std::span<const std::byte> bytes) {
    if (counts_only_)
      counted_ += bytes.size();
    else
      bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void seal_nested(std::size_t start);

  Bytes bytes_;  // begins with room for the seal
  bool counts_only_;
  std::size_t counted_ = 0;
};

// All that write(StateWriter&) puts, sealed. Calls it twice: first to count.
template <class Write>
Bytes write_state(const Write& write) {
  StateWriter sizes(true);
  write(sizes);
  StateWriter state;
  state.reserve(sizes.size());
  write(state);
  return std::move(state).seal();
}

class StateReader {
 public:
  // UsageError unless `sealed` is the whole of what seal() gave. REQUIRES: sealed outlives the reader.
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
  template <class... T>
  void take_to(T&... values) {
    ((values = take<T>()), ...);
  }
  template <class T>
  std::vector<T> take_all() {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    const auto count = take<std::uint64_t>();
    require(count <= bytes_.size() / sizeof(T), "state: an array of ", count, " values, but only ", bytes_.size(),
            " bytes are left");
    std::vector<T> values(count);
    const auto from = next(count * sizeof(T));
    if (count > 0) std::memcpy(values.data(), from.data(), from.size());
    return values;
  }
  // A number that must be finite and at least `least`; the error names it as `what`.
  template <class T>
  T take_finite(std::string_view what, T least = std::numeric_limits<T>::lowest()) {
    const T value = take<T>();
    check_finite(value, least, what);
    return value;
  }
  // The same of an array.
  template <class T>
  std::vector<T> take_all_finite(std::string_view what, T least = std::numeric_limits<T>::lowest()) {
    std::vector<T> values = take_all<T>();
    for (std::size_t i = 0; i < values.size(); ++i) check_finite(values[i], least, what, '[', i, ']');
    return values;
  }
  std::string take_text() {
    const auto text = take_all<char>();
    return {text.begin(), text.end()};
  }
  // Bytes or a nested state, in place: valid as long as the sealed bytes.
  std::span<const std::byte> take_view() { return next(take<std::uint64_t>()); }
  // UsageError when something is left: other code wrote the state.
  void finish() const { require(bytes_.empty(), "state: ", bytes_.size(), " bytes are left over"); }

 private:
  template <class T, class... Name>
  static void check_finite(T value, T least, const Name&... name) {
    require(std::isfinite(value) && value >= least, "state: ", name..., " is ", value, ", but it must be finite",
            least >= 0 ? " and not negative" : "");
  }
  std::span<const std::byte> next(std::size_t size);
  std::span<const std::byte> bytes_;
};

}  // namespace oktopk
