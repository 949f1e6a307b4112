// SPDX-License-Identifier: Apache-2.0
#include "oktopk/laws/gradient_stream.h"

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "tests/support/message.h"

namespace oktopk::gradient_stream_test {
namespace {

constexpr Index kN = 20000;

std::vector<float> at(GradientStream& stream, std::uint64_t step) {
  const auto x = stream.at(step);
  return {x.begin(), x.end()};
}

std::vector<float> at(const StreamSpec& spec, int rank, std::uint64_t step) {
  GradientStream stream(spec, rank);
  return at(stream, step);
}

double correlation(std::span<const float> a, std::span<const float> b) {
  double ab = 0;
  double aa = 0;
  double bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += double{a[i]} * b[i];
    aa += double{a[i]} * a[i];
    bb += double{b[i]} * b[i];
  }
  return ab / std::sqrt(aa * bb);
}

double variance(std::span<const float> x) {
  double squares = 0;
  for (const float v : x) squares += double{v} * v;
  return squares / static_cast<double>(x.size());
}

const std::vector<StreamSpec> kSpecs = {
    {.data = Input::gaussian, .n = kN},
    {.data = Input::gaussian, .n = kN, .shared = 0.3},
    {.data = Input::gaussian, .n = kN, .event = StreamEvent::jump},
    {.data = Input::laplace, .n = kN, .shared = 1},
    {.data = Input::layered, .n = kN},
    {.data = Input::layered, .n = kN, .shared = 0.5, .event = StreamEvent::rough, .steps = 40},
    {.data = Input::dyadic, .n = kN},
};

TEST(GradientStream, at_gives_the_same_numbers_for_the_same_spec_rank_and_step_in_any_order) {
  for (const StreamSpec& spec : kSpecs) {
    GradientStream forward(spec, 3);
    GradientStream backward(spec, 3);
    std::vector<std::vector<float>> seen;
    for (std::uint64_t step = 0; step < 40; ++step) seen.push_back(at(forward, step));
    for (std::uint64_t step = 40; step-- > 0;) EXPECT_EQ(at(backward, step), seen[step]) << step;
  }
}

TEST(GradientStream, at_another_rank_seed_or_step_gives_other_numbers) {
  for (const StreamSpec& spec : kSpecs) {
    const auto x = at(spec, 3, 7);
    EXPECT_EQ(x.size(), kN);
    EXPECT_NE(x, at(spec, 3, 8));
    if (spec.shared < 1) {
      EXPECT_NE(x, at(spec, 4, 7));
    }
    StreamSpec other = spec;
    other.seed = 2;
    EXPECT_NE(x, at(other, 3, 7));
  }
}

// A residual that met the same gradient twice would grow along it.
TEST(GradientStream, at_steps_of_noise_do_not_repeat_each_other) {
  GradientStream stream({.data = Input::gaussian, .n = kN}, 0);
  std::vector<std::vector<float>> seen;
  for (std::uint64_t step = 0; step < 60; ++step) seen.push_back(at(stream, step));
  for (std::size_t a = 0; a < seen.size(); ++a)
    for (std::size_t b = a + 1; b < seen.size(); ++b)
      EXPECT_LT(std::fabs(correlation(seen[a], seen[b])), 0.05) << a << ", " << b;
}

TEST(GradientStream, at_any_step_of_a_gaussian_stream_has_unit_variance) {
  for (const double shared : {0.0, 0.3, 1.0}) {
    GradientStream stream({.data = Input::gaussian, .n = kN, .shared = shared}, 1);
    for (std::uint64_t step = 0; step < 40; ++step)
      EXPECT_NEAR(variance(stream.at(step)), 1, 0.07) << step << ", shared " << shared;
  }
}

TEST(GradientStream, at_two_ranks_correlate_by_the_share_of_the_signal) {
  for (const double shared : {0.0, 0.3, 0.8}) {
    const StreamSpec spec{.data = Input::gaussian, .n = kN, .shared = shared};
    GradientStream a(spec, 0);
    GradientStream b(spec, 5);
    for (const std::uint64_t step : {0U, 5U, 8U, 16U, 100U})
      EXPECT_NEAR(correlation(a.at(step), b.at(step)), shared, 0.04) << step;
  }
}

TEST(GradientStream, at_the_shared_signal_turns_into_another_within_16_steps) {
  GradientStream stream({.data = Input::gaussian, .n = kN, .shared = 1}, 0);
  const auto first = at(stream, 0);
  EXPECT_GT(correlation(first, stream.at(1)), 0.9);
  EXPECT_NEAR(correlation(first, stream.at(8)), std::sqrt(0.5), 0.06);
  EXPECT_NEAR(correlation(first, stream.at(16)), 0, 0.06);
}

TEST(GradientStream, at_a_jump_is_1000_times_larger_from_step_24_to_31) {
  GradientStream jump({.data = Input::gaussian, .n = kN, .event = StreamEvent::jump}, 0);
  GradientStream calm({.data = Input::gaussian, .n = kN}, 0);
  for (std::uint64_t step = 20; step < 40; ++step) {
    const double factor = step >= 24 && step <= 31 ? 1000 : 1;
    const auto x = at(jump, step);
    const auto y = calm.at(step);
    for (std::size_t i = 0; i < 100; ++i) ASSERT_NEAR(x[i], factor * y[i], 1e-4 * factor) << step;
  }
}

TEST(GradientStream, at_zero_first_only_the_first_gradient_is_zero) {
  for (const Input data : {Input::gaussian, Input::dyadic}) {
    GradientStream stream({.data = data, .n = 100, .event = StreamEvent::zero_first}, 0);
    EXPECT_EQ(at(stream, 0), std::vector<float>(100, 0.0F));
    EXPECT_GT(variance(stream.at(1)), 0);
    EXPECT_EQ(at(stream, 0), std::vector<float>(100, 0.0F));
  }
}

TEST(GradientStream, scale_at_rough_drops_drifts_and_spikes) {
  const GradientStream stream({.data = Input::gaussian, .n = 10, .event = StreamEvent::rough, .steps = 400}, 0);
  int spikes = 0;
  double last = stream.scale_at(0);  // without spikes
  for (std::uint64_t step = 1; step < 400; ++step) {
    const double expected = last * (step == 200 || step == 300 ? 0.1 : 1);
    double scale = stream.scale_at(step);
    const bool is_spike = scale > 5 * expected;
    spikes += is_spike ? 1 : 0;
    if (is_spike) scale /= 10;
    EXPECT_NEAR(scale / expected, 1, 0.05) << step;
    last = scale;
  }
  EXPECT_GT(spikes, 2);
  EXPECT_LT(spikes, 25);
}

std::vector<float> magnitudes(std::span<const float> x) {
  std::vector<float> blocks(64, 0.0F);
  for (std::size_t i = 0; i < x.size(); ++i) blocks[i / 1000] += std::fabs(x[i]);
  return blocks;
}

TEST(GradientStream, at_layers_keep_their_scales_over_steps_and_ranks_and_rough_moves_them_twice) {
  const StreamSpec calm{.data = Input::layered, .n = 64000};
  EXPECT_GT(correlation(magnitudes(at(calm, 0, 0)), magnitudes(at(calm, 3, 9))), 0.95);
  GradientStream stream({.data = Input::layered, .n = 64000, .shared = 1, .event = StreamEvent::rough, .steps = 400},
                        0);
  const auto moved = [&](std::uint64_t step) {
    const auto before = magnitudes(stream.at(step - 1));
    return correlation(before, magnitudes(stream.at(step)));
  };
  for (const std::uint64_t moment : {100U, 250U}) {
    EXPECT_GT(moved(moment - 1), 0.95);
    EXPECT_LT(moved(moment), 0.9);
    EXPECT_GT(moved(moment + 1), 0.95);
  }
}

TEST(GradientStream, at_exact_inputs_are_those_of_make_input) {
  const StreamSpec spec{.data = Input::skewed, .n = 500, .seed = 4};
  EXPECT_EQ(at(spec, 2, 9), make_input(Input::skewed, 500, 2, 9, 4));
}

TEST(GradientStream, make_refuses_a_share_out_of_range_signals_in_exact_inputs_and_no_steps) {
  const auto message = [](Input data, double shared, std::uint64_t steps = 1) {
    return message_of([&] { GradientStream({.data = data, .n = 10, .shared = shared, .steps = steps}, 0); });
  };
  for (const double shared : {-0.1, 1.1, std::nan("")})
    EXPECT_NE(message(Input::gaussian, shared).find("shared = "), std::string::npos);
  EXPECT_NE(message(Input::dyadic, 0.5).find("shared = "), std::string::npos);
  EXPECT_NE(message(Input::gaussian, 0, 0).find("steps = 0"), std::string::npos);
  EXPECT_EQ(message(Input::dyadic, 0), "accepted");
  EXPECT_EQ(message(Input::layered, 1), "accepted");
}

TEST(GradientStream, find_stream_event_knows_every_name_and_lists_them) {
  EXPECT_EQ(find_stream_event("none"), StreamEvent::none);
  EXPECT_EQ(find_stream_event("jump"), StreamEvent::jump);
  EXPECT_EQ(find_stream_event("zero_first"), StreamEvent::zero_first);
  EXPECT_EQ(find_stream_event("rough"), StreamEvent::rough);
  EXPECT_NE(message_of([] { find_stream_event("earthquake"); }).find("zero_first"), std::string::npos);
}

}  // namespace
}  // namespace oktopk::gradient_stream_test
