// SPDX-License-Identifier: Apache-2.0
// What every selector refuses: arguments that do not fit, and values that are not finite, before
// the pass or after it.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "oktopk/base/error.h"
#include "tests/select/conformance.h"

namespace oktopk::selector_refusal_test {
namespace {

class SelectorRefusal : public SelectorConformance {};

// The message of the UsageError that selecting throws.
std::string refusal(Selector& selector, const Device& device, const Accumulation& in, std::size_t k,
                    Checked checked = Checked::no) {
  SparseVector out;
  try {
    selector.select(device, in, k, out, checked);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST_P(SelectorRefusal, select_refuses_nonfinite_gradients_and_leaves_acc_untouched) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> acc = make_data(Data::normal, 100, 1);
    const std::vector<float> before = acc;
    std::vector<float> gradient = make_data(Data::normal, 100, 2);
    gradient[63] = bad;
    const std::string message = refusal(*selector_, *device_, {acc, gradient}, 10);
    EXPECT_NE(message.find("gradient[63] = "), std::string::npos) << message;
    EXPECT_EQ(acc, before);
  }
}

// At every place, small and large, at every step: what the caller has not looked for is found among
// the selected values.
TEST_P(SelectorRefusal, select_of_checked_values_that_are_not_finite_names_them) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::size_t n : {1U, 100U, 40000U})
    for (std::size_t trial = 0; trial < 12; ++trial) {
      const auto selector = make_selector(GetParam(), {.tau_prime = 3, .P = 4});
      std::vector<float> acc(n, 0.0F);
      const std::size_t k = trial % 2 == 0 ? 1 : 1 + n / 100;
      for (std::uint64_t step = 0; step < trial % 4; ++step) {
        selector->select(*device_, {acc, make_data(Data::normal, n, step)}, k, out_, Checked::yes);
        device_->clear_at(acc, 0, out_.idx);
      }
      std::vector<float> gradient = make_data(Data::normal, n, 9);
      const std::size_t at = trial * 7919 % n;
      gradient[at] = trial % 3 == 0 ? nan : trial % 3 == 1 ? -nan : infinity;
      const std::string bad = "gradient[" + std::to_string(at) + "] = ";
      const std::string message = refusal(*selector, *device_, {acc, gradient}, k, Checked::yes);
      EXPECT_NE(message.find(bad), std::string::npos) << message << " " << n << " " << trial;
      EXPECT_NE(message.find("finite"), std::string::npos) << message;
    }
}

TEST_P(SelectorRefusal, select_of_checked_values_reports_an_accumulator_that_overflowed) {
  std::vector<float> acc(100, 1.0F);
  acc[42] = 3e38F;
  std::vector<float> gradient(100, 0.0F);
  gradient[42] = 3e38F;
  const std::string message = refusal(*selector_, *device_, {acc, gradient}, 10, Checked::yes);
  EXPECT_NE(message.find("overflowed at index 42"), std::string::npos) << message;
}

TEST_P(SelectorRefusal, select_after_a_refusal_goes_on) {
  std::vector<float> acc(20000, 0.0F);
  std::vector<float> bad = make_data(Data::normal, acc.size(), 1);
  bad[1234] = std::numeric_limits<float>::quiet_NaN();
  for (int step = 0; step < 5; ++step) {
    std::vector<float> lost = acc;
    if (step % 2 == 1) {
      EXPECT_NE(refusal(*selector_, *device_, {lost, bad}, 200, Checked::yes), "accepted");
    }
    selector_->select(*device_, {acc, make_data(Data::normal, acc.size(), 2)}, 200, out_);
    EXPECT_GE(out_.size(), 50u);
    device_->clear_at(acc, 0, out_.idx);
  }
}

TEST_P(SelectorRefusal, select_refuses_k_outside_1_to_n) {
  std::vector<float> acc(100, 1.0F);
  EXPECT_NE(refusal(*selector_, *device_, {.acc = acc}, 0).find("k = 0"), std::string::npos);
  const std::string message = refusal(*selector_, *device_, {.acc = acc}, 101);
  EXPECT_NE(message.find("k = 101"), std::string::npos);
  EXPECT_NE(message.find("n = 100"), std::string::npos);
  EXPECT_NE(refusal(*selector_, *device_, {}, 1), "accepted");
}

TEST_P(SelectorRefusal, select_refuses_a_gradient_of_another_length_and_a_bad_scale) {
  std::vector<float> acc(100, 1.0F);
  const std::vector<float> shorter(99, 1.0F);
  const std::vector<float> gradient(100, 1.0F);
  EXPECT_NE(refusal(*selector_, *device_, {acc, shorter}, 5).find("99"), std::string::npos);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(refusal(*selector_, *device_, {acc, gradient, nan}, 5).find("scale"), std::string::npos);
  EXPECT_EQ(acc, std::vector<float>(100, 1.0F));
}

TEST_P(SelectorRefusal, select_refuses_an_accumulator_that_overflows) {
  std::vector<float> acc(100, 1.0F);
  acc[42] = 3e38F;
  std::vector<float> gradient(100, 0.0F);
  gradient[42] = 3e38F;
  const std::string message = refusal(*selector_, *device_, {acc, gradient}, 10);
  EXPECT_NE(message.find("42"), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(Kinds, SelectorRefusal, testing::ValuesIn(kinds()), kind_name);

}  // namespace
}  // namespace oktopk::selector_refusal_test
