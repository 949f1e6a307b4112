// SPDX-License-Identifier: Apache-2.0
// SelectorConformance: what the contract in selector.h promises of every selector, on streams of
// steps so that thresholds carried over are part of it. A new kind needs no line here.
#include "oktopk/select/selector.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/random.h"
#include "tests/support/message.h"
#include "tests/support/sparse.h"

namespace oktopk::selector_test {
namespace {

enum class Data { normal, zero, equal, tied, mostly_zero };

std::vector<float> make_data(Data data, std::size_t n, std::uint64_t step) {
  Random random(6, step, n);
  std::vector<float> out(n);
  for (float& x : out) {
    const double z = random.normal();
    switch (data) {
      case Data::normal:
        x = static_cast<float>(z);
        break;
      case Data::zero:
        x = 0;
        break;
      case Data::equal:
        x = std::copysign(0.5F, static_cast<float>(z));
        break;
      case Data::tied:
        x = static_cast<float>(std::round(z));
        break;
      case Data::mostly_zero:
        x = random.below(50) == 0 ? static_cast<float>(z) : -0.0F;
        break;
    }
  }
  return out;
}

class SelectorConformance : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Selector> selector_ = make_selector(GetParam(), {.tau_prime = 3, .P = 4});
  SparseVector out_;
};

std::vector<std::string> kinds() {
  std::vector<std::string> all;
  for (const SelectorInfo& info : selectors()) all.emplace_back(info.name);
  return all;
}

std::string kind_name(const testing::TestParamInfo<std::string>& info) { return info.param; }

TEST_P(SelectorConformance, select_on_any_stream_keeps_the_contract) {
  for (const Data data : {Data::normal, Data::zero, Data::equal, Data::tied, Data::mostly_zero})
    for (const std::size_t n : {1U, 2U, 3U, 7U, 100U, 5000U})
      for (const std::size_t k : {std::size_t{1}, (n + 99) / 100, (n + 1) / 2, n}) {
        const auto selector = make_selector(GetParam(), {.tau_prime = 3, .P = 4});
        std::vector<float> acc(n, 0.0F);
        for (std::uint64_t step = 0; step < 8; ++step) {
          const std::vector<float> gradient = make_data(data, n, step);
          std::vector<float> expected = acc;
          for (std::size_t i = 0; i < n; ++i) expected[i] += 0.25F * gradient[i];
          selector->select(*device_, {acc, gradient, 0.25F}, k, out_);
          for (std::size_t i = 0; i < n; ++i)
            ASSERT_EQ(std::bit_cast<std::uint32_t>(acc[i]), std::bit_cast<std::uint32_t>(expected[i]));
          ASSERT_TRUE(is_canonical(out_));
          ASSERT_LE(out_.size(), max_selection(k));
          for (const auto& [i, v] : list_of(out_)) {
            ASSERT_LT(i, n);
            ASSERT_NE(v, 0);
            ASSERT_EQ(v, acc[i]);
          }
          device_->clear_at(acc, 0, out_.idx);
        }
      }
}

TEST_P(SelectorConformance, select_leaves_nothing_larger_behind_within_a_region) {
  const std::size_t n = 4000;
  std::vector<float> acc(n, 0.0F);
  for (std::uint64_t step = 0; step < 6; ++step) {
    selector_->select(*device_, {acc, make_data(Data::normal, n, step)}, 40, out_);
    ASSERT_FALSE(out_.empty());
    for (std::size_t begin = 0; begin < n; begin += n / 4) {
      const auto range = Range{static_cast<Index>(begin), static_cast<Index>(begin + n / 4)};
      float smallest = std::numeric_limits<float>::infinity();
      for (const float v : part(out_, range).val) smallest = std::min(smallest, std::fabs(v));
      std::vector<float> rest(acc.begin() + static_cast<std::ptrdiff_t>(begin),
                              acc.begin() + static_cast<std::ptrdiff_t>(begin + n / 4));
      device_->clear_at(rest, range.begin, part(out_, range).idx);
      for (const float v : rest) ASSERT_LE(std::fabs(v), smallest);
    }
    device_->clear_at(acc, 0, out_.idx);
  }
}

TEST_P(SelectorConformance, select_finds_values_after_steps_of_zeros) {
  std::vector<float> acc(1000, 0.0F);
  const std::vector<float> zeros(1000, 0.0F);
  for (int step = 0; step < 4; ++step) selector_->select(*device_, {acc, zeros}, 10, out_);
  std::size_t found = 0;
  for (std::uint64_t step = 0; step < 4; ++step) {
    selector_->select(*device_, {acc, make_data(Data::normal, 1000, step)}, 10, out_);
    found += out_.size();
    device_->clear_at(acc, 0, out_.idx);
  }
  EXPECT_GE(found, 20u);
}

TEST_P(SelectorConformance, select_with_an_empty_gradient_reads_the_accumulator) {
  std::vector<float> acc(100, 0.0F);
  acc[7] = -3;
  acc[70] = 2;
  const std::vector<float> before = acc;
  for (int step = 0; step < 4; ++step) {
    selector_->select(*device_, {.acc = acc}, 100, out_);
    EXPECT_EQ(acc, before);
    EXPECT_LE(out_.size(), 2u);
  }
}

TEST_P(SelectorConformance, select_takes_cleared_entries_for_zeros) {
  for (const std::size_t n : {100U, 30000U}) {
    const auto selector = make_selector(GetParam(), {.tau_prime = 2, .P = 4});
    const auto twin = make_selector(GetParam(), {.tau_prime = 2, .P = 4});
    std::vector<float> acc(n, 0.0F), twin_acc(n, 0.0F);
    SparseVector sent, twin_sent;
    for (std::uint64_t step = 0; step < 6; ++step) {
      const std::vector<float> gradient = make_data(Data::normal, n, step);
      const SparseVector last = sent;
      selector->select(*device_, {acc, gradient, 0.5F, last.idx}, 1 + n / 50, sent);
      twin->select(*device_, {twin_acc, gradient, 0.5F}, 1 + n / 50, twin_sent);
      ASSERT_EQ(list_of(sent), list_of(twin_sent)) << n << " step " << step;
      ASSERT_EQ(acc, twin_acc);
      device_->clear_at(twin_acc, 0, twin_sent.idx);
    }
  }
}

TEST_P(SelectorConformance, select_after_save_and_load_goes_on_as_if_nothing_had_happened) {
  constexpr std::size_t n = 1000;
  constexpr std::uint64_t steps = 12;
  const SelectorOptions options{.tau_prime = 3, .P = 3};
  const auto step_on = [&](Selector& selector, std::vector<float>& acc, std::uint64_t step) {
    const std::size_t k = step < 5 ? 40 : 25;
    selector.select(*device_, {acc, make_data(Data::normal, n, step)}, k, out_);
    device_->clear_at(acc, 0, out_.idx);
    return list_of(out_);
  };
  struct Pause {
    Bytes state;
    std::vector<float> acc;
    EntryList next;
  };
  std::vector<Pause> pauses;
  const auto whole = make_selector(GetParam(), options);
  std::vector<float> acc(n, 0.0F);
  for (std::uint64_t step = 0; step < steps; ++step) {
    StateWriter state;
    whole->save(state);
    pauses.push_back({state.seal(), acc, {}});
    pauses.back().next = step_on(*whole, acc, step);
  }
  for (std::uint64_t pause = 0; pause < steps; ++pause) {
    StateReader state(pauses[pause].state);
    const auto resumed = make_selector(GetParam(), options);
    resumed->load(state);
    state.finish();
    acc = pauses[pause].acc;
    for (std::uint64_t step = pause; step < steps; ++step)
      ASSERT_EQ(step_on(*resumed, acc, step), pauses[step].next) << pause << ", step " << step;
  }
}

// At every place, small and large, at every step: Allreduce::run looks for it among the selected values.
TEST_P(SelectorConformance, select_takes_a_value_that_is_not_finite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float bad_values[] = {nan, -nan, std::numeric_limits<float>::infinity(), 3e38F};
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
      gradient[at] = bad_values[trial / 3];
      if (gradient[at] == 3e38F) acc[at] = 3e38F;  // overflows in the accumulator
      selector->select(*device_, {acc, gradient}, k, out_);
      const std::size_t bad = device_->first_nonfinite(out_.val);
      ASSERT_LT(bad, out_.size()) << n << " " << trial;
      EXPECT_EQ(out_.idx[bad], at) << n << " " << trial;
    }
}

TEST_P(SelectorConformance, select_after_a_value_that_is_not_finite_goes_on) {
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

TEST_P(SelectorConformance, select_refuses_arguments_that_do_not_fit) {
  std::vector<float> acc(100, 1.0F);
  const std::vector<float> shorter(99, 1.0F);
  const auto refusal = [&](const Accumulation& in, std::size_t k) {
    return message_of<UsageError>([&] { selector_->select(*device_, in, k, out_); });
  };
  EXPECT_NE(refusal({.acc = acc}, 0).find("k = 0"), std::string::npos);
  EXPECT_NE(refusal({.acc = acc}, 101).find("k = 101, but k must be in 1..n with n = 100"), std::string::npos);
  EXPECT_NE(refusal({}, 1).find("n = 0"), std::string::npos);
  EXPECT_NE(refusal({acc, shorter}, 5).find("99"), std::string::npos);
  EXPECT_EQ(acc, std::vector<float>(100, 1.0F));
  selector_->select(*device_, {}, 0, out_);
  EXPECT_TRUE(out_.empty());
}

TEST_P(SelectorConformance, make_gives_the_selector_of_the_name) { EXPECT_EQ(selector_->name(), GetParam()); }

INSTANTIATE_TEST_SUITE_P(Kinds, SelectorConformance, testing::ValuesIn(kinds()), kind_name);

TEST(Selectors, make_of_an_unknown_name_lists_those_that_exist) {
  const std::string message = message_of<UsageError>([] { make_selector("best"); });
  EXPECT_NE(message.find("'best'"), std::string::npos);
  for (const SelectorInfo& info : selectors()) EXPECT_NE(message.find(info.name), std::string::npos) << message;
}

}  // namespace
}  // namespace oktopk::selector_test
