// SPDX-License-Identifier: Apache-2.0
// The exchange over NCCL, with a fake NCCL between threads (fake_nccl.cc): what it computes, and how it fails. The
// tests with a GPU are in gpu_test.cc and tests/mpi/nccl_test.cc.
#include "oktopk/comm/gpu_exchange.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/flight.h"
#include "tests/comm/nccl/world.h"
#include "tests/support/gpu_exchange_conformance.h"
#include "tests/support/message.h"
#include "tests/support/world.h"

namespace oktopk::nccl_test {
namespace {

using namespace std::chrono_literals;

class Nccl : public NcclWorld {};

void expect_everywhere(const std::vector<std::string>& texts, const std::string& expected) {
  expect_contains(texts.front(), expected);
  for (const std::string& text : texts) EXPECT_EQ(text, texts.front());
}

TEST_F(Nccl, operations_give_every_rank_what_it_is_due) {
  for (const int P : {1, 2, 3, 4}) {
    run_threads(P, [&](Communicator& comm) {
      const auto exchange = make(comm, options_with(kLong));
      EXPECT_EQ(exchange->rank(), comm.rank());
      EXPECT_EQ(exchange->size(), P);
      const auto device = make_cpu_device();
      GpuExchangeChecks(*exchange, *device, FakeGpu::make_stream()).run_all();
      GpuExchangeChecks(*exchange, *device, FakeGpu::make_stream()).expect_all_reduce(10);
    });
    EXPECT_EQ(nccl_.destroyed.exchange(0), P);
    EXPECT_EQ(nccl_.finalised.exchange(0), P);
  }
  EXPECT_EQ(nccl_.aborted, 0);
  EXPECT_EQ(nccl_.misused, 0);
}

// The operations of the exchange in a rank's record, by label and state.
std::vector<std::string> recorded(Communicator& comm) {
  std::vector<std::string> found;
  for (const FlightOperation& o : comm.flight()->snapshot().operations)
    if (o.communicator.ends_with(":nccl")) found.push_back(text_of(o.label, " ", to_string(o.state)));
  return found;
}

TEST_F(Nccl, operations_are_in_the_flight_recorder) {
  using Texts = std::vector<std::string>;
  with_exchange(3, kLong, [&](Communicator& comm, GpuExchange& exchange, void* stream) {
    std::vector<float> send(30, 1.0F), receive(30);
    exchange.all_to_all(send.data(), receive.data(), 40, stream);
    EXPECT_EQ(recorded(comm), Texts{"all_to_all started"});
    exchange.all_reduce(send.data(), 30, stream);
    exchange.wait(stream);
    EXPECT_EQ(recorded(comm), (Texts{"all_to_all done", "all_reduce done"}));
    const FlightSnapshot snapshot = comm.flight()->snapshot();
    const FlightLine& line = snapshot.communicators.back();
    EXPECT_EQ(line.name, "world/0:nccl");
    EXPECT_EQ(line.transport, "nccl");
    EXPECT_EQ(line.ranks, (std::vector<int>{0, 1, 2}));
    for (int peer = 0; peer < 3; ++peer)
      EXPECT_EQ(line.sent[static_cast<std::size_t>(peer)], peer == comm.rank() ? 0u : 2u);
    for (const FlightMessage& m : snapshot.operations[snapshot.operations.size() - 2].messages) EXPECT_EQ(m.bytes, 40u);
  });
}

TEST_F(Nccl, two_exchanges_do_not_mix) {
  run_threads(2, [&](Communicator& comm) {
    const auto device = make_cpu_device();
    const auto first = make(comm, options_with(kLong));
    const auto second = make(comm, options_with(kLong));
    GpuExchangeChecks(*second, *device, FakeGpu::make_stream()).expect_all_to_all(5);
    GpuExchangeChecks(*first, *device, FakeGpu::make_stream()).expect_all_gather(5, false);
  });
}

TEST_F(Nccl, library_that_one_rank_lacks_is_the_same_error_everywhere) {
  for (const int lacking : {0, 2}) {
    const auto texts = refusals<DeviceError>(
        3, [&](int rank) { return options_with(kLong, rank == lacking ? "/no/such/libnccl.so.2" : FAKE_NCCL_PATH); });
    expect_everywhere(texts, "nccl exchange: rank " + std::to_string(lacking) +
                                 ": /no/such/libnccl.so.2 was not found: install NCCL, or give its path in "
                                 "NcclOptions::library");
  }
  EXPECT_EQ(nccl_.aborted + nccl_.destroyed, 0);
}

TEST_F(Nccl, different_versions_are_refused) {
  const std::string copy = std::filesystem::temp_directory_path() / ("fake_nccl_copy_" + std::to_string(getpid()));
  std::filesystem::copy_file(FAKE_NCCL_PATH, copy, std::filesystem::copy_options::overwrite_existing);
  load_fake_nccl(copy).version = 22901;
  const auto texts =
      refusals<UsageError>(3, [&](int rank) { return options_with(kLong, rank == 1 ? copy : FAKE_NCCL_PATH); });
  std::filesystem::remove(copy);
  expect_everywhere(texts, "nccl exchange: rank 1 has NCCL 2.29.1, rank 0 has NCCL 2.27.3");
}

TEST_F(Nccl, missing_gpu_of_one_rank_is_the_same_error_everywhere) {
  const auto texts = gather_world("threads", 3, [&](Communicator& comm) {
    return message_of<DeviceError>([&] {
      make_nccl_exchange(comm, options_with(kLong), [&]() -> std::unique_ptr<GpuCalls> {
        if (comm.rank() == 1) throw DeviceError("no GPU can be used");
        return std::make_unique<FakeGpu>(nccl_);
      });
    });
  });
  expect_everywhere(texts, "nccl exchange: rank 1: no GPU can be used");
}

TEST_F(Nccl, timeout_must_be_positive_and_finite) {
  for (const Communicator::Duration timeout : {Communicator::Duration(0), Communicator::Duration::max()})
    expect_everywhere(refusals<UsageError>(2, [&](int rank) { return options_with(rank == 1 ? timeout : kLong); }),
                      "nccl exchange: rank 1: timeout = ");
}

TEST_F(Nccl, rank_that_cannot_start_is_the_same_error_everywhere) {
  for (const int failing : {0, 2}) {
    nccl_.failing_rank = failing;
    expect_everywhere(
        refusals<CommError>(3, [](int) { return options_with(kShort); }),
        text_of("nccl exchange: rank ", failing, ": NCCL cannot start: unhandled system error: the last error"));
    EXPECT_EQ(nccl_.aborted.exchange(0), 2);
  }
  EXPECT_EQ(nccl_.destroyed, 0);
}

TEST_F(Nccl, rank_that_never_joins_ends_the_start_in_time) {
  nccl_.absent_rank = 1;
  const auto texts = gather_world(
      "threads", 3, [&](Communicator& comm) { return message_of<CommError>([&] { make(comm, options_with(kLong)); }); },
      1s);
  expect_everywhere(texts, "did not connect the ranks within 0.75 s");  // the communicator's timeout is shorter
  EXPECT_EQ(nccl_.aborted, 3);
}

TEST_F(Nccl, bad_memory_and_streams_are_refused_and_harm_nothing) {
  with_exchange(1, kLong, [&](Communicator&, GpuExchange& exchange, void* stream) {
    float x[8] = {};
    expect_error("all_reduce: sum is null", [&] { exchange.all_reduce(nullptr, 1, nullptr); });
    expect_error("all_to_all: send and receive overlap, but they must not",
                 [&] { exchange.all_to_all(x, x, 4, nullptr); });
    expect_error("all_gather: mine and all overlap, but mine must be rank 0's block of all, or apart from it",
                 [&] { exchange.all_gather(x, x + 1, 8, nullptr); });
    FakeGpu::on_host = &x[4];
    FakeGpu::on_gpu_3 = &x[6];
    expect_error("all_to_all: receive lies in host memory, but it must lie on GPU 0",
                 [&] { exchange.all_to_all(x, x + 4, 4, nullptr); });
    expect_error("all_gather: mine lies on GPU 3, but it must lie on GPU 0",
                 [&] { exchange.all_gather(x + 6, x, 4, nullptr); });
    expect_error("wait: the stream is cudaStreamPerThread",
                 [&] { exchange.wait(reinterpret_cast<void*>(std::uintptr_t{2})); });
    exchange.all_reduce(x, 1, stream);
    exchange.check();
  });
  EXPECT_EQ(nccl_.aborted, 0);
  EXPECT_EQ(nccl_.misused, 0);
}

}  // namespace
}  // namespace oktopk::nccl_test
