// SPDX-License-Identifier: Apache-2.0
// Dense sums beyond the conformance checks of every transport (tests/support/region_conformance.h): volume, jitter,
// refused cuts, allocations.
#include "oktopk/allreduce/parts/dense_sum.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "oktopk/comm/decorators.h"
#include "oktopk/laws/faults.h"
#include "tests/support/region_conformance.h"
#include "tests/support/world.h"

namespace oktopk::dense_sum_test {
namespace {

using conformance::kDenseRounds;
using conformance::kUpperHalf;

class DenseSum : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, DenseSum, testing::ValuesIn(kWorldSizes), testing::PrintToStringParamName());

TEST_P(DenseSum, sends_as_many_messages_and_bytes_as_stated) {
  const int P = GetParam();
  run_world("threads", P, [&](Communicator& comm) {
    Workspace work;
    const std::size_t n = static_cast<std::size_t>(P) * 4;
    const auto bytes = static_cast<std::uint64_t>(P - 1) * 4 * sizeof(float);
    const auto cuts = conformance::all_cuts(P, n).front();
    std::vector<float> data(n);
    for (const DenseRounds rounds : kDenseRounds) {
      const int messages = rounds == DenseRounds::ring ? P - 1 : std::bit_width(static_cast<unsigned>(P - 1));
      for (const bool is_half : {false, true}) {
        CountingCommunicator counting(comm);
        dense_reduce_scatter(counting, data, cuts, rounds, work, is_half ? kUpperHalf : plain_sums());
        EXPECT_EQ(counting.traffic().messages_sent, static_cast<std::uint64_t>(messages));
        EXPECT_EQ(counting.traffic().bytes_sent, is_half ? bytes / 2 : bytes);
        dense_allgather(counting, std::as_writable_bytes(std::span(data)), sizeof(float), cuts, rounds, work);
        EXPECT_EQ(counting.traffic().messages_sent, static_cast<std::uint64_t>(2 * messages));
        EXPECT_EQ(counting.traffic().bytes_sent, (is_half ? bytes / 2 : bytes) + bytes);
      }
    }
  });
}

TEST_P(DenseSum, repeats_its_bits_under_jitter) {
  const int P = GetParam();
  for (const DenseRounds rounds : kDenseRounds) {
    const auto sums = [&](bool has_jitter) {
      return gather_world("threads", P, [&](Communicator& comm) {
        JitterCommunicator jitter(comm, 5, std::chrono::microseconds(has_jitter ? 300 : 0));
        Workspace work;
        std::mt19937 random(static_cast<unsigned>(comm.rank()));
        std::vector<float> data(500);
        for (float& value : data) value = std::uniform_real_distribution<float>(-1, 1)(random);
        const auto cuts = conformance::all_cuts(P, data.size()).back();
        dense_reduce_scatter(jitter, data, cuts, rounds, work);
        dense_allgather(jitter, std::as_writable_bytes(std::span(data)), sizeof(float), cuts, rounds, work);
        return data;
      });
    };
    const auto calm = sums(false);
    EXPECT_EQ(calm, sums(true));
    for (const auto& data : calm) EXPECT_EQ(data, calm.front());
  }
}

TEST(DenseSum, bad_cuts_are_usage_errors_before_anything_is_sent) {
  run_world("threads", 3, [](Communicator& comm) {
    Workspace work;
    std::vector<float> data(6);
    const auto bytes = std::as_writable_bytes(std::span(data));
    using Cuts = std::vector<std::size_t>;
    for (const Cuts& cuts : {Cuts{0, 2, 6}, Cuts{0, 2, 4, 5}, Cuts{1, 2, 4, 6}, Cuts{0, 4, 2, 6}})
      for (const DenseRounds rounds : kDenseRounds) {
        EXPECT_THROW(dense_reduce_scatter(comm, data, cuts, rounds, work), UsageError);
        EXPECT_THROW(dense_allgather(comm, bytes, sizeof(float), cuts, rounds, work), UsageError);
        EXPECT_THROW(gather_regions(comm, data, cuts, work), UsageError);
      }
    barrier(comm);
  });
}

}  // namespace
}  // namespace oktopk::dense_sum_test
