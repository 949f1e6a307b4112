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

// Before the first step there are no notes: the agreement itself compares the calls.
TEST(Desynchronised, load_where_others_make_the_first_step_is_named) {
  for (const int P : {3, 5}) {
    const auto odd_call = [P](const std::function<void(Communicator&, bool)>& act) {
      return common_error(P, [&](Communicator& comm) { act(comm, comm.rank() == 2); });
    };
    expect_names(odd_call([](Communicator& comm, bool is_odd) {
                   Reducer reducer(comm, kSize, plain());
                   is_odd ? reducer.load(reducer.save()) : void(reducer.step(gradient_of(comm)));
                 }),
                 {"allreduce: rank 2 has call load(), rank 0 has call step()"});
    expect_names(odd_call([](Communicator& comm, bool is_odd) {
                   Reducer reducer(comm, kSize, plain());
                   is_odd ? void(reducer.flush()) : reducer.load(reducer.save());
                 }),
                 {"allreduce: rank 2 has call flush(), rank 0 has call load()"});
    expect_names(odd_call([](Communicator& comm, bool is_odd) {
                   BucketedReducer reducer(comm, std::vector<Index>{100, 200}, plain());
                   is_odd ? reducer.load(reducer.save()) : void(reducer.step(gradient_of(comm)));
                 }),
                 {"bucketed reducer: rank 2 has call load(), rank 0 has call step() or flush()"});
    expect_names(odd_call([](Communicator& comm, bool is_odd) {
                   NodeReducer reducer(comm, kSize, plain(), {.group = 2});
                   is_odd ? reducer.load(reducer.save()) : void(reducer.step(gradient_of(comm)));
                 }),
                 {"rank 2 calls load(), but rank 0 calls step() after 0 steps"});
    expect_names(odd_call([](Communicator& comm, bool is_odd) {
                   Reducer reducer(comm, kSize, plain());
                   SparseSGD sgd(reducer, {});
                   std::vector<float> weights(kSize);
                   is_odd ? sgd.load(sgd.save()) : void(sgd.step(weights, gradient_of(comm)));
                 }),
                 {"optimiser: rank 2 has call load(), rank 0 has call step()"});
  }
}

TEST(Desynchronised, second_load_where_others_step_is_named) {
  expect_names(common_error(3,
                            [](Communicator& comm) {
                              BucketedReducer reducer(comm, std::vector<Index>{100, 200}, plain());
                              reducer.step(gradient_of(comm));
                              const Bytes state = reducer.save();
                              reducer.load(state);
                              comm.rank() == 2 ? reducer.load(state) : void(reducer.step(gradient_of(comm)));
                            }),
               {"allreduce: rank 2 has call load(), rank 0 has call step()"});
}

TEST(Desynchronised, load_where_others_load_all_is_named) {
  for (const bool is_first : {true, false})
    expect_names(common_error(3,
                              [&](Communicator& comm) {
                                Reducer reducer(comm, kSize, plain());
                                if (!is_first) reducer.step(gradient_of(comm));
                                const std::vector<Bytes> states(3, reducer.save());
                                comm.rank() == 1 ? reducer.load(states[1]) : reducer.load_all(states);
                              }),
                 {"rank 1", "load()", "rank 0", "load_all()"});
}

TEST(Desynchronised, call_that_the_agreement_refuses_changes_nothing) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, kSize, plain());
    Reducer twin(comm, kSize, plain());
    const auto gradient = gradient_of(comm);
    if (comm.rank() == 1)
      EXPECT_THROW(reducer.load(reducer.save()), UsageError);
    else
      EXPECT_THROW(reducer.step(gradient), UsageError);
    for (Reducer* r : {&reducer, &twin}) r->step(gradient);
    EXPECT_EQ(reducer.save(), twin.save());
  });
}

// Rank 1 is a program of another version: it takes part in the agreement with its own words.
TEST(Desynchronised, versions_of_library_and_wire_format_are_named) {
  const std::string ours = "library " + std::string(library_version());
  const auto with = [](const std::string& words) {
    return common_error(3, [&](Communicator& comm) {
      Workspace work;
      if (comm.rank() == 1)
        require_equal(comm, "allreduce", words + ", call step(), n = 300, k = 15", work);
      else
        Reducer(comm, kSize, plain()).step(gradient_of(comm));
    });
  };
  expect_names(with("library 0.0.1, wire format 1"), {"rank 1 has library 0.0.1", "rank 0 has " + ours});
  expect_names(with(ours + ", wire format 9999"), {"rank 1 has wire format 9999", "rank 0 has wire format "});
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
