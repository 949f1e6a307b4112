// SPDX-License-Identifier: Apache-2.0
// Small collectives beyond the conformance checks of every transport: every P up to 33, values for which order
// matters, damage, and the texts of disagreement.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "oktopk/comm/collectives.h"
#include "oktopk/laws/faults.h"
#include "oktopk/tune/cost.h"
#include "tests/support/message.h"
#include "tests/support/world.h"

namespace oktopk::small_collectives_test {
namespace {

template <class T>
std::vector<std::vector<T>> reduce(const std::vector<std::vector<T>>& of_ranks, Reduction reduction) {
  return gather_world("threads", static_cast<int>(of_ranks.size()), [&](Communicator& comm) {
    Workspace work;
    CountingCommunicator counting(comm);
    std::vector<T> values = of_ranks[static_cast<std::size_t>(comm.rank())];
    allreduce_small(counting, std::span<T>(values), reduction, work);
    const auto rounds = static_cast<std::uint64_t>(ceil_log2(comm.size()));
    EXPECT_EQ(counting.traffic().messages_sent, rounds);
    if (std::is_integral_v<T> || reduction != Reduction::sum) {  // sums of floats travel one by one
      EXPECT_EQ(counting.traffic().bytes_sent, rounds * (values.size() * sizeof(T) + kCheckBytes));
    }
    return values;
  });
}

TEST(AllreduceSmall, every_rank_counts_once_for_any_P) {
  for (std::size_t P = 1; P <= 33; ++P) {
    // A digit of base 5 for each of 27 ranks: a rank that counts twice, or not, shows in its digit.
    std::vector<std::vector<std::uint64_t>> values(P, std::vector<std::uint64_t>(2));
    std::vector<std::uint64_t> truth(2);
    std::uint64_t digit = 1;
    for (std::size_t r = 0; r < P; ++r, digit = r == 27 ? 1 : digit * 5) {
      values[r][r / 27] = digit;
      truth[r / 27] += digit;
    }
    for (const auto& found : reduce(values, Reduction::sum)) EXPECT_EQ(found, truth) << P;
  }
}

TEST(AllreduceSmall, sums_of_floats_are_in_rank_order) {
  for (const std::size_t P : {2U, 3U, 5U, 8U, 12U}) {
    std::vector<std::vector<float>> values(P);
    float truth = 0;
    for (std::size_t r = 0; r < P; ++r) {
      const float value = r % 3 == 0 ? 1e8F : r % 3 == 1 ? 1.0F : -1e8F;
      values[r] = {value};
      truth = r == 0 ? value : truth + value;
    }
    for (const auto& found : reduce(values, Reduction::sum)) EXPECT_EQ(found[0], truth);
  }
}

// std::max and std::min would decide these cases by the order of their arguments.
TEST(AllreduceSmall, max_and_min_of_floats_agree_on_zeros_and_nans) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const std::size_t P : {2U, 3U, 5U, 7U, 8U, 12U}) {
    for (std::size_t odd = 0; odd < P; ++odd) {
      std::vector<std::vector<double>> values(P, {0.0, 1.0});
      values[odd] = {-0.0, nan};
      for (const auto& found : reduce(values, Reduction::max)) {
        EXPECT_EQ(std::bit_cast<std::uint64_t>(found[0]), std::bit_cast<std::uint64_t>(0.0));
        EXPECT_TRUE(std::isnan(found[1]));
      }
      for (const auto& found : reduce(values, Reduction::min)) {
        EXPECT_EQ(std::bit_cast<std::uint64_t>(found[0]), std::bit_cast<std::uint64_t>(-0.0));
        EXPECT_EQ(found[1], 1.0);
      }
    }
  }
}

TEST(AllreduceSmall, partial_sums_may_overflow_where_the_sum_fits) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (const auto& found : reduce<std::int64_t>({{most}, {-most}, {most}, {-most}, {7}}, Reduction::sum))
    EXPECT_EQ(found[0], 7);
  for (const auto& found : reduce<std::int64_t>({{most}, {most}, {-most}, {-most}, {7}}, Reduction::sum))
    EXPECT_EQ(found[0], 7);
}

TEST(AllreduceSmall, damage_is_an_error_and_never_a_wrong_result) {
  for (const int P : {2, 3, 5, 8}) {
    for (const FaultKind kind : {FaultKind::corrupt, FaultKind::truncate, FaultKind::drop}) {
      for (int at = 0; at < ceil_log2(P); ++at) {
        const auto thrown = gather_world(
            "threads", P,
            [&](Communicator& comm) {
              const Fault fault{kind, static_cast<std::uint64_t>(at), 3};
              FaultyCommunicator faulty(comm, comm.rank() == P / 2 ? fault : Fault{});
              Workspace work;
              std::vector<std::uint32_t> values(9, 1);
              try {
                allreduce_small(faulty, std::span<std::uint32_t>(values), Reduction::sum, work);
              } catch (const CommError&) {
                return 1;
              }
              EXPECT_EQ(values, std::vector<std::uint32_t>(9, static_cast<std::uint32_t>(P)));
              return 0;
            },
            std::chrono::milliseconds(300));
        EXPECT_GE(std::count(thrown.begin(), thrown.end(), 1), 1) << P << " " << to_string(kind);
      }
    }
  }
}

// The texts of two ranks, and the error that both throw.
std::string disagreement(const std::string& first, const std::string& second) {
  const auto texts = gather_world("threads", 2, [&](Communicator& comm) {
    Workspace work;
    return message_of([&] { require_equal(comm, "test", comm.rank() == 0 ? first : second, work); });
  });
  EXPECT_EQ(texts[0], texts[1]);
  return texts[0];
}

TEST(RequireEqual, error_names_the_first_item_that_differs) {
  EXPECT_EQ(disagreement("n = 8, k = 2", "n = 8, k = 2"), "accepted");
  EXPECT_EQ(disagreement("n = 8, k = 2", "n = 8, k = 20"), "test: rank 1 has k = 20, rank 0 has k = 2");
  EXPECT_EQ(disagreement("n = 8, k = 2", "n = 8"), "test: rank 1 has nothing more, rank 0 has k = 2");
  EXPECT_EQ(disagreement("", "n = 8"), "test: rank 1 has n = 8, rank 0 has nothing more");
  EXPECT_EQ(disagreement("a, b", "a, , b"), "test: rank 1 has nothing more, rank 0 has b");
}

TEST(RequireEqual, error_shows_a_part_of_long_items) {
  std::string long_list(5000, 'x');
  const std::string other = long_list + "y";
  long_list += "z";
  const std::string shown(60, 'x');
  EXPECT_EQ(disagreement(long_list, other), "test: rank 1 has " + shown + "y, rank 0 has " + shown + "z");
}

}  // namespace
}  // namespace oktopk::small_collectives_test
