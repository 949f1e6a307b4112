// SPDX-License-Identifier: Apache-2.0
// The exchange over the real NCCL between processes, all of them on GPU 0. Without GPU or NCCL these tests say that
// they were skipped. The tests set what NCCL needs for several ranks on one GPU (oktopk/comm/gpu_exchange.h).
#include "oktopk/comm/gpu_exchange.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/transports.h"
#include "oktopk/device/device.h"
#include "oktopk/laws/laws.h"
#include "oktopk/laws/subject.h"
#include "oktopk/laws/witness.h"
#include "tests/support/gpu_exchange_conformance.h"
#include "tests/support/message.h"

namespace oktopk::nccl_test {
namespace {

using Clock = std::chrono::steady_clock;

class MpiNccl : public testing::Test {
 protected:
  void SetUp() override {
    setenv("NCCL_HOSTID", text_of("oktopk-test-", comm_->rank()).c_str(), 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    setenv("NCCL_IB_DISABLE", "1", 0);
    const std::string text = message_of<DeviceError>([&] { exchange_ = make_nccl_exchange(*comm_); });
    if (text != "accepted") GTEST_SKIP() << text;
    device_ = make_cuda_device();
  }

  std::unique_ptr<Communicator> comm_ = make_mpi_world();
  std::shared_ptr<GpuExchange> exchange_;
  std::unique_ptr<Device> device_;
};

TEST_F(MpiNccl, operations_give_every_rank_what_it_is_due) {
  GpuExchangeChecks(*exchange_, *device_, nullptr).run_all();
}

// Steps that stay on the GPU, under the laws, and with the bits of the same steps on the host.
TEST_F(MpiNccl, steps_of_preset_slots_obey_the_laws_and_have_the_bits_of_the_host) {
  for (const Index n : {Index{1}, Index{64}, Index{2000}, Index{30011}})
    for (const Input input : {Input::dyadic, Input::skewed, Input::equal, Input::zero, Input::lonely}) {
      Trial trial{.n = n, .input = input, .steps = 8};
      trial.options.preset = "slots";
      trial.options.density = n > 100 ? 0.05 : 0.3;
      const auto on_host = make_synchroniser(*comm_, n, trial.options, 1);
      trial.options.device = std::shared_ptr<const Device>(make_cuda_device());
      trial.options.exchange = exchange_;
      for (const Finding& finding : check_steps(*comm_, trial))
        EXPECT_TRUE(finding.holds) << finding.law << ": " << finding.detail << " n " << n;
      const auto on_gpu = make_synchroniser(*comm_, n, trial.options, 1);
      EXPECT_EQ(run_steps(*on_gpu, trial, 0, 8), run_steps(*on_host, trial, 0, 8)) << "n " << n;
      EXPECT_EQ(on_gpu->save(), on_host->save()) << "n " << n;
    }
}

// Prints times, which a test cannot judge.
TEST_F(MpiNccl, operations_are_queued_without_a_wait) {
  constexpr int kTimes = 200;
  constexpr std::size_t kBytes = 4096;
  const auto P = static_cast<std::size_t>(comm_->size());
  const DeviceFloats send = device_->allocate(kBytes * P);
  const DeviceFloats receive = device_->allocate(kBytes * P);
  exchange_->all_to_all(send.get(), receive.get(), kBytes, nullptr);  // connects the ranks
  exchange_->wait(nullptr);
  const auto begin = Clock::now();
  for (int i = 0; i < kTimes; ++i) exchange_->all_to_all(send.get(), receive.get(), kBytes, nullptr);
  const auto queued = Clock::now();
  exchange_->wait(nullptr);
  const auto micros = [&](auto end) { return std::chrono::duration<double, std::micro>(end - begin).count() / kTimes; };
  const auto ended = Clock::now();
  if (comm_->rank() == 0)
    std::printf("P = %zu: all_to_all of 4 KiB: %.1f us to queue, %.1f us in all\n", P, micros(queued), micros(ended));
  exchange_->check();
}

// The others give up in time, before and after NCCL has connected the ranks, and the last rank ends in order or aborts.
void expect_error_in_time(Communicator& comm, const Device& device, bool is_connected) {
  const auto exchange = make_nccl_exchange(comm, {.timeout = std::chrono::seconds(4)});
  if (is_connected) GpuExchangeChecks(*exchange, device, nullptr).expect_all_reduce(1000);
  barrier(comm);
  const auto begin = Clock::now();
  if (comm.rank() != comm.size() - 1) {
    const DeviceFloats sum = device.allocate(1000);
    EXPECT_THROW(
        {
          exchange->all_reduce(sum.get(), 1000, nullptr);
          exchange->wait(nullptr);
        },
        CommError);
    EXPECT_THROW(exchange->check(), CommError);
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
  barrier(comm);
}

TEST_F(MpiNccl, rank_that_stays_away_is_an_error_in_time) {
  if (comm_->size() == 1) GTEST_SKIP() << "one rank has nobody to wait for";
  expect_error_in_time(*comm_, *device_, true);
  expect_error_in_time(*comm_, *device_, false);
  GpuExchangeChecks(*exchange_, *device_, nullptr).expect_all_to_all(1000);  // another exchange lives
}

}  // namespace
}  // namespace oktopk::nccl_test
