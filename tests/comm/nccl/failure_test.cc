// SPDX-License-Identifier: Apache-2.0
// How the exchange over NCCL fails, with a fake NCCL between threads: in time, with a reason, and with an abort.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/gpu_exchange.h"
#include "oktopk/device/device.h"
#include "tests/comm/nccl/world.h"
#include "tests/support/gpu_exchange_conformance.h"
#include "tests/support/message.h"

namespace oktopk::nccl_failure_test {
namespace {

using namespace std::chrono_literals;

class NcclFailure : public NcclWorld {};

TEST_F(NcclFailure, rank_that_stays_away_is_an_error_of_wait_in_time) {
  with_exchange(3, kShort, [&](Communicator& comm, GpuExchange& exchange, void* stream) {
    float sum = 1;
    barrier(comm);
    if (comm.rank() == 1) return barrier(comm);  // its destructor comes after the others have given up
    exchange.all_reduce(&sum, 1, stream);
    expect_error<CommError>("nccl exchange: wait ", [&] { exchange.wait(stream); });
    expect_error<CommError>("the group is dead: wait ", [&] { exchange.all_reduce(&sum, 1, stream); });
    barrier(comm);
  });
  EXPECT_EQ(nccl_.aborted, 3);  // rank 1's communicator does not end in order
  EXPECT_EQ(nccl_.destroyed, 0);
}

TEST_F(NcclFailure, late_operation_is_an_error_of_check_though_others_follow) {
  with_exchange(1, kShort, [&](Communicator&, GpuExchange& exchange, void* stream) {
    float sum = 1;
    exchange.all_reduce(&sum, 1, stream);
    exchange.check();
    nccl_.ops_hang = true;
    const auto begin = std::chrono::steady_clock::now();
    expect_error<CommError>("an earlier operation did not end within 0.2 s", [&] {
      for (int i = 0; i < 1000; ++i) {
        exchange.all_reduce(&sum, 1, stream);
        exchange.check();
        std::this_thread::sleep_for(20ms);
      }
    });
    EXPECT_GE(std::chrono::steady_clock::now() - begin, kShort);
  });
  EXPECT_EQ(nccl_.aborted, 1);
}

TEST_F(NcclFailure, last_operation_is_watched_though_none_follows) {
  with_exchange(2, kShort, [&](Communicator& comm, GpuExchange& exchange, void* stream) {
    float sum[2] = {1, 1};
    exchange.all_reduce(&sum[0], 1, stream);  // rank 0 gets the mark, which is not passed before rank 1 comes
    if (comm.rank() == 0) exchange.all_reduce(&sum[1], 1, stream);  // is behind the mark
    barrier(comm);
    if (comm.rank() == 0) {
      expect_error<CommError>("did not end", [&] {
        for (int i = 0; i < 1000; ++i) {
          exchange.check();
          std::this_thread::sleep_for(20ms);
        }
      });
    }
    barrier(comm);
  });
}

TEST_F(NcclFailure, busy_stream_is_not_late) {
  with_exchange(1, kShort, [&](Communicator&, GpuExchange& exchange, void* stream) {
    float sum = 1;
    for (int i = 0; i < 20; ++i) {
      exchange.all_reduce(&sum, 1, stream);
      std::this_thread::sleep_for(30ms);
      exchange.check();
    }
  });
  EXPECT_EQ(nccl_.aborted, 0);
}

TEST_F(NcclFailure, error_after_the_call_is_reported_and_aborts) {
  with_exchange(2, kLong, [&](Communicator& comm, GpuExchange& exchange, void* stream) {
    const auto other = make(comm, options_with(kLong));
    barrier(comm);
    nccl_.has_error = true;
    const std::string text = message_of<CommError>([&] { exchange.check(); });
    expect_contains(text, "an earlier operation failed: remote process exited");
    expect_contains(text, "NCCL_DEBUG=WARN");
    EXPECT_THROW(other->wait(stream), CommError);
  });
  EXPECT_EQ(nccl_.aborted, 4);
}

TEST_F(NcclFailure, operation_that_is_refused_aborts_and_ends_the_group_call) {
  with_exchange(1, kLong, [&](Communicator& comm, GpuExchange& exchange, void* stream) {
    float x[2] = {};
    nccl_.refuses = true;
    expect_error<CommError>("nccl exchange: all_to_all failed: unhandled system error",
                            [&] { exchange.all_to_all(x, x + 1, 4, nullptr); });
    EXPECT_EQ(nccl_.open_groups, 0);
    EXPECT_EQ(nccl_.aborted, 1);
    nccl_.refuses = false;
    const auto other = make(comm, options_with(kLong));
    GpuExchangeChecks(*other, *make_cpu_device(), stream).expect_all_to_all(3);
  });
}

TEST_F(NcclFailure, killed_exchange_refuses_everything) {
  with_exchange(2, kLong, [&](Communicator& comm, GpuExchange& exchange, void*) {
    float sum[4] = {};
    barrier(comm);
    exchange.kill();
    exchange.kill();
    expect_error<CommError>("nccl exchange: check: the group is dead: it was killed", [&] { exchange.check(); });
    EXPECT_THROW(exchange.wait(nullptr), CommError);
    EXPECT_THROW(exchange.all_reduce(sum, 1, nullptr), CommError);
    EXPECT_THROW(exchange.all_gather(sum, sum + 2, 4, nullptr), CommError);
    EXPECT_THROW(exchange.all_to_all(sum, sum + 2, 4, nullptr), CommError);
  });
  EXPECT_EQ(nccl_.aborted, 2);
  EXPECT_EQ(nccl_.destroyed, 0);
}

TEST_F(NcclFailure, kill_on_one_rank_ends_the_wait_of_another) {
  const auto begin = std::chrono::steady_clock::now();
  with_exchange(2, kLong, [&](Communicator& comm, GpuExchange& exchange, void* stream) {
    float sum = 1;
    if (comm.rank() == 1) exchange.all_reduce(&sum, 1, stream);
    barrier(comm);
    if (comm.rank() == 0) return exchange.kill();
    expect_error<CommError>("rank 1: nccl exchange: wait failed: remote process exited",
                            [&] { exchange.wait(stream); });
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong);
}

TEST_F(NcclFailure, gpu_that_fails_is_a_device_error_and_aborts) {
  with_exchange(1, kLong, [&](Communicator&, GpuExchange& exchange, void*) {
    FakeGpu::is_broken = true;
    EXPECT_EQ(message_of<DeviceError>([&] { exchange.wait(nullptr); }),
              "rank 0: nccl exchange: an illegal memory access was encountered");
    EXPECT_THROW(exchange.check(), CommError);
  });
  EXPECT_EQ(nccl_.aborted, 1);
}

TEST_F(NcclFailure, abort_that_never_returns_does_not_hang) {
  with_exchange(1, kShort, [&](Communicator&, GpuExchange& exchange, void*) {
    nccl_.abort_hangs = true;
    const auto begin = std::chrono::steady_clock::now();
    exchange.kill();
    EXPECT_GE(std::chrono::steady_clock::now() - begin, kShort);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  });
  EXPECT_EQ(nccl_.aborted, 0);
  nccl_.abort_hangs = false;
  while (nccl_.aborted == 0) std::this_thread::sleep_for(1ms);
}

}  // namespace
}  // namespace oktopk::nccl_failure_test
