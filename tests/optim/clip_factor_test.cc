// SPDX-License-Identifier: Apache-2.0
// One factor for all ranks, which bounds the norm of the mean gradient.
#include "oktopk/optim/optimiser.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "oktopk/laws/inputs.h"
#include "tests/support/world.h"

namespace oktopk::clip_factor_test {
namespace {

std::vector<float> factors(int P, float clip_norm, const std::function<std::vector<float>(int rank)>& gradient) {
  return gather_world("threads", P,
                      [&](Communicator& comm) { return clip_factor(comm, gradient(comm.rank()), clip_norm); });
}

TEST(ClipFactor, of_one_rank_is_the_usual_one) {
  const auto gradient = [](int) { return std::vector<float>{3, 0, -4}; };
  EXPECT_EQ(factors(1, 2.5F, gradient)[0], 0.5F);
  EXPECT_EQ(factors(1, 5, gradient)[0], 1);
  EXPECT_EQ(factors(1, 6, gradient)[0], 1);
}

TEST(ClipFactor, takes_a_gradient_in_bf16) {
  run_world("threads", 1, [](Communicator& comm) {
    const std::vector<Bf16> gradient = {to_bf16(3), to_bf16(0), to_bf16(-4)};
    EXPECT_EQ(clip_factor(comm, gradient, 2.5F), 0.5F);
  });
}

TEST(ClipFactor, is_equal_on_all_ranks_and_bounds_the_mean) {
  constexpr Index n = 50;
  const auto gradient = [](int rank) { return make_input(Input::gaussian, n, rank, 0, 3); };
  for (const int P : {3, 5}) {
    const auto all = factors(P, 0.25F, gradient);
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i) {
      double mean = 0;
      for (int r = 0; r < P; ++r) mean += double{all[0]} * gradient(r)[i] / P;
      squares += mean * mean;
    }
    EXPECT_LE(std::sqrt(squares), 0.25 * (1 + 1e-6));
    for (const float factor : all) EXPECT_EQ(factor, all[0]);
  }
}

TEST(ClipFactor, is_the_root_mean_square_of_the_norms) {
  const auto gradient = [](int rank) { return std::vector<float>(4, rank == 2 ? 3.0F : 0.0F); };
  for (const float factor : factors(3, 1, gradient)) EXPECT_FLOAT_EQ(factor, 1 / std::sqrt(36.0F / 3));
}

TEST(ClipFactor, is_one_when_a_rank_is_not_finite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const float factor :
         factors(3, 1e-3F, [&](int rank) { return std::vector<float>(2, rank == 1 ? bad : 7.0F); }))
      EXPECT_EQ(factor, 1);
}

TEST(ClipFactor, of_nothing_and_of_zeros_is_one) {
  EXPECT_EQ(factors(3, 1, [](int) { return std::vector<float>(); })[0], 1);
  EXPECT_EQ(factors(3, 1, [](int) { return std::vector<float>(5); })[0], 1);
}

TEST(ClipFactor, norm_that_is_not_positive_is_refused) {
  run_world("threads", 1, [](Communicator& comm) {
    const std::vector<float> gradient = {3, 4};
    for (const float norm : {0.0F, -1.0F, std::numeric_limits<float>::infinity(), std::nanf("")})
      EXPECT_THROW(clip_factor(comm, gradient, norm), UsageError) << norm;
  });
}

}  // namespace
}  // namespace oktopk::clip_factor_test
