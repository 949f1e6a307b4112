// SPDX-License-Identifier: Apache-2.0
// check_every: a flipped bit in the update or in the caller's weights is found in the next step after a check is due,
// and all ranks name the same rank. Sound runs are the same bits, and cost what predict() says.
#include "oktopk/reduce/update_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/laws/faults.h"
#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/node_reducer.h"
#include "tests/support/training.h"

namespace oktopk::update_check_test {
namespace {

constexpr Index n = 300;

ReducerOptions checking(std::uint64_t every, const std::string& preset = "circulant") {
  return {.preset = preset, .k = preset == "dense" ? 0U : 12U, .check_every = every};
}

// Flips a bit in the last message that arrives in a dense step, on one rank. Messages of dense steps have no checksum.
class FlippingCommunicator final : public ForwardingCommunicator {
 public:
  FlippingCommunicator(Communicator& inner, bool flips) : ForwardingCommunicator(inner), flips_(flips) {}

  std::unique_ptr<Communicator> split(int, int) override { fail<UsageError>("no split"); }
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    recvs_ = recvs;
    return inner().begin(sends, recvs);
  }
  void finish(std::uint64_t ticket) override {
    inner().finish(ticket);
    if (!recvs_.empty()) last_ = recvs_.back().buffer.first(recvs_.back().size);
    if (flips_ && ++exchanges_ == at_) last_.front() ^= std::byte{1};
  }
  void flip_in(int exchanges) { at_ = exchanges_ + exchanges; }
  int exchanges() const { return exchanges_; }

 private:
  const bool flips_;
  std::span<Recv> recvs_;
  std::span<std::byte> last_;
  int exchanges_ = 0, at_ = -1;
};

std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Divergence& error) {
    return error.what();
  }
  return "";
}

// Steps with weights that a bit of one rank may spoil after step 5. The error of each step, from 1.
template <class Make>
std::vector<std::string> errors_of_steps(Communicator& comm, int flipped, const Make& make) {
  std::vector<float> weights(n, 1.0F);
  ReducerOptions options = checking(3);
  options.checked = [&] { return std::as_bytes(std::span(weights)); };
  const auto sync = make(comm, options);
  std::vector<std::string> errors;
  for (std::uint64_t step = 0; step < 9; ++step) {
    const auto gradient = make_input(Input::gaussian, n, comm.rank(), step, 1);
    errors.push_back(error_of([&] { sync->step(gradient).subtract_from(weights); }));
    if (step == 4 && comm.rank() == flipped) weights[17] += 1;
  }
  return errors;
}

template <class Make>
void expect_found(int P, int flipped, const std::string& text, const Make& make) {
  run_world("threads", P, [&](Communicator& comm) {
    const auto errors = errors_of_steps(comm, flipped, make);
    for (std::size_t i = 0; i < errors.size(); ++i)
      EXPECT_EQ(errors[i], i == 6 ? text : "") << "step " << i + 1;  // steps 3 and 6 are checked before the next one
  });
}

const auto kReducer = [](Communicator& comm, const ReducerOptions& o) { return std::make_unique<Reducer>(comm, n, o); };
const auto kBuckets = [](Communicator& comm, const ReducerOptions& o) {
  return std::make_unique<BucketedReducer>(comm, std::vector<std::uint64_t>{100, 0, 200}, o,
                                           FusionOptions{.policy = FusionPolicy::tensor});
};
const auto kNodes = [](Communicator& comm, const ReducerOptions& o) {
  return std::make_unique<NodeReducer>(comm, n, o, NodeOptions{2});
};

TEST(UpdateCheck, weights_that_differ_name_the_rank_and_the_run_goes_on) {
  const std::string text = "the update: rank 1 differs from the other ";
  expect_found(3, 1, text + "2 ranks in step 6", kReducer);
  expect_found(5, 1, text + "4 ranks in step 6", kReducer);
  expect_found(3, 1, text + "2 ranks in step 6", kBuckets);
  expect_found(5, 1, text + "4 ranks in step 6", kNodes);
  expect_found(2, 1, "the update: ranks 0 and 1 differ in step 6, and no majority says who is right", kReducer);
}

TEST(UpdateCheck, hash_covers_indices_values_and_dense_values) {
  const std::vector<Index> places = {3, 7}, others = {3, 8};
  const std::vector<float> values = {1, 2}, changed = {1, 2.5F};
  const auto hash = [](const Update& update) {
    UpdateCheck check(checking(1));
    check.note(update, 1);
    return check.take_hash();
  };
  const std::uint64_t usual = hash({.sparse = {places, values}});
  EXPECT_EQ(hash({.sparse = {places, values}}), usual);
  EXPECT_NE(hash({.sparse = {others, values}}), usual);
  EXPECT_NE(hash({.sparse = {places, changed}}), usual);
  EXPECT_NE(hash({.sparse = {}, .dense = values}), hash({.sparse = {}, .dense = changed}));
}

TEST(UpdateCheck, equal_weights_pass) {
  for (const int P : {1, 2, 3, 5}) expect_found(P, -1, "", kReducer);
}

TEST(UpdateCheck, flipped_bit_of_an_update_is_found) {
  for (const NanPolicy policy : {NanPolicy::error, NanPolicy::local}) {
    run_world("threads", 3, [&](Communicator& comm) {
      FlippingCommunicator flipping(comm, comm.rank() == 2);
      ReducerOptions options = checking(2, "dense");
      options.nan_policy = policy;
      Reducer reducer(flipping, n, options);
      const auto step = [&](std::uint64_t i) { reducer.step(gradient_of(reducer, i, Input::gaussian)); };
      step(0);
      const int before = flipping.exchanges();
      step(1);
      const int exchanges_of_step = flipping.exchanges() - before;
      step(2);  // with the check of step 2, which is sound
      flipping.flip_in(exchanges_of_step);
      step(3);
      const std::string error = error_of([&] { step(4); });
      EXPECT_EQ(error, "the update: rank 2 differs from the other 2 ranks in step 4");
      EXPECT_EQ(reducer.steps(), 4u);
    });
  }
}

TEST(UpdateCheck, changes_no_bit_and_costs_what_predict_says) {
  for (const NanPolicy policy : {NanPolicy::error, NanPolicy::local}) {
    run_world("threads", 5, [&](Communicator& comm) {
      ReducerOptions options = checking(0);
      options.nan_policy = policy;
      Reducer plain(comm, n, options);
      options.check_every = 2;
      Reducer checked(comm, n, options);
      MessageCount more{};
      for (std::uint64_t step = 0; step < 9; ++step) {
        const auto gradient = gradient_of(plain, step, Input::gaussian);
        const Update a = plain.step(gradient);
        const Update b = checked.step(gradient);
        EXPECT_TRUE(std::ranges::equal(a.sparse.idx, b.sparse.idx) && std::ranges::equal(a.sparse.val, b.sparse.val));
        if (step == 0) continue;  // the agreement
        more.messages += checked.metrics().messages - plain.metrics().messages;
        more.bytes += checked.metrics().wire_bytes - plain.metrics().wire_bytes;
      }
      const Problem problem{.n = n, .k = 12, .P = 5};
      const Cost a = state_of(std::as_const(plain)).predict(problem).expected;
      const Cost b = state_of(std::as_const(checked)).predict(problem).expected;
      EXPECT_DOUBLE_EQ(static_cast<double>(more.messages), 8 * (b.messages - a.messages));
      EXPECT_DOUBLE_EQ(static_cast<double>(more.bytes), 8 * (b.bytes - a.bytes));
      EXPECT_GT(more.bytes, 0u);
    });
  }
}

TEST(UpdateCheck, bytes_that_cannot_be_had_are_an_error_of_all_ranks) {
  run_world("threads", 3, [](Communicator& comm) {
    ReducerOptions options = checking(1);
    options.checked = [&]() -> std::span<const std::byte> {
      if (comm.rank() == 1) fail<CommError>("no weights");
      return {};
    };
    Reducer reducer(comm, n, options);
    const auto gradient = gradient_of(reducer, 0, Input::gaussian);
    reducer.step(gradient);
    try {
      reducer.step(gradient);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const UsageError& error) {
      EXPECT_STREQ(error.what(), "reducer: rank 1: the bytes to check cannot be had: no weights");
    }
    options.check_every = 0;
    EXPECT_THROW(Reducer(comm, n, options), UsageError);
  });
}

TEST(UpdateCheck, steps_that_roll_back_are_not_compared) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, n, checking(1));
    for (std::uint64_t step = 0; step < 4; ++step) {
      const auto gradient = gradient_of(reducer, step, Input::gaussian);
      reducer.propose(gradient);
      reducer.roll_back();
      reducer.propose(gradient);
      reducer.commit();
    }
    EXPECT_EQ(reducer.steps(), 4u);
  });
}

TEST(UpdateCheck, states_with_and_without_it_fit) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer plain(comm, n, checking(0));
    plain.step(gradient_of(plain, 0, Input::gaussian));
    Reducer checked(comm, n, checking(1));
    checked.step(gradient_of(checked, 0, Input::gaussian));
    checked.load(plain.save());
    checked.step(gradient_of(checked, 1, Input::gaussian));
  });
}

}  // namespace
}  // namespace oktopk::update_check_test
