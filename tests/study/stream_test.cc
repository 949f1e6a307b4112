// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tools/study/stream.h"

#include <cmath>
#include <numeric>
#include <set>

#include "oktopk/base/error.h"

namespace oktopk::stream_test {
namespace {

std::vector<float> gradient(const SourceOptions& options, int rank, int step, double common = 0.5) {
  std::vector<float> out;
  Stream(options, common).gradient(rank, step, out);
  return out;
}

std::set<std::size_t> largest(const std::vector<float>& x, std::size_t k) {
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(),
                    [&](std::size_t a, std::size_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
  return {order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k)};
}

double median_magnitude(std::vector<float> x) {
  for (float& v : x) v = std::fabs(v);
  std::nth_element(x.begin(), x.begin() + std::ssize(x) / 2, x.end());
  return x[x.size() / 2];
}

TEST(Stream, gives_same_gradients_in_any_order) {
  for (const char* kind : {"calm", "rough"}) {
    const SourceOptions options{.data = kind, .n = 500, .steps = 64};
    Stream stream(options);
    std::vector<float> later, earlier;
    stream.gradient(2, 50, later);
    stream.gradient(1, 3, earlier);
    EXPECT_EQ(later, gradient(options, 2, 50));
    EXPECT_EQ(earlier, gradient(options, 1, 3));
  }
}

TEST(Stream, differs_between_ranks_steps_and_seeds) {
  const SourceOptions options{.data = "calm", .n = 100};
  SourceOptions other = options;
  other.seed = 2;
  const auto base = gradient(options, 0, 0);
  EXPECT_NE(base, gradient(options, 1, 0));
  EXPECT_NE(base, gradient(options, 0, 1));
  EXPECT_NE(base, gradient(other, 0, 0));
}

TEST(Stream, calm_keeps_its_scale) {
  const SourceOptions options{.data = "calm", .n = 20000};
  const double first = median_magnitude(gradient(options, 0, 0));
  for (const int step : {5, 17, 100, 199}) {
    EXPECT_EQ(Stream(options).scale(step), 1);
    EXPECT_NEAR(median_magnitude(gradient(options, 0, step)) / first, 1, 0.15);
  }
}

TEST(Stream, rough_drops_shifts_and_spikes) {
  const Stream stream({.data = "rough", .n = 10, .steps = 400});
  int spikes = 0;
  for (int step = 1; step < 400; ++step) {
    spikes += stream.is_spike(step) ? 1 : 0;
    double expected = step == 200 || step == 300 ? 0.1 : 1;
    if (stream.is_spike(step)) expected *= 10;
    if (stream.is_spike(step - 1)) expected /= 10;
    EXPECT_NEAR(stream.scale(step) / stream.scale(step - 1) / expected, 1, 0.05) << step;
  }
  EXPECT_GT(spikes, 2);
  EXPECT_LT(spikes, 25);
  EXPECT_EQ(stream.pattern(99), 0);
  EXPECT_EQ(stream.pattern(100), 1);
  EXPECT_EQ(stream.pattern(249), 1);
  EXPECT_EQ(stream.pattern(250), 2);
  EXPECT_EQ(stream.pattern(399), 2);
}

TEST(Stream, rough_moves_the_large_entries_at_a_shift) {
  const SourceOptions options{.data = "rough", .n = 4000, .steps = 400};
  const auto overlap = [&](int a, int b) {
    const auto first = largest(gradient(options, 0, a, 1), 200);
    int both = 0;
    for (const std::size_t i : largest(gradient(options, 0, b, 1), 200)) both += first.contains(i);
    return both;
  };
  EXPECT_GT(overlap(97, 98), 150);
  EXPECT_LT(overlap(99, 100), 100);
}

TEST(Stream, ranks_have_supports_that_overlap_in_part) {
  const SourceOptions options{.data = "calm", .n = 10000};
  const auto a = gradient(options, 0, 20);
  const auto b = gradient(options, 1, 20);
  int same_sign = 0;
  for (std::size_t i = 0; i < a.size(); ++i) same_sign += (a[i] > 0) == (b[i] > 0);
  EXPECT_GT(same_sign, 6000);
  EXPECT_LT(same_sign, 7500);
  auto together = largest(a, 100);
  together.merge(largest(b, 100));
  EXPECT_GT(together.size(), 110U);
  EXPECT_LT(together.size(), 190U);
}

TEST(Stream, refuses_bad_options) {
  EXPECT_THROW(Stream({.data = "calm", .n = 1, .steps = 0}), UsageError);
  EXPECT_THROW(Stream({.data = "calm", .n = 1}, 1.5), UsageError);
}

TEST(Source, knows_streams_and_inputs) {
  std::vector<float> a, b;
  make_source({.data = "identical", .n = 50}, 0)(3, a);
  make_source({.data = "identical", .n = 50}, 4)(3, b);
  EXPECT_EQ(a, b);
  for (const char* data : {"calm", "rough", "dyadic", "skewed"}) {
    make_source({.data = data, .n = 50}, 0)(3, a);
    make_source({.data = data, .n = 50}, 4)(3, b);
    EXPECT_EQ(a.size(), 50U);
    EXPECT_NE(a, b) << data;
  }
}

TEST(Source, names_what_it_does_not_know) {
  try {
    check_source("stormy");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("unknown data 'stormy'; there are: calm, rough"), std::string::npos);
  }
}

}  // namespace
}  // namespace oktopk::stream_test
