// SPDX-License-Identifier: Apache-2.0
// Ranks that are not in step: every rank throws the same error, which names the difference and the ranks.
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"
#include "oktopk/base/version.h"
#include "oktopk/optim/optimiser.h"
#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/node_reducer.h"
#include "oktopk/reduce/reducer.h"
#include "tests/support/world.h"

namespace oktopk::desynchronised_test {
namespace {

constexpr Index kSize = 300;

ReducerOptions plain() { return {.preset = "circulant", .density = 0.05}; }

// The one text of the UsageError that every one of P ranks throws.
std::string common_error(int P, const std::function<void(Communicator&)>& act) {
  const auto texts = gather_world("threads", P, [&](Communicator& comm) -> std::string {
    try {
      act(comm);
    } catch (const UsageError& error) {
      return error.what();
    } catch (const CommError& error) {
      return std::string("CommError: ") + error.what();
    }
    return "no error";
  });
  const std::set<std::string> different(texts.begin(), texts.end());
  EXPECT_EQ(different.size(), 1U);
  return *different.begin();
}

void expect_names(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
}

std::vector<float> gradient_of(const Communicator& comm) {
  std::vector<float> gradient(kSize);
  for (std::size_t i = 0; i < gradient.size(); ++i)
    gradient[i] = static_cast<float>((i * 7 + 3) % 11) - static_cast<float>(comm.rank());
  return gradient;
}

// Both make two steps; then rank 2 makes another call than the others.
std::string after_two_steps(int P, const std::function<void(Reducer&)>& usual,
                            const std::function<void(Reducer&)>& odd) {
  return common_error(P, [&](Communicator& comm) {
    Reducer reducer(comm, kSize, plain());
    for (int i = 0; i < 2; ++i) reducer.step(gradient_of(comm));
    comm.rank() == 2 ? odd(reducer) : usual(reducer);
  });
}

TEST(Desynchronised, flush_where_others_step_is_named) {
  for (const int P : {3, 5})
    expect_names(after_two_steps(
                     P, [](Reducer& r) { r.step(gradient_of(r.comm())); }, [](Reducer& r) { r.flush(); }),
                 {"rank 2 calls flush() after 2 steps, but rank 0 calls step() after 2 steps"});
}

TEST(Desynchronised, load_where_others_step_is_named) {
  expect_names(after_two_steps(
                   3, [](Reducer& r) { r.step(gradient_of(r.comm())); }, [](Reducer& r) { r.load(r.save()); }),
               {"rank 2 calls load(), but rank 0 calls step() after 2 steps"});
}

TEST(Desynchronised, call_that_is_refused_changes_nothing) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, kSize, plain());
    Reducer twin(comm, kSize, plain());
    const auto gradient = gradient_of(comm);
    for (Reducer* r : {&reducer, &twin}) r->step(gradient);
    if (comm.rank() == 1)
      EXPECT_THROW(reducer.flush(), UsageError);
    else
      EXPECT_THROW(reducer.step(gradient), UsageError);
    for (Reducer* r : {&reducer, &twin}) r->step(gradient);
    EXPECT_EQ(reducer.save(), twin.save());
  });
}

TEST(Desynchronised, states_of_different_steps_are_named) {
  expect_names(common_error(3,
                            [](Communicator& comm) {
                              Reducer reducer(comm, kSize, plain());
                              reducer.step(gradient_of(comm));
                              Bytes state = reducer.save();
                              reducer.step(gradient_of(comm));
                              reducer.load(comm.rank() == 1 ? state : reducer.save());
                            }),
               {"saved after different numbers of steps, 1 to 2"});
}

TEST(Desynchronised, options_are_named) {
  const auto with = [](const std::function<void(ReducerOptions&)>& change) {
    return common_error(3, [&](Communicator& comm) {
      ReducerOptions options = plain();
      if (comm.rank() == 2) change(options);
      Reducer(comm, kSize, options).step(gradient_of(comm));
    });
  };
  expect_names(with([](ReducerOptions& o) { o.nan_policy = NanPolicy::local; }), {"rank 2 has", "local", "rank 0 has"});
  expect_names(with([](ReducerOptions& o) { o.density = 0.1; }), {"rank 2 has k = 30, rank 0 has k = 15"});
  expect_names(with([](ReducerOptions& o) { o.decay = 0.5F; }), {"rank 2 has", "decay", "rank 0 has"});
}

TEST(Desynchronised, tensors_of_buckets_are_named) {
  expect_names(common_error(3,
                            [](Communicator& comm) {
                              const std::vector<Index> tensors =
                                  comm.rank() == 1 ? std::vector<Index>{100, 200} : std::vector<Index>{200, 100};
                              BucketedReducer reducer(comm, tensors, plain());
                              reducer.step(gradient_of(comm));
                            }),
               {"bucketed reducer: rank 1 has", "rank 0 has"});
}

TEST(Desynchronised, sizes_of_nodes_are_named) {
  expect_names(common_error(3,
                            [](Communicator& comm) {
                              NodeReducer reducer(comm, comm.rank() == 2 ? kSize + 1 : kSize, plain(), {.group = 2});
                            }),
               {"node reducer: rank 2 has n = 301, rank 0 has n = 300"});
}

TEST(Desynchronised, options_of_optimisers_are_named) {
  expect_names(common_error(3,
                            [](Communicator& comm) {
                              Reducer reducer(comm, kSize, plain());
                              SparseSGD sgd(reducer, {.learning_rate = comm.rank() == 1 ? 0.2F : 0.1F});
                              std::vector<float> weights(kSize);
                              sgd.step(weights, gradient_of(comm));
                            }),
               {"optimiser: rank 1 has", "0.2", "rank 0 has"});
}

}  // namespace
}  // namespace oktopk::desynchronised_test
