// SPDX-License-Identifier: Apache-2.0
// The k-th largest magnitude over all ranks by counting, against a sort of everything.
#include "oktopk/allreduce/parts/thresholds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "oktopk/base/random.h"
#include "oktopk/comm/decorators.h"
#include "tests/support/world.h"

namespace oktopk::thresholds_test {
namespace {

using Values = std::vector<std::vector<float>>;  // by rank

KthSum by_sort(const Values& values, std::uint64_t k) {
  std::vector<float> all;
  for (const auto& x : values)
    for (const float v : x)
      if (v != 0) all.push_back(std::fabs(v));
  std::sort(all.begin(), all.end(), std::greater<>());
  KthSum kth{.total = all.size()};
  if (all.empty()) return kth;
  kth.magnitude = all[std::min<std::size_t>(k, all.size()) - 1];
  kth.larger =
      static_cast<std::uint64_t>(std::count_if(all.begin(), all.end(), [&](float v) { return v > kth.magnitude; }));
  return kth;
}

void expect_exact(const Values& values, std::uint64_t k) {
  const KthSum expected = by_sort(values, k);
  run_world("threads", static_cast<int>(values.size()), [&](Communicator& comm) {
    Workspace work;
    for (int again = 0; again < 2; ++again) {  // what a search leaves behind does not matter
      const KthSum found = find_kth_sum(comm, values[static_cast<std::size_t>(comm.rank())], k, work);
      EXPECT_EQ(found.magnitude, expected.magnitude) << "k " << k;
      EXPECT_EQ(found.larger, expected.larger) << "k " << k;
      EXPECT_EQ(found.total, expected.total) << "k " << k;
    }
  });
}

Values make_values(int P, std::size_t count, double (*draw)(Random&)) {
  Values values;
  for (int r = 0; r < P; ++r) {
    Random random(17, static_cast<std::uint64_t>(r));
    std::vector<float> x(count + static_cast<std::size_t>(7 * r));
    for (float& v : x) v = static_cast<float>(draw(random));
    values.push_back(x);
  }
  return values;
}

TEST(KthSum, find_is_the_kth_of_a_sort) {
  for (const int P : {1, 3, 4, 5}) {
    const Values values = make_values(P, 300, [](Random& r) { return r.normal(); });
    for (const std::uint64_t k : {1U, 2U, 57U, 299U, 300U}) expect_exact(values, k);
  }
}

TEST(KthSum, find_over_all_scales_of_a_float) {
  const Values values = make_values(3, 200, [](Random& r) { return std::ldexp(r.normal(), int(r.below(250)) - 125); });
  for (const std::uint64_t k : {1U, 20U, 300U, 600U}) expect_exact(values, k);
  const float least = std::numeric_limits<float>::denorm_min();
  const float most = std::numeric_limits<float>::max();
  for (const std::uint64_t k : {1U, 2U, 3U, 4U})
    expect_exact({{least, -most}, {2 * least}, {}, {-std::numeric_limits<float>::min()}}, k);
}

TEST(KthSum, find_with_neighbouring_values_separates_them) {
  std::vector<float> x = {1};
  for (int i = 0; i < 400; ++i) x.push_back(std::nextafter(x.back(), 2.0F));
  for (const std::uint64_t k : {1U, 2U, 100U, 256U, 401U}) expect_exact({x, {}, {1.5F}}, k);
}

TEST(KthSum, find_with_ties_counts_only_those_that_are_larger) {
  const Values values = make_values(5, 100, [](Random& r) { return r.below(2) == 0 ? -0.5 : double(r.below(3)); });
  for (const std::uint64_t k : {1U, 50U, 150U, 300U, 400U}) expect_exact(values, k);
  expect_exact({{2, -2, 2}, {-2}, {2, 2}}, 4);
}

TEST(KthSum, find_among_fewer_than_k_is_the_smallest_and_zeros_do_not_count) {
  expect_exact({{0, 3, -0.0F}, {0, 0}, {-1, 0}}, 10);
  expect_exact({{}, {5}, {}}, 1);
  expect_exact({{}, {5}, {}}, 100);
}

TEST(KthSum, find_among_nothing_is_zero) {
  expect_exact({{}}, 3);
  expect_exact({{0, 0}, {}, {-0.0F}, {}}, 3);
}

TEST(KthSum, find_sends_what_cost_says) {
  for (const int P : {1, 3, 4, 5, 8}) {
    const Values values = make_values(P, 500, [](Random& r) { return r.normal(); });
    run_world("threads", P, [&](Communicator& comm) {
      CountingCommunicator counting(comm);
      Workspace work;
      find_kth_sum(counting, values[static_cast<std::size_t>(comm.rank())], 77, work);
      const Traffic& t = counting.traffic();
      const Cost cost = kth_sum_cost(P);
      EXPECT_EQ(cost.messages, 5 * ceil_log2(P));
      EXPECT_EQ(t.duplex_messages, static_cast<std::uint64_t>(cost.messages)) << P;
      EXPECT_LE(static_cast<double>(t.duplex_bytes), cost.bytes) << P;
      EXPECT_GE(static_cast<double>(t.duplex_bytes), 0.9 * cost.bytes) << P;
    });
  }
}

}  // namespace
}  // namespace oktopk::thresholds_test
