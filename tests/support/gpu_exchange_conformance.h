// SPDX-License-Identifier: Apache-2.0
// Checks of a GpuExchange, for every rank to run at the same time: on the memory of any Device, so that the same checks
// run with and without a GPU. All sums are exact.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <vector>

#include "oktopk/comm/gpu_exchange.h"
#include "oktopk/device/device.h"

namespace oktopk {

class GpuExchangeChecks {
 public:
  GpuExchangeChecks(GpuExchange& exchange, const Device& device, void* stream)
      : exchange_(exchange), device_(device), stream_(stream) {}

  void run_all() {
    for (const std::size_t count : {1, 3, 1000, 70001}) {
      expect_all_to_all(count);
      expect_all_gather(count, false);
      expect_all_gather(count, true);
      expect_all_reduce(count);
    }
    expect_order_on_the_stream(4096);
    expect_nothing_to_send();
  }

  void expect_all_to_all(std::size_t count) {
    const DeviceFloats send = upload(blocks(count, [&](int q) { return tag(exchange_.rank(), q); }));
    const DeviceFloats receive = upload(std::vector<float>(count * P()));
    exchange_.all_to_all(send.get(), receive.get(), count * sizeof(float), stream_);
    exchange_.wait(stream_);
    expect_equal(receive, blocks(count, [&](int q) { return tag(q, exchange_.rank()); }), "all_to_all");
  }

  void expect_all_gather(std::size_t count, bool in_place) {
    const std::vector<float> mine = block(count, tag(exchange_.rank(), 0));
    const DeviceFloats own = upload(mine);
    const DeviceFloats all = upload(std::vector<float>(count * P()));
    float* place = all.get() + count * static_cast<std::size_t>(exchange_.rank());
    if (in_place) device_.write({place, count}, mine);
    exchange_.all_gather(in_place ? place : own.get(), all.get(), count * sizeof(float), stream_);
    exchange_.wait(stream_);
    expect_equal(all, blocks(count, [&](int q) { return tag(q, 0); }), in_place ? "in place" : "all_gather");
  }

  void expect_all_reduce(std::size_t count) {
    const DeviceFloats sum = upload(block(count, tag(exchange_.rank(), 0)));
    exchange_.all_reduce(sum.get(), count, stream_);
    exchange_.wait(stream_);
    std::vector<float> expected(count);
    for (int q = 0; q < exchange_.size(); ++q) {
      const std::vector<float> part = block(count, tag(q, 0));
      for (std::size_t i = 0; i < count; ++i) expected[i] += part[i];
    }
    expect_equal(sum, expected, "all_reduce");
  }

  // The step of preset slots: an all_gather of what an all_to_all brought, many times, with one wait at the end.
  void expect_order_on_the_stream(std::size_t count) {
    const DeviceFloats send = upload(blocks(count, [&](int q) { return tag(exchange_.rank(), q); }));
    const DeviceFloats receive = upload(std::vector<float>(count * P()));
    const DeviceFloats all = upload(std::vector<float>(count * P() * P()));
    for (int i = 0; i < 20; ++i) {
      exchange_.all_to_all(send.get(), receive.get(), count * sizeof(float), stream_);
      exchange_.all_gather(receive.get(), all.get(), count * P() * sizeof(float), stream_);
      exchange_.check();
    }
    exchange_.wait(stream_);
    std::vector<float> expected;
    for (int owner = 0; owner < exchange_.size(); ++owner) {
      const auto part = blocks(count, [&](int q) { return tag(q, owner); });
      expected.insert(expected.end(), part.begin(), part.end());
    }
    expect_equal(all, expected, "on the stream");
  }

  void expect_nothing_to_send() {
    exchange_.all_to_all(nullptr, nullptr, 0, stream_);
    exchange_.all_gather(nullptr, nullptr, 0, stream_);
    exchange_.all_reduce(nullptr, 0, stream_);
    exchange_.wait(stream_);
    exchange_.check();
  }

 private:
  std::size_t P() const { return static_cast<std::size_t>(exchange_.size()); }

  static float tag(int from, int to) { return static_cast<float>(1 + from * 100 + to * 3000); }

  static std::vector<float> block(std::size_t count, float tag) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = tag + static_cast<float>(i % 89) / 128;
    return values;
  }

  template <class Tag>
  std::vector<float> blocks(std::size_t count, Tag tag_of) const {
    std::vector<float> all;
    for (int q = 0; q < exchange_.size(); ++q) {
      const std::vector<float> one = block(count, tag_of(q));
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  DeviceFloats upload(const std::vector<float>& values) const {
    DeviceFloats memory = device_.allocate(values.size());
    device_.write({memory.get(), values.size()}, values);
    return memory;
  }

  void expect_equal(const DeviceFloats& memory, const std::vector<float>& expected, const char* what) const {
    std::vector<float> found(expected.size());
    device_.read(std::span<const float>(memory.get(), found.size()), found.data());
    EXPECT_EQ(found, expected) << what << ", rank " << exchange_.rank() << " of " << exchange_.size();
  }

  GpuExchange& exchange_;
  const Device& device_;
  void* stream_;
};

}  // namespace oktopk
