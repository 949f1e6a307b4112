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
  run_threads(3, [&](Communicator& comm) {
    const auto exchange = make(comm, options_with(kShort));
    float sum = 1;
    void* stream = FakeGpu::make_stream();
    barrier(comm);
    if (comm.rank() == 1) return barrier(comm);  // its destructor comes after the others have given up
    exchange->all_reduce(&sum, 1, stream);
    const std::string text = message_of<CommError>([&] { exchange->wait(stream); });
    EXPECT_NE(text.find("nccl exchange: wait "), std::string::npos) << text;
    EXPECT_NE(message_of<CommError>([&] { exchange->all_reduce(&sum, 1, stream); }).find("the group is dead: wait "),
              std::string::npos);
    barrier(comm);
  });
  EXPECT_EQ(nccl_.aborted, 3);  // rank 1's communicator does not end in order
  EXPECT_EQ(nccl_.destroyed, 0);
}

TEST_F(NcclFailure, late_operation_is_an_error_of_check_though_others_follow) {
  run_threads(1, [&](Communicator& comm) {
    const auto exchange = make(comm, options_with(kShort));
    float sum = 1;
    void* stream = FakeGpu::make_stream();
    exchange->all_reduce(&sum, 1, stream);
    exchange->check();
    nccl_.ops_hang = true;
    const auto begin = std::chrono::steady_clock::now();
    const std::string text = message_of<CommError>([&] {
      for (;;) {
        exchange->all_reduce(&sum, 1, stream);
        exchange->check();
        std::this_thread::sleep_for(20ms);
        if (std::chrono::steady_clock::now() - begin > 20s) return;
      }
    });
    EXPECT_NE(text.find("an earlier operation did not end within 0.2 s"), std::string::npos) << text;
    EXPECT_GE(std::chrono::steady_clock::now() - begin, kShort);
  });
  EXPECT_EQ(nccl_.aborted, 1);
}

TEST_F(NcclFailure, last_operation_is_watched_though_none_follows) {
  run_threads(2, [&](Communicator& comm) {
    const auto exchange = make(comm, options_with(kShort));
    float sum[2] = {1, 1};
    void* stream = FakeGpu::make_stream();
    if (comm.rank() == 0) {
      exchange->all_reduce(&sum[0], 1, stream);  // gets the mark, which is not passed before rank 1 comes
      exchange->all_reduce(&sum[1], 1, stream);  // is behind the mark
      barrier(comm);
      EXPECT_NE(message_of<CommError>([&] {
                  for (int i = 0; i < 1000; ++i) {
                    exchange->check();
                    std::this_thread::sleep_for(20ms);
                  }
                }),
                "accepted");
    } else {
      exchange->all_reduce(&sum[0], 1, stream);
      barrier(comm);
    }
    barrier(comm);
  });
}

TEST_F(NcclFailure, busy_stream_is_not_late) {
  run_threads(1, [&](Communicator& comm) {
    const auto exchange = make(comm, options_with(kShort));
    float sum = 1;
    void* stream = FakeGpu::make_stream();
    for (int i = 0; i < 20; ++i) {
      exchange->all_reduce(&sum, 1, stream);
      std::this_thread::sleep_for(30ms);
      exchange->check();
    }
  });
  EXPECT_EQ(nccl_.aborted, 0);
}

TEST_F(NcclFailure, error_after_the_call_is_reported_and_aborts) {
  run_threads(2, [&](Communicator& comm) {
    const auto exchange = make(comm, options_with(kLong));
    const auto other = make(comm, options_with(kLong));
    barrier(comm);
    nccl_.has_error = true;
    const std::string text = message_of<CommError>([&] { exchange->check(); });
    EXPECT_NE(text.find("an earlier operation failed: remote process exited"), std::string::npos) << text;
    EXPECT_NE(text.find("NCCL_DEBUG=WARN"), std::string::npos) << text;
    EXPECT_NE(message_of<CommError>([&] { other->wait(FakeGpu::make_stream()); }), "accepted");
  });
  EXPECT_EQ(nccl_.aborted, 4);
}

TEST_F(NcclFailure, operation_that_is_refused_aborts_and_ends_the_group_call) {
  run_threads(1, [&](Communicator& comm) {
    const auto device = make_cpu_device();
    const auto exchange = make(comm, options_with(kLong));
    float x[2] = {};
    nccl_.refuses = true;
    const std::string text = message_of<CommError>([&] { exchange->all_to_all(x, x + 1, 4, nullptr); });
    EXPECT_NE(text.find("nccl exchange: all_to_all failed: unhandled system error"), std::string::npos) << text;
    EXPECT_EQ(nccl_.open_groups, 0);
    EXPECT_EQ(nccl_.aborted, 1);
    nccl_.refuses = false;
    const auto other = make(comm, options_with(kLong));
    GpuExchangeChecks(*other, *device, FakeGpu::make_stream()).expect_all_to_all(3);
  });
}

TEST_F(NcclFailure, killed_exchange_refuses_everything) {
  run_threads(2, [&](Communicator& comm) {
    const auto exchange = make(comm, options_with(kLong));
    float sum[4] = {};
    barrier(comm);
    exchange->kill();
    exchange->kill();
    const std::string dead = "nccl exchange: check: the group is dead: it was killed";
    EXPECT_NE(message_of<CommError>([&] { exchange->check(); }).find(dead), std::string::npos);
    EXPECT_THROW(exchange->wait(nullptr), CommError);
    EXPECT_THROW(exchange->all_reduce(sum, 1, nullptr), CommError);
    EXPECT_THROW(exchange->all_gather(sum, sum + 2, 4, nullptr), CommError);
    EXPECT_THROW(exchange->all_to_all(sum, sum + 2, 4, nullptr), CommError);
  });
  EXPECT_EQ(nccl_.aborted, 2);
  EXPECT_EQ(nccl_.destroyed, 0);
}

TEST_F(NcclFailure, kill_on_one_rank_ends_the_wait_of_another) {
  const auto begin = std::chrono::steady_clock::now();
  run_threads(2, [&](Communicator& comm) {
    const auto exchange = make(comm, options_with(kLong));
    float sum = 1;
    void* stream = FakeGpu::make_stream();
    if (comm.rank() == 1) exchange->all_reduce(&sum, 1, stream);
    barrier(comm);
    if (comm.rank() == 0) return exchange->kill();
    const std::string text = message_of<CommError>([&] { exchange->wait(stream); });
    EXPECT_NE(text.find("rank 1: nccl exchange: wait failed: remote process exited"), std::string::npos) << text;
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong);
}

TEST_F(NcclFailure, gpu_that_fails_is_a_device_error_and_aborts) {
  run_threads(1, [&](Communicator& comm) {
    const auto exchange = make(comm, options_with(kLong));
    FakeGpu::is_broken = true;
    EXPECT_EQ(message_of<DeviceError>([&] { exchange->wait(nullptr); }),
              "rank 0: nccl exchange: an illegal memory access was encountered");
    EXPECT_THROW(exchange->check(), CommError);
  });
  EXPECT_EQ(nccl_.aborted, 1);
}

TEST_F(NcclFailure, abort_that_never_returns_does_not_hang) {
  run_threads(1, [&](Communicator& comm) {
    const auto exchange = make(comm, options_with(kShort));
    nccl_.abort_hangs = true;
    const auto begin = std::chrono::steady_clock::now();
    exchange->kill();
    EXPECT_GE(std::chrono::steady_clock::now() - begin, kShort);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  });
  EXPECT_EQ(nccl_.aborted, 0);
  nccl_.abort_hangs = false;
  while (nccl_.aborted == 0) std::this_thread::sleep_for(1ms);
}

}  // namespace
}  // namespace oktopk::nccl_failure_test
