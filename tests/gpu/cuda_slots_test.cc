// SPDX-License-Identifier: Apache-2.0
// The kernels of preset `slots`, all ranks in this process: mass, values that are not finite, sums that overflow, and
// messages that make no sense. tests/reduce/gpu_steps_test.cc compares whole steps with the host, bit by bit.
#include <gtest/gtest.h>

#include <cmath>

#include "oktopk/base/error.h"
#include "oktopk/base/random.h"
#include "oktopk/gpu/cuda_slots.h"
#include "oktopk/sparse/slots_format.h"
#include "tests/support/message.h"

namespace oktopk::cuda_slots_test {
namespace {

std::uint32_t* words_of(const DeviceFloats& memory) { return reinterpret_cast<std::uint32_t*>(memory.get()); }

// One rank's memory and kernels.
struct Rank {
  Rank(const Device& device, std::uint64_t n, int P, std::uint32_t tag)
      : kernels(device, n, P, tag),
        acc(device.allocate(n)),
        memory(device.allocate(slots::Deal::of(n, static_cast<std::uint32_t>(P)).places())) {}

  CudaSlots kernels;
  DeviceFloats acc, memory;
};

class CudaSlotsKernels : public testing::Test {
 protected:
  void SetUp() override {
    try {
      device_ = make_cuda_device();
    } catch (const DeviceError& error) {
      GTEST_SKIP() << error.what();
    }
  }

  void begin(std::uint64_t n, int P, std::uint64_t k) {
    n_ = n;
    P_ = static_cast<std::size_t>(P);
    k_ = k;
    deal_ = slots::Deal::of(n, static_cast<std::uint32_t>(P));
    size_ = slots::message_words(deal_, k);
    ranks_.clear();
    for (int r = 0; r < P; ++r) ranks_.push_back(std::make_unique<Rank>(*device_, n, P, 7));
    for (DeviceFloats* x : {&gradient_, &out_}) *x = device_->allocate(n);
    sent_.clear();
    for (std::size_t r = 0; r < P_; ++r) sent_.push_back(device_->allocate(size_ * P_));
    arrived_ = device_->allocate(size_ * P_);
    shares_ = device_->allocate(size_ * P_);
  }

  std::vector<float> host(const DeviceFloats& x, std::size_t count) const {
    std::vector<float> values(count);
    device_->read(std::span<const float>(x.get(), count), values.data());
    return values;
  }

  void send(std::size_t r, const std::vector<float>& values) {
    device_->write({gradient_.get(), n_}, values);
    const Gradient gradient(gradient_.get(), n_, FloatType::fp32);
    ranks_[r]->kernels.send({{ranks_[r]->acc.get(), n_}, gradient}, k_, words_of(sent_[r]), nullptr);
  }

  // All owners; `damage` may change a word of a message before it arrives.
  void own(const std::function<void(std::vector<float>&)>& damage = [](auto&) {}) {
    std::vector<float> shares;
    const DeviceFloats share = device_->allocate(size_);
    for (std::size_t q = 0; q < P_; ++q) {
      std::vector<float> arrived;
      for (std::size_t r = 0; r < P_; ++r) {
        const std::vector<float> all = host(sent_[r], size_ * P_);
        const auto from = all.begin() + static_cast<std::ptrdiff_t>(q * size_);
        arrived.insert(arrived.end(), from, from + static_cast<std::ptrdiff_t>(size_));
      }
      damage(arrived);
      device_->write({arrived_.get(), arrived.size()}, arrived);
      ranks_[q]->kernels.own(ranks_[q]->memory.get(), words_of(arrived_), k_, words_of(share), nullptr);
      const std::vector<float> mine = host(share, size_);
      shares.insert(shares.end(), mine.begin(), mine.end());
    }
    device_->write({shares_.get(), shares.size()}, shares);
  }

  std::vector<float> apply(std::size_t r) {
    ranks_[r]->kernels.apply(words_of(shares_), words_of(sent_[r]), ranks_[r]->acc.get(), k_,
                             {out_.get(), FloatType::fp32, 1}, nullptr);
    return host(out_, n_);
  }

  std::shared_ptr<const Device> device_;
  std::uint64_t n_ = 0, k_ = 0;
  std::size_t P_ = 1, size_ = 0;
  slots::Deal deal_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<DeviceFloats> sent_;
  DeviceFloats gradient_, out_, arrived_, shares_;
};

// Multiples of 2^-10, so that all sums are exact.
std::vector<float> dyadic(std::size_t n, std::uint64_t step, std::uint64_t rank) {
  Random random(step, rank);
  std::vector<float> x(n);
  for (float& v : x) v = std::round(static_cast<float>(random.normal()) * 1024) / 1024;
  return x;
}

TEST_F(CudaSlotsKernels, steps_lose_nothing_at_any_index) {
  for (const auto& [n, P, k] : {std::tuple{1U, 3, 1U}, {100001U, 1, 1000U}, {300007U, 4, 3000U}, {70000U, 2, 35000U}}) {
    begin(n, P, k);
    std::vector<double> brought(n, 0.0), has(n, 0.0);
    for (std::uint64_t step = 0; step < 12; ++step) {
      for (std::size_t r = 0; r < P_; ++r) {
        const auto x = dyadic(n, step, r);
        for (std::size_t i = 0; i < n; ++i) brought[i] += x[i];
        send(r, x);
      }
      own();
      std::vector<float> update;
      for (std::size_t r = 0; r < P_; ++r) update = apply(r);
      for (std::size_t i = 0; i < n; ++i) has[i] += update[i];
    }
    for (std::size_t r = 0; r < P_; ++r) {
      const auto acc = host(ranks_[r]->acc, n);
      for (std::size_t i = 0; i < n; ++i) has[i] += acc[i];
      const auto memory = host(ranks_[r]->memory, deal_.places());
      for (std::size_t p = 0; p < memory.size(); ++p)
        if (memory[p] != 0) has.at(deal_.index(static_cast<std::uint32_t>(r), p)) += memory[p];
    }
    EXPECT_EQ(brought, has) << "n " << n << " P " << P;
  }
}

TEST_F(CudaSlotsKernels, a_value_that_is_not_finite_makes_the_step_void_on_all_ranks) {
  constexpr std::size_t n = 9000;
  begin(n, 2, 90);
  for (std::size_t r = 0; r < 2; ++r) send(r, dyadic(n, 0, r));
  own();
  for (std::size_t r = 0; r < 2; ++r) apply(r);
  const auto before = host(ranks_[0]->acc, n);
  const auto memory = host(ranks_[0]->memory, deal_.places());
  auto bad = dyadic(n, 1, 1);
  bad[4321] = NAN;
  const auto good = dyadic(n, 1, 0);
  send(0, good);
  send(1, bad);
  own();
  for (std::size_t r = 0; r < 2; ++r)
    for (const float x : apply(r)) ASSERT_TRUE(std::isnan(x));
  const auto after = host(ranks_[0]->acc, n);
  for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(after[i], before[i] + good[i]) << i;  // the good rank's gradient stays
  EXPECT_EQ(host(ranks_[0]->memory, deal_.places()), memory);
  EXPECT_EQ(ranks_[1]->kernels.state().void_steps, 1U);
  for (std::size_t r = 0; r < 2; ++r) send(r, dyadic(n, 2, r));
  own();
  for (const float x : apply(0)) ASSERT_TRUE(std::isfinite(x));
}

TEST_F(CudaSlotsKernels, a_sum_that_overflows_is_a_fault_on_all_ranks) {
  begin(1000, 2, 10);
  for (std::size_t r = 0; r < 2; ++r) send(r, std::vector<float>(1000, 3e38F));
  own();
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_TRUE(std::isnan(apply(r)[0]));
    EXPECT_EQ(ranks_[r]->kernels.state().fault, 4U);
  }
}

TEST_F(CudaSlotsKernels, messages_that_make_no_sense_are_a_fault) {
  const auto fault_of = [&](const std::function<void(std::vector<float>&)>& damage) {
    begin(50000, 1, 500);
    send(0, dyadic(50000, 3, 0));
    own(damage);
    return ranks_[0]->kernels.state().fault;
  };
  const auto flip = [](std::size_t word) {
    return [word](std::vector<float>& message) {
      message[word] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(message[word]) ^ 4U);
    };
  };
  EXPECT_EQ(fault_of([](auto&) {}), 0U);
  EXPECT_EQ(fault_of(flip(0)), 1U);
  EXPECT_EQ(fault_of(flip(2)), 2U);
  EXPECT_EQ(fault_of(flip(slots::kHeadWords + 20)), 3U);
}

TEST(CudaSlots, another_device_is_refused) {
  const auto cpu = make_cpu_device();
  const std::string text = message_of<UsageError>([&] { CudaSlots(*cpu, 100, 1, 0); });
  EXPECT_NE(text.find("device is cpu"), std::string::npos) << text;
}

}  // namespace
}  // namespace oktopk::cuda_slots_test
