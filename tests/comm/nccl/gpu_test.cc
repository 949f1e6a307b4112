// SPDX-License-Identifier: Apache-2.0
// The exchange over the real NCCL on a GPU, as one rank. Without GPU or NCCL these tests say that they were skipped.
// Several ranks on one GPU must be processes: tests/mpi/nccl_test.cc.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/gpu_exchange.h"
#include "oktopk/device/device.h"
#include "tests/support/gpu_exchange_conformance.h"
#include "tests/support/message.h"
#include "tests/support/world.h"

namespace oktopk::nccl_gpu_test {
namespace {

class NcclOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    comm_ = std::move(make_thread_world(1).front());
    const std::string text = message_of<DeviceError>([&] { exchange_ = make_nccl_exchange(*comm_); });
    if (text != "accepted") GTEST_SKIP() << text;
    device_ = make_cuda_device();
  }

  std::unique_ptr<Communicator> comm_;
  std::unique_ptr<GpuExchange> exchange_;
  std::unique_ptr<Device> device_;
};

TEST_F(NcclOnGpu, operations_give_a_rank_alone_what_it_sent) {
  GpuExchangeChecks(*exchange_, *device_, nullptr).run_all();
}

TEST_F(NcclOnGpu, memory_of_the_host_is_refused_and_harms_nothing) {
  std::vector<float> host(4);
  EXPECT_EQ(message_of([&] { exchange_->all_reduce(host.data(), 4, nullptr); }),
            "all_reduce: sum lies in host memory, but it must lie on GPU 0");
  GpuExchangeChecks(*exchange_, *device_, nullptr).expect_all_reduce(1000);
}

TEST_F(NcclOnGpu, killed_exchange_refuses_and_another_can_be_made) {
  exchange_->kill();
  EXPECT_THROW(exchange_->check(), CommError);
  const auto other = make_nccl_exchange(*comm_);
  GpuExchangeChecks(*other, *device_, nullptr).expect_all_to_all(1000);
}

TEST_F(NcclOnGpu, ordinal_that_does_not_exist_is_refused) {
  EXPECT_EQ(message_of([&] {
              make_nccl_exchange(*comm_, {.ordinal = 1000});
            }).find("nccl exchange: rank 0: ordinal = 1000, but it must be in 0.."),
            0U);
}

}  // namespace
}  // namespace oktopk::nccl_gpu_test
