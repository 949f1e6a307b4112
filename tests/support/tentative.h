// SPDX-License-Identifier: Apache-2.0
// For tests of steps in two halves, of any kind of Reducer: options with dense and sparse stages, proposals that fail,
// and the comparison of a Reducer that rolled back with one that never began the step.
#pragma once

#include <gtest/gtest.h>

#include <span>
#include <type_traits>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "tests/support/training.h"

namespace oktopk {

// Two dense steps, two with more entries, then k.
inline ReducerOptions staged_options(const TestedMethod& method, std::size_t k) {
  ReducerOptions options = method.options(k);
  options.warmup = {{2, 1}, {2, 0.2}};
  return only_used(options);
}

inline std::vector<float> accumulator_of(const Reducer& reducer) {
  const auto values = state_of(reducer).unsent.values();
  return {values.begin(), values.end()};
}

// Whether the exchange failed.
template <class AnyReducer>
bool fails_to_propose(AnyReducer& reducer, std::span<const float> gradient) {
  try {
    reducer.propose(gradient);
    return false;
  } catch (const CommError&) {
    return true;
  }
}

// Proposes a gradient twice and rolls back, proposes the last one, and commits. A retry may leave the gradient out,
// except with nodes.
struct Tries {
  std::span<const float> gradient;
  std::span<const float> last = {};
};
// Updates are compared with `expected` as `look` sees them.
template <class AnyReducer, class Look>
void step_with_two_roll_backs(AnyReducer& tentative, const Tries& tries, Look look,
                              const std::invoke_result_t<Look, const Update&>& expected) {
  ASSERT_EQ(look(tentative.propose(tries.gradient)), expected);
  tentative.roll_back();
  ASSERT_EQ(look(tentative.propose(tries.gradient)), expected) << "the gradient is not added twice";
  tentative.roll_back();
  ASSERT_EQ(look(tentative.propose(tries.last)), expected);
  tentative.commit();
}
template <class AnyReducer, class Look>
void flush_with_a_roll_back(AnyReducer& tentative, Look look,
                            const std::invoke_result_t<Look, const Update&>& expected) {
  ASSERT_EQ(look(tentative.propose_flush()), expected);
  tentative.roll_back();
  ASSERT_EQ(look(tentative.propose_flush()), expected);
  tentative.commit();
}

// After a roll-back: the accumulator is that of `before` and the gradient, and all else is as in `before`. Where the
// proposal failed, it may have done so before the gradient was added.
inline void expect_only_begun(const Reducer& rolled_back, const Reducer& before, std::span<const float> gradient,
                              bool failed) {
  ASSERT_EQ(rest_of(rolled_back), rest_of(before));
  const std::vector<float> unchanged = accumulator_of(before);
  std::vector<float> expected = unchanged;
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += gradient[i];
  const std::vector<float> now = accumulator_of(rolled_back);
  ASSERT_TRUE(now == expected || (failed && now == unchanged));
}

}  // namespace oktopk
