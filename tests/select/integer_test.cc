// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "oktopk/base/error.h"
#include "oktopk/base/random.h"
#include "oktopk/select/selector.h"
#include "oktopk/sparse/slots_format.h"
#include "tests/support/message.h"
#include "tests/support/sparse.h"

namespace oktopk::integer_test {
namespace {

std::vector<float> normal_values(std::size_t n, std::uint64_t step, double scale) {
  Random random(9, step);
  std::vector<float> x(n);
  for (float& v : x) v = static_cast<float>(scale * random.normal());
  return x;
}

TEST(IntegerSelector, select_first_takes_all_that_reach_the_kth_magnitude) {
  const auto device = make_cpu_device();
  const auto selector = make_integer({.P = 3});
  std::vector<float> acc = {1, -4, 2, 4, 0, -2};
  SparseVector out;
  selector->select(*device, {.acc = acc}, 3, out, 6);  // the third magnitude is 2, and occurs twice
  EXPECT_EQ(list_of(out), list_of(make_sparse({{1, -4}, {2, 2}, {3, 4}, {5, -2}})));
}

TEST(IntegerSelector, select_follows_the_count_within_a_quarter_of_k) {
  const auto device = make_cpu_device();
  constexpr std::size_t n = 200000, k = 2000;
  for (const int P : {1, 3, 8}) {
    const auto selector = make_integer({.P = P});
    SparseVector out;
    for (std::uint64_t step = 0; step < 40; ++step) {
      std::vector<float> acc(n, 0.0F);
      const double scale = step < 20 ? 1 : 0.001;  // at step 20 everything becomes smaller
      selector->select(*device, {acc, normal_values(n, step, scale)}, k, out, n);
      if (step % 20 < 12) continue;
      EXPECT_NEAR(static_cast<double>(out.size()), k, k / 4) << "P " << P << " step " << step;
    }
  }
}

TEST(IntegerSelector, select_with_another_k_starts_from_its_exact_threshold) {
  const auto device = make_cpu_device();
  const auto selector = make_integer({.P = 2});
  std::vector<float> acc = normal_values(10000, 1, 1);
  SparseVector out;
  for (const std::size_t k : {100U, 500U, 20U}) {
    selector->select(*device, {.acc = acc}, k, out, acc.size());
    EXPECT_EQ(out.size(), k);
  }
}

TEST(IntegerSelector, select_of_k_equal_to_n_takes_all_that_can_travel) {
  const auto device = make_cpu_device();
  const auto selector = make_integer({.P = 2});
  std::vector<float> acc(3, 0.0F);
  SparseVector out;
  selector->select(*device, {acc, std::vector<float>{1, 0, 1e-30F}}, 3, out, 3);
  EXPECT_EQ(list_of(out), list_of(make_sparse({{0, 1}, {2, 1e-30F}})));
}

TEST(IntegerSelector, select_of_values_that_would_round_to_zero_takes_nothing) {
  const auto device = make_cpu_device();
  const auto selector = make_integer({.P = 1});
  std::vector<float> acc(50, 1e-43F);
  SparseVector out;
  selector->select(*device, {.acc = acc}, 5, out, 50);
  EXPECT_TRUE(out.empty());
}

TEST(IntegerSelector, load_refuses_a_threshold_that_is_none) {
  const auto selector = make_integer({.P = 2});
  StateWriter wrong;
  wrong.put(std::uint64_t{50}, std::uint32_t{0x7f800000});
  const Bytes bad = wrong.seal();
  StateReader reader(bad);
  EXPECT_NE(message_of<UsageError>([&] { selector->load(reader); }).find("threshold"), std::string::npos);
}

}  // namespace
}  // namespace oktopk::integer_test
