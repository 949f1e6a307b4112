// SPDX-License-Identifier: Apache-2.0
// The kernels of preset `slots` against the messages that the host writes (allreduce/parts/slot_messages.h):
// accumulators, messages, owner memory, shares and updates of all ranks, step by step, bit by bit. All ranks are in
// this process.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "oktopk/allreduce/parts/slot_messages.h"
#include "oktopk/base/error.h"
#include "oktopk/base/random.h"
#include "oktopk/device/cuda_library.h"
#include "oktopk/device/device.h"

namespace oktopk {
namespace {

using slots::Deal;

std::uint32_t bits_of_magnitude(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffU; }

// The first threshold: the k-th magnitude.
std::uint32_t kth_bits(const std::vector<float>& x, std::size_t k) {
  if (k >= x.size()) return slots::kLeastBound;
  std::vector<std::uint32_t> all;
  for (const float v : x) all.push_back(bits_of_magnitude(v));
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(k - 1), all.end(), std::greater<>());
  return std::max(all[k - 1], slots::kLeastBound);
}

SparseVector at_least(const std::vector<float>& x, std::uint32_t bound) {
  SparseVector out;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (bits_of_magnitude(x[i]) >= bound) out.push_back(static_cast<Index>(i), x[i]);
  return out;
}

std::uint32_t steer(std::uint32_t bound, const SlotTail& reached, std::uint64_t aim) {
  std::uint64_t counts[slots::kTail];
  std::copy(reached.begin(), reached.end(), counts);
  return slots::steered(bound, counts, aim);
}

// One rank on the host.
struct HostRank {
  std::vector<float> acc, memory;
  std::uint32_t local_bound = 0, global_bound = 0;

  std::vector<std::uint32_t> send(const SlotStep& step, const std::vector<float>& gradient, float scale) {
    for (std::size_t i = 0; i < acc.size(); ++i) acc[i] = acc[i] + scale * gradient[i];
    if (step.number == 0) local_bound = kth_bits(acc, step.k);
    const SparseVector selection = at_least(acc, local_bound);
    const Deal& deal = step.deal;
    std::vector<SparseVector> by_owner(deal.P);
    for (std::size_t i = 0; i < selection.size(); ++i) {
      by_owner[deal.owner(selection.idx[i])].push_back(static_cast<Index>(deal.place(selection.idx[i])),
                                                       selection.val[i]);
      acc[selection.idx[i]] = 0;
    }
    std::vector<std::uint32_t> messages(step.words() * deal.P);
    SlotTail tail{};
    for (std::uint32_t q = 0; q < deal.P; ++q) {
      SparseVector rest;
      const SlotTail part = writer.write(step, by_owner[q], local_bound, message(messages, step, q), rest);
      for (std::size_t j = 0; j < tail.size(); ++j) tail[j] += part[j];
      for (std::size_t i = 0; i < rest.size(); ++i) acc[deal.index(q, rest.idx[i])] += rest.val[i];
    }
    for (std::uint32_t q = 0; q < deal.P; ++q) end_slot(message(messages, step, q), local_bound, reached_of(tail));
    local_bound = steer(local_bound, reached_of(tail), step.k);
    return messages;
  }

  void add(const SlotStep& step, std::span<const std::uint32_t> arrived) {
    SparseVector entries;
    ASSERT_EQ(read_slot(step, arrived, entries), "");
    for (std::size_t i = 0; i < entries.size(); ++i) memory[entries.idx[i]] += entries.val[i];
  }

  std::vector<std::uint32_t> take(const SlotStep& step) {
    if (step.number == 0) global_bound = kth_bits(memory, slots::divide_up(step.k, step.deal.P));
    const SparseVector selection = at_least(memory, global_bound);
    std::vector<std::uint32_t> share(step.words());
    SparseVector rest;
    SlotTail tail = writer.write(step, selection, global_bound, share, rest);
    for (const float x : memory) {
      const std::uint32_t j = slots::tail_step(bits_of_magnitude(x), global_bound);
      if (j < slots::kStepsDown) ++tail[j];
    }
    for (const Index place : selection.idx) memory[place] = 0;
    for (std::size_t i = 0; i < rest.size(); ++i) memory[rest.idx[i]] += rest.val[i];
    end_slot(share, global_bound, reached_of(tail));
    return share;
  }

  static SlotWords message(std::vector<std::uint32_t>& messages, const SlotStep& step, std::uint32_t q) {
    return SlotWords(messages).subspan(step.words() * q, step.words());
  }

  SlotWriter writer;
};

class CudaSlots : public testing::Test {
 protected:
  void SetUp() override {
    try {
      device_ = make_cuda_device();
      api_ = &load_cuda_api("");
    } catch (const DeviceError& error) {
      GTEST_SKIP() << error.what();
    }
    std::array<char, 256> text{};
    ASSERT_EQ(api_->open(0, nullptr, &context_, text.data(), text.size()), 0) << text.data();
  }
  void TearDown() override {
    if (context_ != nullptr) api_->close(context_);
  }

  // Words on the GPU are kept in floats: the device copies both alike.
  std::vector<std::uint32_t> words(const DeviceFloats& from, std::size_t count) const {
    std::vector<std::uint32_t> host(count);
    device_->read(std::span<const float>(from.get(), count), host.data());
    return host;
  }
  void put(const DeviceFloats& to, std::size_t at, std::span<const std::uint32_t> host) const {
    const auto* floats = reinterpret_cast<const float*>(host.data());
    device_->write({to.get() + at, host.size()}, {floats, host.size()});
  }
  static std::uint32_t* as_words(const DeviceFloats& memory) { return reinterpret_cast<std::uint32_t*>(memory.get()); }

  // The words that are in use.
  static std::vector<std::uint32_t> used(std::span<const std::uint32_t> message, const Deal& deal) {
    const std::size_t size = slots::kHeadWords + slots::count_words(deal) + slot_head(message).count;
    return {message.begin(), message.begin() + static_cast<std::ptrdiff_t>(size)};
  }

  void expect_equal_steps(std::uint64_t n, std::uint32_t P, std::uint64_t k, int steps);

  std::shared_ptr<const Device> device_;
  const OktopkCudaApi* api_ = nullptr;
  OktopkCudaContext* context_ = nullptr;
};

void CudaSlots::expect_equal_steps(std::uint64_t n, std::uint32_t P, std::uint64_t k, int steps) {
  const Deal deal = Deal::of(n, P);
  const std::size_t size = slots::message_words(deal, k);
  std::vector<HostRank> host(P);
  std::vector<OktopkCudaSlots*> gpu(P);
  std::vector<DeviceFloats> acc, sent;
  for (std::uint32_t r = 0; r < P; ++r) {
    host[r].acc.assign(n, 0);
    host[r].memory.assign(deal.places(), 0);
    ASSERT_EQ(api_->slots_open(context_, n, P, 7, &gpu[r]), 0);
    acc.push_back(device_->allocate(n));
    sent.push_back(device_->allocate(size * P));
  }
  const DeviceFloats gradient = device_->allocate(n), arrived = device_->allocate(size * P);
  const DeviceFloats share = device_->allocate(size), shares = device_->allocate(size * P), out = device_->allocate(n);
  for (int number = 0; number < steps; ++number) {
    SCOPED_TRACE(testing::Message() << "n " << n << " P " << P << " step " << number);
    const SlotStep step{deal, k, static_cast<std::uint64_t>(number), 7};
    std::vector<std::vector<std::uint32_t>> messages;
    for (std::uint32_t r = 0; r < P; ++r) {
      Random random(number, r);
      std::vector<float> values(n);
      for (float& x : values) x = static_cast<float>(random.normal()) * (number > steps / 2 ? 0.05F : 1.0F);
      device_->write({gradient.get(), n}, values);
      const OktopkCudaPass pass{acc[r].get(), n, gradient.get(), 0, 0.5F, nullptr, 0};
      ASSERT_EQ(api_->slots_send(context_, gpu[r], &pass, k, as_words(sent[r])), 0) << api_->error_text(context_);
      messages.push_back(host[r].send(step, values, 0.5F));
      const auto theirs = words(sent[r], size * P);
      for (std::uint32_t q = 0; q < P; ++q)
        ASSERT_EQ(used(HostRank::message(messages[r], step, q), deal),
                  used(std::span(theirs).subspan(size * q, size), deal));
      std::vector<float> left(n);
      device_->read(std::span<const float>(acc[r].get(), n), left.data());
      ASSERT_EQ(host[r].acc, left);
    }
    std::vector<float> update(n, 0.0F);
    SlotTail reached{};
    std::uint64_t bounds = 0, filled = 0;
    for (std::uint32_t q = 0; q < P; ++q) {
      for (std::uint32_t r = 0; r < P; ++r) {
        put(arrived, size * r, HostRank::message(messages[r], step, q));
        host[q].add(step, HostRank::message(messages[r], step, q));
      }
      ASSERT_EQ(api_->slots_own(context_, gpu[q], as_words(arrived), k, as_words(share)), 0);
      const auto mine = host[q].take(step);
      ASSERT_EQ(used(mine, deal), used(words(share, size), deal));
      put(shares, size * q, mine);
      SparseVector entries;
      ASSERT_EQ(read_slot(step, mine, entries), "");
      for (std::size_t i = 0; i < entries.size(); ++i)
        update[deal.index(q, entries.idx[i])] = entries.val[i] / static_cast<float>(P);
      const slots::Head& head = slot_head(mine);
      for (std::size_t j = 0; j < reached.size(); ++j) reached[j] += head.reached[j];
      if (head.bound > slots::kLeastBound) bounds += head.bound, ++filled;
    }
    for (std::uint32_t r = 0; r < P; ++r) {
      ASSERT_EQ(api_->slots_apply(context_, gpu[r], as_words(shares), as_words(sent[r]), acc[r].get(), k,
                                  static_cast<float>(P), out.get(), 0),
                0);
      std::vector<float> theirs(n);
      device_->read(std::span<const float>(out.get(), n), theirs.data());
      ASSERT_EQ(update, theirs);
      const auto first = static_cast<std::uint32_t>(filled > 0 ? bounds / filled : slots::kLeastBound);
      host[r].global_bound = number == 0 ? first : steer(host[r].global_bound, reached, k);
      OktopkCudaSlotsState state{};
      ASSERT_EQ(api_->slots_state(context_, gpu[r], &state), 0);
      EXPECT_EQ(state.fault, 0U);
      EXPECT_EQ(state.local_bound, host[r].local_bound);
      EXPECT_EQ(state.global_bound, host[r].global_bound);
    }
  }
  for (OktopkCudaSlots* rank : gpu) api_->slots_close(context_, rank);
}

TEST_F(CudaSlots, steps_have_the_bits_of_the_host) {
  expect_equal_steps(1, 1, 1, 3);
  expect_equal_steps(1, 3, 1, 3);
  expect_equal_steps(5000, 3, 50, 16);
  expect_equal_steps(100001, 1, 1000, 16);
  expect_equal_steps(300007, 4, 3000, 16);
  expect_equal_steps(70000, 2, 35000, 6);
}

}  // namespace
}  // namespace oktopk
