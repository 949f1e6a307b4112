// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/inspect.h"

#include <gtest/gtest.h>

#include <limits>

namespace oktopk::inspect_test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Inspect, gradient_of_finite_values_or_none_is_fine) {
  const auto device = make_cpu_device();
  const std::vector<float> gradient = {1, -2, 0};
  EXPECT_EQ(inspect_values(*device, gradient, 0.5F, 3).severity, Severity::fine);
  EXPECT_EQ(inspect_values(*device, {}, 0.5F, 3).severity, Severity::fine);
}

TEST(Inspect, size_and_scale_are_errors_that_name_the_value) {
  const std::vector<float> gradient = {1, kNaN};
  const Note size = inspect_size(gradient, 1, 3);
  EXPECT_EQ(size.severity, Severity::error);
  EXPECT_EQ(size.text, "the gradient has 2 entries, but n = 3");
  const Note scale = inspect_size(gradient, kInf, 2);
  EXPECT_EQ(scale.severity, Severity::error);
  EXPECT_EQ(scale.text, "scale = inf, but it must be finite");
  EXPECT_EQ(inspect_size(gradient, 1, 2).severity, Severity::fine);  // does not look
}

TEST(Inspect, values_that_are_not_finite_are_skippable_and_named_in_any_type) {
  const auto device = make_cpu_device();
  for (const float bad : {kNaN, kInf, -kInf}) {
    const std::vector<float> gradient = {1, bad, bad};
    const Note note = inspect_values(*device, gradient, 1, 3);
    EXPECT_EQ(note.severity, Severity::skippable);
    EXPECT_EQ(note.text.find("gradient[1] = "), 0u) << note.text;
  }
  const std::vector<Bf16> halves = {Bf16{0x3f80}, Bf16{0x7f80}};  // 1, infinity
  EXPECT_EQ(inspect_values(*device, halves, 1, 2).text, "gradient[1] = inf, but all entries must be finite");
}

TEST(Inspect, sum_that_overflowed_is_not_the_gradients_fault) {
  const std::vector<float> gradient = {1, 3e38F};
  EXPECT_NE(describe_nonfinite(gradient, 1).find("overflowed at index 1"), std::string::npos);
  EXPECT_NE(describe_nonfinite({}, 4).find("overflowed at index 4"), std::string::npos);
}

}  // namespace
}  // namespace oktopk::inspect_test
