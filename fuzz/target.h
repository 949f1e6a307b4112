// SPDX-License-Identifier: Apache-2.0
// Parts that the fuzz targets share. A target is one file with LLVMFuzzerTestOneInput(): any bytes go in; it returns 0,
// or aborts when a promise is broken. replay.cc runs it on files where there is no libFuzzer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "oktopk/comm/communicator.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace oktopk::fuzz {

inline void check(bool holds) {
  if (!holds) std::abort();
}

// Reads numbers from the front of an input; zeros after its end.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(std::as_bytes(std::span(data, size))) {}

  template <class T = std::uint8_t>
  T take() {
    T value{};
    std::memcpy(&value, rest_.data(), std::min(sizeof(T), rest_.size()));
    rest_ = rest_.subspan(std::min(sizeof(T), rest_.size()));
    return value;
  }
  std::span<const std::byte> take_bytes(std::size_t size) {
    const auto taken = rest_.first(std::min(size, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  std::span<const std::byte> rest() const { return rest_; }
  std::string text() const { return std::string(reinterpret_cast<const char*>(rest_.data()), rest_.size()); }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace oktopk::fuzz
