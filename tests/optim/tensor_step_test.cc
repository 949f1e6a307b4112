// SPDX-License-Identifier: Apache-2.0
// Steps over many tensors: the same bits at every vector level and with any number of threads, in
// blocks of any kind, for all types of weights; and those of SparseAdamW.
#include "oktopk/optim/tensor_step.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "oktopk/base/gradient.h"
#include "oktopk/base/random.h"
#include "oktopk/base/simd.h"
#include "oktopk/optim/interval_clock.h"
#include "oktopk/optim/tensor_kernels.h"
#include "tests/support/adamw.h"

namespace oktopk::tensor_step_test {
namespace {

constexpr std::size_t kSize = 300'007;  // more than one thread's worth

template <class W>
struct Trained {
  using Real = RealOf<W>;
  static constexpr WeightType kType = std::is_same_v<W, float>  ? WeightType::fp32
                                      : std::is_same_v<W, Bf16> ? WeightType::bf16
                                      : std::is_same_v<W, Fp16> ? WeightType::fp16
                                                                : WeightType::fp64;
  explicit Trained(std::size_t n) : w(n), g(n), m(n), v(n), last(n), arrivals(n) {
    Random random(3);
    for (W& x : w) narrow(static_cast<Real>(random.uniform()), x);
  }

  // All in steps 1 (dense), 2 (a list) and 5 (dense), else a third.
  TensorState state(int step) {
    Random random(static_cast<std::uint64_t>(step));
    indices.clear();
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double drawn = random.uniform();
      narrow(static_cast<Real>(drawn - 0.5), g[i]);
      if (step == 2 || drawn < 0.3) indices.push_back(static_cast<std::int64_t>(i));
    }
    const bool dense = step == 1 || step == 5;
    return {.type = kType,
            .size = w.size(),
            .weights = w.data(),
            .mean = g.data(),
            .first = m.data(),
            .second = v.data(),
            .last = last.data(),
            .arrivals = arrivals.data(),
            .indices = dense ? nullptr : indices.data(),
            .count = dense ? 0 : indices.size(),
            .steps = static_cast<std::uint32_t>(step)};
  }

  std::vector<W> w, g;
  std::vector<Real> m, v;
  std::vector<std::uint32_t> last, arrivals;
  std::vector<std::int64_t> indices;
};

enum class Kind { adam, sgd };

template <class W>
Trained<W> train(Kind kind, std::size_t threads) {
  Trained<W> run(kSize);
  AdamClock adam;
  IntervalClock& clock = adam.clock;
  for (int step = 1; step <= 5; ++step) {
    clock.tick(0.01 / step, 0.1);
    const TensorState tensor = run.state(step);
    EXPECT_EQ(find_bad_indices(std::span(&tensor, 1)), -1);
    if (kind == Kind::sgd)
      sgd_step(std::span(&tensor, 1), {0.9, 0.1, true, clock.view(), adam.first.up_to(0.9, clock.now())}, threads);
    else
      adam_step(std::span(&tensor, 1), adam.step(0.9, 0.99), threads);
  }
  TensorState tensor = run.state(1);
  tensor.indices = nullptr;
  tensor.end = clock.now();
  pay_decay(std::span(&tensor, 1), clock.totals().data(), threads);
  return run;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class W>
void expect_one_result(Kind kind) {
  const Trained<W> expected = train<W>(kind, 1);
  const auto compare = [&](const Trained<W>& other, const char* what) {
    EXPECT_TRUE(same_bits(expected.w, other.w)) << what;
    EXPECT_TRUE(same_bits(expected.m, other.m)) << what;
    EXPECT_TRUE(same_bits(expected.v, other.v)) << what;
    EXPECT_EQ(expected.last, other.last) << what;
    EXPECT_EQ(expected.arrivals, other.arrivals) << what;
  };
  compare(train<W>(kind, 3), "threads");
  const SimdLimit limit(SimdLevel::scalar);
  compare(train<W>(kind, 2), "scalar");
}

TEST(TensorStep, result_for_floats_depends_on_neither_threads_nor_level) {
  for (const Kind kind : {Kind::adam, Kind::sgd}) expect_one_result<float>(kind);
}

TEST(TensorStep, result_for_other_types_depends_on_neither_threads_nor_level) {
  for (const Kind kind : {Kind::adam, Kind::sgd}) {
    expect_one_result<Bf16>(kind);
    expect_one_result<Fp16>(kind);
    expect_one_result<double>(kind);
  }
}

TEST(TensorStep, is_sparse_adam_bitwise) {
  constexpr Index n = 500;
  const AdamOptions options{.learning_rate = 0.01F, .beta2 = 0.99F, .weight_decay = 0.1F};
  with_adam(n, options, [&](SparseAdamW& adam) {
    Trained<float> run(n);
    Weights weights = run.w;
    AdamClock clock;
    for (int step = 1; step <= 20; ++step) {
      const TensorState tensor = run.state(step);
      SparseVector update;
      for (const std::int64_t i : run.indices) {
        update.idx.push_back(static_cast<Index>(i));
        update.val.push_back(run.g[static_cast<std::size_t>(i)]);
      }
      adam.apply(weights, tensor.indices == nullptr ? Update{.dense = run.g} : Update{update});
      clock.clock.tick(options.learning_rate, options.weight_decay);
      adam_step(std::span(&tensor, 1), clock.step(options.beta1, options.beta2), 1);
      EXPECT_EQ(weights, run.w) << step;
    }
  });
}

// All coordinates arrive in the last two steps, those at odd places after a silence that aged their second moments
// less.
TEST(TensorStep, dense_step_is_that_of_each_coordinate) {
  Trained<float> whole(500), halves(500);
  AdamClock clock;
  std::vector<std::int64_t> at_parity[2];
  for (std::int64_t i = 0; i < 500; ++i) at_parity[i % 2].push_back(i);
  for (int step = 1; step <= 20; ++step) {
    clock.clock.tick(0.01, 0.1);
    if (step == 20) {
      whole = halves;
      TensorState all = whole.state(step);
      all.indices = nullptr;
      adam_step(std::span(&all, 1), clock.step(0.9, 0.99), 1);
    }
    TensorState half = halves.state(step);
    for (const int parity : {0, 1}) {
      if (parity == 1 && step > 1 && step < 19) continue;
      half.indices = at_parity[parity].data();
      half.count = 250;
      adam_step(std::span(&half, 1), clock.step(0.9, 0.99), 1);
    }
  }
  EXPECT_TRUE(same_bits(whole.w, halves.w));
}

// With the same root, in one pass or in two.
TEST(TensorStep, moments_and_move_make_a_dense_step) {
  Trained<float> one(100);
  Trained<float> two(100);
  for (int step = 1; step <= 5; ++step) {
    const AdamStep group{.beta1 = 0.4,  // a lerp from the other end
                         .beta2 = 0.99,
                         .epsilon = 1e-8,
                         .clock = {.rate = 0.1, .kept = 0.99}};
    TensorState whole = one.state(1);
    TensorState parts = two.state(1);
    whole.last = parts.last = nullptr;
    whole.steps = parts.steps = static_cast<std::uint32_t>(step);
    adam_step(std::span(&whole, 1), group, 1);
    adam_step(std::span(&parts, 1), group, 1, AdamPart::moments);
    std::vector<float> roots = two.v;
    for (float& x : roots) x = std::sqrt(x);
    parts.roots = roots.data();
    adam_step(std::span(&parts, 1), group, 1, AdamPart::move);
  }
  EXPECT_EQ(one.w, two.w);
  EXPECT_EQ(one.m, two.m);
}

TEST(TensorStep, bad_indices_are_found) {
  std::vector<std::vector<std::int64_t>> lists = {{0, 2, 4}, {0, 5}, {1, 1}, {-1, 2}, {3, 2, 4}};
  for (std::size_t bad = 0; bad < lists.size(); ++bad) {
    std::vector<TensorState> tensors;
    for (const auto& list : {lists[0], lists[bad]})
      tensors.push_back({.size = 5, .indices = list.data(), .count = list.size()});
    tensors[1].indices = lists[bad].data();
    tensors[0].indices = lists[0].data();
    EXPECT_EQ(find_bad_indices(tensors), bad == 0 ? -1 : 1) << bad;
  }
}

TEST(TensorStep, sixteen_bit_weights_are_rounded_to_the_nearest) {
  const auto nearest = [](float x) {  // among all halves
    std::uint16_t best = 0;
    for (std::uint32_t bits = 0; bits <= 0x7C00U; ++bits) {
      const auto half = static_cast<std::uint16_t>(bits);
      const float distance = std::abs(to_float(Fp16{half}) - x);
      const float least = std::abs(to_float(Fp16{best}) - x);
      if (distance < least || (distance == least && half % 2 == 0)) best = half;
    }
    return best;
  };
  for (const float x : {0.0F, 1e-9F, 3e-8F, 2.9802322e-8F, 5e-7F, 6.1e-5F, 6.1035156e-5F, 0.1F, 1.00048828125F,
                        1.00146484375F, 3.14159F, 65503.9F, 65519.0F}) {
    Fp16 half;
    narrow(x, half);
    EXPECT_EQ(half.bits, nearest(x)) << x;
    narrow(-x, half);
    EXPECT_EQ(half.bits, nearest(x) | 0x8000U) << x;
  }
  const auto as_half = [](float x) {
    Fp16 half;
    narrow(x, half);
    return half.bits;
  };
  EXPECT_EQ(as_half(65520.0F), 0x7C00U);
  EXPECT_EQ(as_half(std::numeric_limits<float>::infinity()), 0x7C00U);
  EXPECT_GT(as_half(std::numeric_limits<float>::quiet_NaN()), 0x7C00U);
  Bf16 brain;
  narrow(std::bit_cast<float>(0x3F808000U), brain);
  EXPECT_EQ(brain.bits, 0x3F80U);
  narrow(std::bit_cast<float>(0x3F818000U), brain);
  EXPECT_EQ(brain.bits, 0x3F82U);
}

TEST(PowerTable, ends_where_powers_are_too_small_to_be_seen) {
  PowerTable table;
  const PowerView few = table.up_to(0.9, 10);
  EXPECT_EQ(few.size, 11u);
  EXPECT_EQ(one_minus_power(few, 3), 1 - std::pow(0.9, 3));
  const PowerView all = table.up_to(0.9, 1'000'000);
  EXPECT_LT(all.size, 400u);
  EXPECT_EQ(one_minus_power(all, 1'000'000), 1 - std::pow(0.9, 1'000'000));
  EXPECT_EQ(one_minus_power(table.up_to(0.5, 3), 1), 0.5);
  EXPECT_EQ(one_minus_power(table.up_to(0, 3), 2), 1);
}

}  // namespace
}  // namespace oktopk::tensor_step_test
