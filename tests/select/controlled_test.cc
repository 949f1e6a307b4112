// SPDX-License-Identifier: Apache-2.0
// The controlled threshold on streams that are as rough as training: heavy tails, spikes, drops of
// the scale, error feedback that cuts the tail off at every step.
#include "oktopk/select/selector.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/sparse.h"

namespace oktopk::controlled_test {
namespace {

constexpr std::size_t kN = 50000;
constexpr std::size_t kK = 500;

// Student t3, drawn once; a step takes it from a random place on.
class Noise {
 public:
  explicit Noise(std::uint64_t seed) : random_(seed), pool_(4 * kN) {
    for (float& x : pool_) {
      double squares = 0;
      for (int i = 0; i < 3; ++i) squares += std::pow(random_.normal(), 2);
      x = static_cast<float>(random_.normal() / std::sqrt(squares / 3));
    }
  }
  std::vector<float> next(double scale) {
    const std::size_t from = random_.below(pool_.size() - kN);
    std::vector<float> out(pool_.begin() + static_cast<std::ptrdiff_t>(from),
                           pool_.begin() + static_cast<std::ptrdiff_t>(from + kN));
    for (float& x : out) x *= static_cast<float>(scale);
    return out;
  }
  Random& random() { return random_; }

 private:
  Random random_;
  std::vector<float> pool_;
};

double deviation(std::size_t count) { return std::fabs(static_cast<double>(count) - kK) / kK; }

TEST(ControlledSelector, select_on_a_rough_stream_stays_within_2_percent_of_k_on_average) {
  const auto device = make_cpu_device();
  Noise noise(7);
  const auto selector = make_controlled({});
  std::vector<float> acc(kN, 0.0F);
  SparseVector out;
  double total = 0;
  double scale = 1;
  for (int step = 0; step < 300; ++step) {
    if (step == 150) scale *= 0.1;
    const double spike = noise.random().below(25) == 0 ? 3 : 1;
    const double wobble = 1 + 0.03 * noise.random().normal();
    selector->select(*device, {acc, noise.next(scale * spike * wobble)}, kK, out);
    ASSERT_LE(out.size(), kK);
    total += deviation(out.size());
    device->clear_at(acc, 0, out.idx);
  }
  EXPECT_LT(total / 300, 0.02);
}

TEST(ControlledSelector, select_adapts_to_a_hundredfold_scale_in_the_same_step) {
  const auto device = make_cpu_device();
  for (const double factor : {100.0, 0.01}) {
    Noise noise(8);
    const auto selector = make_controlled({});
    SparseVector out;
    for (int step = 0; step < 20; ++step) {
      std::vector<float> x = noise.next(step < 10 ? 1 : factor);
      selector->select(*device, {.acc = x}, kK, out);
      EXPECT_LT(deviation(out.size()), 0.34) << "step " << step << ", factor " << factor;
      if (step > 12) {
        EXPECT_LT(deviation(out.size()), 0.1) << "step " << step;
      }
    }
  }
}

TEST(ControlledSelector, select_of_more_than_k_keeps_the_largest) {
  const auto device = make_cpu_device();
  Noise noise(9);
  const auto selector = make_controlled({});
  SparseVector out, expected;
  for (int step = 0; step < 10; ++step) {
    std::vector<float> x = noise.next(1);
    selector->select(*device, {.acc = x}, kK, out);
    select_exact(*device, {.acc = x}, out.size(), expected);
    EXPECT_EQ(list_of(out), list_of(expected));
  }
}

TEST(ControlledSelector, select_recovers_after_steps_of_zeros) {
  const auto device = make_cpu_device();
  Noise noise(10);
  const auto selector = make_controlled({});
  SparseVector out;
  for (int step = 0; step < 30; ++step) {
    const bool silent = step % 10 >= 6;
    std::vector<float> x = noise.next(silent ? 0 : 1);
    selector->select(*device, {.acc = x}, kK, out);
    if (silent) {
      EXPECT_TRUE(out.empty());
    } else {
      EXPECT_LT(deviation(out.size()), 0.34) << "step " << step;
    }
  }
}

TEST(ControlledSelector, select_with_fewer_values_than_k_takes_all_of_them) {
  const auto selector = make_controlled({});
  SparseVector out;
  for (int step = 0; step < 5; ++step) {
    std::vector<float> x(1000, 0.0F);
    for (std::size_t i = 0; i < 30; ++i) x[i * 30] = 1.0F + static_cast<float>(i);
    selector->select(*make_cpu_device(), {.acc = x}, 50, out);
    EXPECT_EQ(out.size(), 30u);
  }
}

}  // namespace
}  // namespace oktopk::controlled_test
