// SPDX-License-Identifier: Apache-2.0
// Ranks that are not in step, or have other options: every rank throws the same error, which names the difference and
// the ranks, and nothing has changed anywhere.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "oktopk/base/version.h"
#include "oktopk/optim/optimiser.h"
#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/node_reducer.h"
#include "oktopk/reduce/notes.h"
#include "tests/support/message.h"
#include "tests/support/training.h"

namespace oktopk::desynchronised_test {
namespace {

constexpr Index n = 300;
constexpr std::size_t k = 15;

ReducerOptions plain() { return {.preset = "circulant", .density = 0.05}; }

std::vector<float> gradient_of(const Communicator& comm) { return make_input(Input::dyadic, n, comm.rank(), 0, 1); }

// The one text of the UsageError that every one of P ranks throws.
std::string common_error(int P, const std::function<void(Communicator&)>& act) {
  const auto texts = gather_world("threads", P, [&](Communicator& comm) -> std::string {
    try {
      return message_of([&] { act(comm); });
    } catch (const CommError& error) {
      return std::string("CommError: ") + error.what();
    }
  });
  const std::set<std::string> different(texts.begin(), texts.end());
  EXPECT_EQ(different.size(), 1U);
  return *different.begin();
}

void expect_names(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
}

struct OddCall {
  std::function<void(Communicator& comm, bool is_odd)> act;
  std::vector<std::string> words;
};

// A first call: there are no notes before it, so the agreement itself compares the calls.
template <class Sync>
void load_or_step(Sync& sync, const Communicator& comm, bool loads) {
  if (loads)
    sync.load(sync.save());
  else
    sync.step(gradient_of(comm));
}

TEST(Desynchronised, first_call_that_is_another_one_is_named) {
  const std::vector<OddCall> rows = {
      {[](Communicator& comm, bool is_odd) {
         Reducer reducer(comm, n, plain());
         load_or_step(reducer, comm, is_odd);
       },
       {"allreduce: rank 2 has call load(), rank 0 has call step()"}},
      {[](Communicator& comm, bool is_odd) {
         Reducer reducer(comm, n, plain());
         is_odd ? void(reducer.flush()) : reducer.load(reducer.save());
       },
       {"allreduce: rank 2 has call flush(), rank 0 has call load()"}},
      {[](Communicator& comm, bool is_odd) {
         Reducer reducer(comm, n, plain());
         const std::vector<Bytes> states(static_cast<std::size_t>(comm.size()), reducer.save());
         is_odd ? reducer.load(states[0]) : reducer.load_all(states);
       },
       {"rank 2 has call load(), rank 0 has call load_all()"}},
      {[](Communicator& comm, bool is_odd) {
         BucketedReducer reducer(comm, std::vector<Index>{100, 200}, plain());
         load_or_step(reducer, comm, is_odd);
       },
       {"bucketed reducer: rank 2 has call load(), rank 0 has call step() or flush()"}},
      {[](Communicator& comm, bool is_odd) {  // the second load() has replaced the state that agreed
         BucketedReducer reducer(comm, std::vector<Index>{100, 200}, plain());
         reducer.step(gradient_of(comm));
         reducer.load(reducer.save());
         load_or_step(reducer, comm, is_odd);
       },
       {"allreduce: rank 2 has call load(), rank 0 has call step()"}},
      {[](Communicator& comm, bool is_odd) {
         NodeReducer reducer(comm, n, plain(), {.group = 2});
         load_or_step(reducer, comm, is_odd);
       },
       {"rank 2 calls load(), but rank 0 calls step() after 0 steps"}},
      {[](Communicator& comm, bool is_odd) {
         Reducer reducer(comm, n, plain());
         SparseSGD sgd(reducer, {});
         std::vector<float> weights(n);
         is_odd ? sgd.load(sgd.save()) : void(sgd.step(weights, gradient_of(comm)));
       },
       {"optimiser: rank 2 has call load(), rank 0 has call step()"}},
  };
  for (const int P : {3, 5})
    for (const OddCall& row : rows)
      expect_names(common_error(P, [&](Communicator& comm) { row.act(comm, comm.rank() == 2); }), row.words);
}

TEST(Desynchronised, call_that_the_agreement_refuses_changes_nothing) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, n, plain());
    Reducer twin(comm, n, plain());
    EXPECT_THROW(load_or_step(reducer, comm, comm.rank() == 1), UsageError);
    for (Reducer* r : {&reducer, &twin}) r->step(gradient_of(comm));
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
        Reducer(comm, n, plain()).step(gradient_of(comm));
    });
  };
  expect_names(with("library 0.0.1, wire format 1"), {"rank 1 has library 0.0.1", "rank 0 has " + ours});
  expect_names(with(ours + ", wire format 9999"), {"rank 1 has wire format 9999", "rank 0 has wire format "});
}

// Options of the last rank that differ from those of the others.
struct Difference {
  std::function<void(ReducerOptions&)> change;
  std::string word = {};  // of the error
  std::string preset = "oktopk";
};

const std::vector<Difference>& differences() {
  static const std::vector<Difference> rows = {
      {[](auto& o) { o.warmup = dense_warmup(1); }, "warm-up"},
      {[](auto& o) {
        o.warmup = {{4, 0.25000001}};
      }},
      {[](auto& o) { o.warmup.clear(); }},
      {[](auto& o) { o.decay = 0.5F; }, "decay 0.5"},
      {[](auto& o) { o.decay = 0.99999994F; }},
      {[](auto& o) { o.nan_policy = NanPolicy::skip; }, "NaN policy skip"},
      {[](auto& o) { o.nan_policy = NanPolicy::local; }, "NaN policy local"},
      {[](auto& o) { o.selector = "gaussian"; }, "gaussian"},
      {[](auto& o) { o.allreduce.codec = parse_codec("elias_fano+log8"); }, "elias_fano+log8"},
      {[](auto& o) { o.allreduce.bucket = 5; }, "bucket 5"},
      {[](auto& o) { o.allreduce.balance_trigger = 4.0000001; }},
      {[](auto& o) { o.allreduce.dense = DenseSchedule::ring; }},
      {[](auto& o) { o.allreduce.tau_prime = 5; }, "tau' 5"},
      {[](auto& o) { o.preset = "circulant"; }, "circulant"},
      {[](auto& o) { o.k = k + 1; }, "k = 16, rank 0 has k = 15"},
      {[](auto& o) { o.adaptive = {.target_share = 0.5}; }, "adaptive share 0.5"},
      {[](auto& o) { o.check_every = 4; }, "check every 4"},
      {[](auto& o) { o.choice.external_dense = true; }, "external dense"},
      {[](auto& o) { o.profile.emplace().machine.alpha *= 2; }, "profile", "auto"},
  };
  return rows;
}

TEST(Desynchronised, options_that_differ_are_refused_before_anything_changes) {
  for (const int P : {2, 3})
    for (const Difference& row : differences()) {
      const std::string text = common_error(P, [&](Communicator& comm) {
        ReducerOptions options = preset_options(row.preset, k);
        if (row.preset == "auto") options.profile = Profile{};
        if (row.preset == "oktopk") options.warmup = {{4, 0.25}};
        Reducer twin(comm, n, options);
        if (comm.rank() == P - 1) row.change(options);
        Reducer reducer(comm, n, only_used(options));
        const auto gradient = gradient_of(comm);
        const std::string first = message_of([&] { reducer.step(gradient); });
        EXPECT_NE(message_of([&] { reducer.flush(); }), "accepted");
        EXPECT_EQ(message_of([&] { reducer.step(gradient); }), first);
        EXPECT_EQ(reducer.unsent_norm(), 0);
        EXPECT_EQ(reducer.steps(), 0u);
        EXPECT_EQ(message_of([&] { twin.step(gradient); }), "accepted");
        fail<UsageError>(first);
      });
      expect_names(text, {"rank " + std::to_string(P - 1) + " has", row.word});
    }
}

TEST(Desynchronised, options_of_optimisers_are_named) {
  expect_names(common_error(3,
                            [](Communicator& comm) {
                              Reducer reducer(comm, n, plain());
                              SparseSGD sgd(reducer, {.learning_rate = comm.rank() == 1 ? 0.2F : 0.1F});
                              std::vector<float> weights(n);
                              sgd.step(weights, gradient_of(comm));
                            }),
               {"optimiser: rank 1 has", "0.2", "rank 0 has"});
}

TEST(Desynchronised, step_with_policy_skip_and_a_graver_error_elsewhere_is_that_error) {
  ReducerOptions options = preset_options("topka", k);
  options.nan_policy = NanPolicy::skip;
  expect_names(common_error(3,
                            [&](Communicator& comm) {
                              std::vector<float> gradient(comm.rank() == 2 ? n - 1 : n, 1.0F);
                              if (comm.rank() == 0) gradient[3] = std::numeric_limits<float>::quiet_NaN();
                              Reducer(comm, n, options).step(gradient);
                            }),
               {"rank 2: "});
}

TEST(Desynchronised, notes_cost_what_predict_adds_and_policy_local_sends_none) {
  for (const int P : {2, 3, 5})
    run_world("threads", P, [&](Communicator& comm) {
      CountingCommunicator counting(comm);
      const auto run = [&](NanPolicy policy) {
        ReducerOptions options = preset_options("topka", k);
        options.nan_policy = policy;
        Reducer reducer(counting, n, options);
        reducer.step(gradient_of(comm));
        counting.reset();
        reducer.step(gradient_of(comm));
        return std::pair{counting.traffic(), state_of(reducer).predict({.n = n, .k = k, .P = P}).expected};
      };
      const auto [with, with_cost] = run(NanPolicy::error);
      const auto [without, without_cost] = run(NanPolicy::local);
      EXPECT_EQ(static_cast<double>(with.messages_sent - without.messages_sent), notes_cost(P).messages);
      EXPECT_EQ(static_cast<double>(with.bytes_sent - without.bytes_sent), notes_cost(P).bytes);
      EXPECT_DOUBLE_EQ(with_cost.bytes - without_cost.bytes, notes_cost(P).bytes);
      EXPECT_DOUBLE_EQ(with_cost.messages - without_cost.messages, notes_cost(P).messages);
    });
}

}  // namespace
}  // namespace oktopk::desynchronised_test
