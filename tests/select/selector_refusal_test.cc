// SPDX-License-Identifier: Apache-2.0
// Every selector refuses arguments that do not fit, and selects a value that is not finite, wherever it is.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "oktopk/base/error.h"
#include "tests/select/conformance.h"

namespace oktopk::selector_refusal_test {
namespace {

class SelectorRefusal : public SelectorConformance {};

// The message of the UsageError that selecting throws.
std::string refusal(Selector& selector, const Device& device, const Accumulation& in, std::size_t k) {
  SparseVector out;
  try {
    selector.select(device, in, k, out);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

// At every place, small and large, at every step: Allreduce::run looks for it among the selected values.
TEST_P(SelectorRefusal, select_takes_a_value_that_is_not_finite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::size_t n : {1U, 100U, 40000U})
    for (std::size_t trial = 0; trial < 12; ++trial) {
      const auto selector = make_selector(GetParam(), {.tau_prime = 3, .P = 4});
      std::vector<float> acc(n, 0.0F);
      const std::size_t k = trial % 2 == 0 ? 1 : 1 + n / 100;
      for (std::uint64_t step = 0; step < trial % 4; ++step) {
        selector->select(*device_, {acc, make_data(Data::normal, n, step)}, k, out_);
        device_->clear_at(acc, 0, out_.idx);
      }
      std::vector<float> gradient = make_data(Data::normal, n, 9);
      const std::size_t at = trial * 7919 % n;
      gradient[at] = trial % 3 == 0 ? nan : trial % 3 == 1 ? -nan : infinity;
      selector->select(*device_, {acc, gradient}, k, out_);
      const std::size_t bad = device_->first_nonfinite(out_.val);
      ASSERT_LT(bad, out_.size()) << n << " " << trial;
      EXPECT_EQ(out_.idx[bad], at) << n << " " << trial;
    }
}

TEST_P(SelectorRefusal, select_takes_a_value_that_overflows_in_the_accumulator) {
  std::vector<float> acc(100, 1.0F);
  acc[42] = 3e38F;
  std::vector<float> gradient(100, 0.0F);
  gradient[42] = 3e38F;
  selector_->select(*device_, {acc, gradient}, 10, out_);
  const std::size_t bad = device_->first_nonfinite(out_.val);
  ASSERT_LT(bad, out_.size());
  EXPECT_EQ(out_.idx[bad], 42u);
}

TEST_P(SelectorRefusal, select_after_a_value_that_is_not_finite_goes_on) {
  std::vector<float> acc(20000, 0.0F);
  std::vector<float> bad = make_data(Data::normal, acc.size(), 1);
  bad[1234] = std::numeric_limits<float>::quiet_NaN();
  for (int step = 0; step < 5; ++step) {
    std::vector<float> lost = acc;
    if (step % 2 == 1) selector_->select(*device_, {lost, bad}, 200, out_);
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

TEST_P(SelectorRefusal, select_refuses_a_gradient_of_another_length) {
  std::vector<float> acc(100, 1.0F);
  const std::vector<float> shorter(99, 1.0F);
  EXPECT_NE(refusal(*selector_, *device_, {acc, shorter}, 5).find("99"), std::string::npos);
  EXPECT_EQ(acc, std::vector<float>(100, 1.0F));
}

INSTANTIATE_TEST_SUITE_P(Kinds, SelectorRefusal, testing::ValuesIn(kinds()), kind_name);

}  // namespace
}  // namespace oktopk::selector_refusal_test
