// SPDX-License-Identifier: Apache-2.0
#include "tools/report/curve.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tools/report/plot.h"

namespace oktopk::curve_test {
namespace {

constexpr int kMany = 10000;

std::vector<CurvePoint> zigzag(int n) {
  std::vector<CurvePoint> points;
  for (int i = 0; i < n; ++i) points.push_back({500.0 * i / n, std::sin(0.7 * i) + 0.001 * (i % 97), std::size_t(i)});
  return points;
}

bool has(const std::vector<CurvePoint>& points, std::size_t source) {
  return std::any_of(points.begin(), points.end(), [&](const CurvePoint& p) { return p.source == source && !p.gap; });
}

bool in_order(const std::vector<CurvePoint>& points) {
  return std::is_sorted(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.source < b.source; });
}

TEST(Curve, few_points_all_stay) { EXPECT_EQ(thinned(zigzag(600), 0, 500).size(), 600u); }

TEST(Curve, many_points_are_thinned_and_keep_extremes_and_ends) {
  auto points = zigzag(kMany);
  points[3333].y = 100;
  points[3334].y = -100;
  const auto kept = thinned(points, 0, 500);
  EXPECT_LE(kept.size(), kCurvePoints + 4);
  EXPECT_GE(kept.size(), kCurvePoints - 4);
  EXPECT_TRUE(in_order(kept));
  for (const int source : {0, 3333, 3334, 9999}) EXPECT_TRUE(has(kept, source)) << source;
}

TEST(Curve, points_of_every_column_keep_their_range) {
  const auto points = zigzag(kMany);
  const auto kept = thinned(points, 0, 500);
  for (double column = 0; column < 300; ++column) {
    const auto range = [&](const std::vector<CurvePoint>& all) {
      double lo = 1e9, hi = -1e9;
      for (const CurvePoint& p : all) {
        if (std::floor(p.x / 500 * 300) != column) continue;
        lo = std::min(lo, p.y);
        hi = std::max(hi, p.y);
      }
      return std::pair(lo, hi);
    };
    EXPECT_EQ(range(kept), range(points)) << column;
  }
}

TEST(Curve, gap_in_many_points_stays_a_gap) {
  auto points = zigzag(kMany);
  for (std::size_t i = 5000; i < 5010; ++i) points[i].gap = true;
  const auto kept = thinned(points, 0, 500);
  EXPECT_EQ(std::count_if(kept.begin(), kept.end(), [](const auto& p) { return p.gap; }), 1);
  EXPECT_LE(kept.size(), kCurvePoints + 8);
}

TEST(Curve, gaps_everywhere_and_disordered_x_are_thinned_too) {
  auto gaps = zigzag(kMany);
  for (int i = 1; i < kMany; i += 2) gaps[i].gap = true;
  gaps[4444].y = 100;
  const auto kept = thinned(gaps, 0, 500);
  EXPECT_LE(kept.size(), kCurvePoints + 4);
  EXPECT_TRUE(has(kept, 4444));
  auto disordered = zigzag(kMany);
  for (CurvePoint& p : disordered) p.x = static_cast<double>(p.source * 7919 % 500);
  EXPECT_LE(thinned(disordered, 0, 500).size(), kCurvePoints + 4);
}

TEST(Curve, smoothed_is_the_mean_around_and_skips_gaps) {
  const double nan = std::nan("");
  const Series raw = {"a", {0, 1, 2, 3, 4}, {1, 2, 9, nan, 5}};
  const Series smooth = smoothed(raw, 3);
  EXPECT_EQ(smooth.name, "a");
  EXPECT_DOUBLE_EQ(smooth.y[0], 1.5);
  EXPECT_DOUBLE_EQ(smooth.y[1], 4);
  EXPECT_DOUBLE_EQ(smooth.y[2], 5.5);
  EXPECT_TRUE(std::isnan(smooth.y[3]));
  EXPECT_DOUBLE_EQ(smooth.y[4], 5);
  for (const int window : {0, 1}) EXPECT_EQ(smoothed(raw, window).y[2], 9) << window;
}

}  // namespace
}  // namespace oktopk::curve_test
