// SPDX-License-Identifier: Apache-2.0
// Values of any type in the memory of a device, for tests of all devices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "oktopk/device/device.h"

namespace oktopk {

// The values lie `offset` elements behind an aligned address. The memory ends with the last one.
template <class T>
class OnDevice {
 public:
  OnDevice(const Device& device, const std::vector<T>& values, std::size_t offset = 0)
      : device_(&device),
        offset_(offset),
        n_(values.size()),
        whole_(std::max<std::size_t>(1, ((n_ + offset) * sizeof(T) + sizeof(float) - 1) / sizeof(float))),
        floats_(device.allocate(whole_.size())) {
    write(values);
  }

  void write(const std::vector<T>& values) {
    if (n_ > 0) std::memcpy(begin_of_copy(), values.data(), n_ * sizeof(T));
    device_->write({floats_.get(), whole_.size()}, whole_);
  }
  std::vector<T> read() const {
    std::vector<T> values(n_);
    device_->read(std::span<const float>(floats_.get(), whole_.size()), whole_.data());
    if (n_ > 0) std::memcpy(values.data(), begin_of_copy(), n_ * sizeof(T));
    return values;
  }
  T* data() const { return reinterpret_cast<T*>(floats_.get()) + offset_; }
  std::span<T> span() const { return {data(), n_}; }
  Gradient gradient() const { return std::span<const T>(span()); }

 private:
  std::byte* begin_of_copy() const { return reinterpret_cast<std::byte*>(whole_.data()) + offset_ * sizeof(T); }

  const Device* device_;
  std::size_t offset_;
  std::size_t n_;
  mutable std::vector<float> whole_;  // a copy of all of the memory
  DeviceFloats floats_;
};

}  // namespace oktopk
