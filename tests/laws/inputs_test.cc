// SPDX-License-Identifier: Apache-2.0
#include "oktopk/laws/inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "tests/support/message.h"

namespace oktopk::inputs_test {
namespace {

TEST(Inputs, same_arguments_give_the_same_values_and_others_do_not) {
  for (const InputInfo& info : inputs()) {
    const auto x = make_input(info.kind, 500, 3, 7, 11);
    EXPECT_EQ(x, make_input(info.kind, 500, 3, 7, 11)) << info.name;
    if (info.kind == Input::zero || info.kind == Input::lonely) continue;
    EXPECT_NE(x, make_input(info.kind, 500, 4, 7, 11)) << info.name;
    EXPECT_NE(x, make_input(info.kind, 500, 3, 8, 11)) << info.name;
    EXPECT_NE(x, make_input(info.kind, 500, 3, 7, 12)) << info.name;
  }
}

TEST(Inputs, have_the_length_asked_for_and_finite_values_of_their_kind) {
  for (const InputInfo& info : inputs()) {
    EXPECT_EQ(find_input(info.name), info.kind);
    for (const Index n : {0U, 1U, 2U, 39U, 5000U}) {
      const auto x = make_input(info.kind, n, 0, 0, 1);
      EXPECT_EQ(x.size(), n);
      for (const float v : x) {
        EXPECT_TRUE(std::isfinite(v)) << info.name;
        if (info.kind < Input::dyadic) continue;  // the others: multiples of 2^-10 below a half
        EXPECT_EQ(v * 1024, std::round(v * 1024)) << info.name;
        EXPECT_LT(std::fabs(v), 0.5F) << info.name;
      }
    }
  }
  const std::string message = message_of([] { find_input("cauchy"); });
  EXPECT_NE(message.find("'cauchy'"), std::string::npos);
  EXPECT_NE(message.find("layered"), std::string::npos);
}

TEST(Inputs, kinds_are_what_their_names_say) {
  const auto magnitudes = [](Input kind) {
    std::set<float> distinct;
    for (const float v : make_input(kind, 5000, 0, 0, 1)) distinct.insert(std::fabs(v));
    return distinct.size();
  };
  EXPECT_EQ(magnitudes(Input::tied), 3u);
  EXPECT_EQ(magnitudes(Input::equal), 1u);
  EXPECT_GT(magnitudes(Input::dyadic), 200u);
  for (const float v : make_input(Input::zero, 100, 0, 0, 1)) EXPECT_EQ(v, 0);
  for (const float v : make_input(Input::lonely, 100, 1, 0, 1)) EXPECT_EQ(v, 0);
  EXPECT_NE(make_input(Input::lonely, 100, 0, 0, 1), std::vector<float>(100, 0.0F));
}

double share_of_first_sixteenth(Input kind) {
  double first = 0;
  double total = 0;
  const auto x = make_input(kind, 16000, 0, 0, 1);
  for (std::size_t i = 0; i < x.size(); ++i) {
    total += std::fabs(x[i]);
    if (i < 1000) first += std::fabs(x[i]);
  }
  return first / total;
}

TEST(Inputs, skewed_has_nearly_all_mass_in_the_first_sixteenth) {
  EXPECT_GT(share_of_first_sixteenth(Input::skewed), 0.95);
  EXPECT_NEAR(share_of_first_sixteenth(Input::dyadic), 1.0 / 16, 0.01);
}

TEST(Inputs, gaussian_has_unit_variance_and_laplace_heavier_tails) {
  const auto kurtosis = [](Input kind) {
    double squares = 0;
    double fourth = 0;
    for (const float v : make_input(kind, 100000, 0, 0, 1)) {
      squares += std::pow(v, 2);
      fourth += std::pow(v, 4);
    }
    return fourth / 100000 / std::pow(squares / 100000, 2);
  };
  EXPECT_NEAR(kurtosis(Input::gaussian), 3, 0.2);
  EXPECT_NEAR(kurtosis(Input::laplace), 6, 0.8);
}

// The top hundredth of every rank crowds into the same few places, whatever the step.
TEST(Inputs, layered_is_uneven_in_the_same_places_on_all_ranks_and_steps) {
  constexpr std::size_t n = 64000;
  const auto counts = [](int rank, std::uint64_t step) {
    const auto x = make_input(Input::layered, n, rank, step, 5);
    std::vector<float> sorted(n);
    std::transform(x.begin(), x.end(), sorted.begin(), [](float v) { return std::fabs(v); });
    std::nth_element(sorted.begin(), sorted.begin() + n / 100, sorted.end(), std::greater<>());
    std::vector<double> by_block(64, 0);
    for (std::size_t i = 0; i < n; ++i)
      if (std::fabs(x[i]) >= sorted[n / 100]) ++by_block[i / 1000];
    return by_block;
  };
  const auto a = counts(0, 0);
  const auto b = counts(1, 9);
  EXPECT_GT(*std::max_element(a.begin(), a.end()), 3 * 10.0);
  double dot = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    dot += (a[i] - 10) * (b[i] - 10);
    aa += (a[i] - 10) * (a[i] - 10);
    bb += (b[i] - 10) * (b[i] - 10);
  }
  EXPECT_GT(dot / std::sqrt(aa * bb), 0.8);
}

TEST(Inputs, large_inputs_are_the_plain_ones_while_they_fit_a_block) {
  for (const InputInfo& info : inputs()) {
    const auto small = make_input(info.kind, 3000, 2, 3, 4);
    const auto large = make_large_input(info.kind, 3000, 2, 3, 4);
    EXPECT_TRUE(std::equal(small.begin(), small.end(), large.begin(), large.end())) << info.name;
  }
}

TEST(Inputs, large_inputs_repeat_magnitudes_at_other_places) {
  constexpr Index kBlock = 1U << 20U;
  const auto x = make_large_input(Input::gaussian, 2 * kBlock + 5, 0, 0, 1);
  ASSERT_EQ(x.size(), 2 * kBlock + 5);
  double squares = 0;
  std::size_t same = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    squares += double{x[kBlock + i]} * x[kBlock + i];
    same += std::fabs(x[i] + x[kBlock + i]) < 0.001F ? 1 : 0;
  }
  EXPECT_NEAR(squares / kBlock, 1, 0.01);
  EXPECT_LT(same, kBlock / 500);  // of independent values, one in 1800
  const auto dyadic = make_large_input(Input::dyadic, kBlock + 1000, 0, 0, 1);
  for (const float v : dyadic) ASSERT_EQ(v * 1024, std::round(v * 1024));
}

TEST(Inputs, large_layers_keep_their_scales) {
  constexpr Index n = (1U << 20U) + 4096;
  const auto magnitude = [](const auto& x, std::size_t begin, std::size_t end) {
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += std::fabs(x[i]);
    return sum / static_cast<double>(end - begin);
  };
  const auto plain = make_input(Input::layered, n, 0, 0, 1);
  const auto large = make_large_input(Input::layered, n, 0, 0, 1);
  for (std::size_t i = 0; i < 8; ++i) {
    const double expected = magnitude(plain, i * n / 8, (i + 1) * n / 8);
    EXPECT_NEAR(magnitude(large, i * n / 8, (i + 1) * n / 8), expected, 0.1 * expected) << i;
  }
}

}  // namespace
}  // namespace oktopk::inputs_test
