// SPDX-License-Identifier: Apache-2.0
// A device whose memory the host cannot touch, as a GPU's: its pages have no access rights (mprotect) except while a
// verb runs. The verbs are the CPU device's. Code outside a verb that reads or writes such memory dies by a signal.
#pragma once

#include <sys/mman.h>

#include <initializer_list>
#include <map>
#include <memory>
#include <stdexcept>

#include "oktopk/device/device.h"

namespace oktopk {

class HiddenDevice final : public Device {
 public:
  // A strict device throws where a vector that is to be its own lies in host memory.
  explicit HiddenDevice(bool is_strict = true) : is_strict_(is_strict) {}

  mutable int passes = 0;
  std::string_view name() const override { return "hidden"; }

  DeviceFloats allocate(std::size_t n) const override {
    const std::size_t bytes = n * sizeof(float) + 1;
    void* const memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    blocks_->emplace(static_cast<const std::byte*>(memory), bytes);
    return {static_cast<float*>(memory), [blocks = blocks_, bytes](float* x) {
              blocks->erase(reinterpret_cast<const std::byte*>(x));
              munmap(x, bytes);
            }};
  }
  void read(Gradient x, void* host) const override {
    pass({x}, [&] { cpu_->read(x, host); });
  }
  void write(std::span<float> x, std::span<const float> host) const override {
    pass({x}, [&] { cpu_->write(x, host); });
  }
  std::size_t first_nonfinite(Gradient x) const override {
    return pass({x}, [&] { return cpu_->first_nonfinite(x); });
  }
  void accumulate(const Accumulation& in) const override {
    pass({in.acc, in.gradient}, [&] { cpu_->accumulate(in); });
  }
  void multiply(std::span<float> x, float factor) const override {
    pass({x}, [&] { cpu_->multiply(x, factor); });
  }
  std::size_t accumulate_select(const Accumulation& in, float threshold, SparseVector& out,
                                std::size_t most) const override {
    return pass({in.acc, in.gradient}, [&] { return cpu_->accumulate_select(in, threshold, out, most); });
  }
  void select_at_least(std::span<const float> x, Index base, float threshold, SparseVector& out) const override {
    pass({x}, [&] { cpu_->select_at_least(x, base, threshold, out); });
  }
  void magnitude_histogram(std::span<const float> x, MagnitudeHistogram& bins) const override {
    pass({x}, [&] { cpu_->magnitude_histogram(x, bins); });
  }
  void sample_magnitudes(const Accumulation& in, std::size_t offset, std::size_t stride,
                         Uninitialised<std::uint32_t>& out) const override {
    pass({in.acc, in.gradient}, [&] { cpu_->sample_magnitudes(in, offset, stride, out); });
  }
  Moments moments(std::span<const float> x) const override {
    return pass({x}, [&] { return cpu_->moments(x); });
  }
  void add_at(std::span<float> x, Index base, CooView v) const override {
    pass({x}, [&] { cpu_->add_at(x, base, v); });
  }
  void clear_at(std::span<float> x, Index base, std::span<const Index> idx) const override {
    pass({x}, [&] { cpu_->clear_at(x, base, idx); });
  }
  void add_take(std::span<float> x, Index base, CooView v, const TakeBounds& bounds, SparseVector& taken,
                SparseVector& reported, float* before) const override {
    pass({x}, [&] { cpu_->add_take(x, base, v, bounds, taken, reported, before); });
  }

 private:
  using Blocks = std::map<const std::byte*, std::size_t>;

  // Opens the memory as long as it lives.
  struct Opened {
    explicit Opened(const Blocks& of) : blocks(of) { protect(PROT_READ | PROT_WRITE); }
    ~Opened() { protect(PROT_NONE); }
    void protect(int rights) const {
      for (const auto& [memory, bytes] : blocks) mprotect(const_cast<std::byte*>(memory), bytes, rights);
    }
    const Blocks& blocks;
  };

  template <class Act>
  auto pass(std::initializer_list<Gradient> own, const Act& act) const -> decltype(act()) {
    for (const Gradient& x : own)
      if (is_strict_ && !x.empty() && !owns(x)) throw std::logic_error("hidden device: a vector lies in host memory");
    ++passes;
    const Opened opened(*blocks_);
    return act();
  }

  bool owns(Gradient x) const {
    const auto* const begin = x.as<std::byte>();
    const auto after = blocks_->upper_bound(begin);
    if (after == blocks_->begin()) return false;
    const auto& [memory, bytes] = *std::prev(after);
    return begin + x.size() * size_of(x.type()) <= memory + bytes;
  }

  bool is_strict_;
  std::unique_ptr<Device> cpu_ = make_cpu_device();
  std::shared_ptr<Blocks> blocks_ = std::make_shared<Blocks>();
};

}  // namespace oktopk
