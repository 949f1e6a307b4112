// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/balance.h"

#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "tests/support/runs.h"

namespace oktopk::balance_test {
namespace {

std::vector<Sizes> sizes_of(std::initializer_list<std::uint64_t> entries) {
  std::vector<Sizes> all;
  for (const std::uint64_t e : entries) all.push_back({e, 0});
  return all;
}

TEST(Balance, is_due_only_beyond_the_trigger) {
  EXPECT_FALSE(Balance::is_due(sizes_of({0, 0, 0}), 1));
  EXPECT_FALSE(Balance::is_due(sizes_of({10, 10, 10, 10}), 1));
  EXPECT_TRUE(Balance::is_due(sizes_of({11, 10, 10, 9}), 1));
  EXPECT_FALSE(Balance::is_due(sizes_of({40, 0, 0, 0}), 4));
  EXPECT_TRUE(Balance::is_due(sizes_of({41, 0, 0, 0, 0}), 4));
  EXPECT_FALSE(Balance::is_due(sizes_of({400, 100, 0, 0, 0}), 4));
  EXPECT_TRUE(Balance::is_due(sizes_of({401, 99, 0, 0, 0}), 4));
}

// Runs the balance for pieces of the given sizes of one sorted vector; checks the re-slicing.
// Returns the messages that were sent.
std::uint64_t balance(const std::vector<Sizes>& sizes, Codec codec = {}) {
  const int P = static_cast<int>(sizes.size());
  constexpr Index n = 4000000000U;
  std::size_t total = 0;
  for (const Sizes& s : sizes) total += s.entries;
  Random random(2);
  const SparseVector whole = random_sparse(random, total, 0, n);
  std::uint64_t messages = 0;
  const auto pieces = gather_world("threads", P, [&](Communicator& comm) {
    CountingCommunicator counting(comm);
    std::size_t begin = 0;
    for (int r = 0; r < comm.rank(); ++r) begin += sizes[static_cast<std::size_t>(r)].entries;
    SparseVector piece;
    piece.append(whole.view().slice(begin, sizes[static_cast<std::size_t>(comm.rank())].entries));
    Balance balance;
    std::vector<Sizes> even = sizes;
    balance.run(counting, {codec, {0, n}, 9}, even, piece);
    EXPECT_EQ(even[static_cast<std::size_t>(comm.rank())].entries, piece.size());
    return std::pair(piece, counting.traffic().messages_sent);
  });
  SparseVector joined;
  for (const auto& [piece, sent] : pieces) {
    EXPECT_LE(piece.size(), (total + sizes.size() - 1) / sizes.size());
    EXPECT_GE(piece.size(), total / sizes.size());
    EXPECT_LE(sent, static_cast<std::uint64_t>(P - 1));
    joined.append(piece);
    messages += sent;
  }
  EXPECT_EQ(list_of(joined), list_of(whole));
  return messages;
}

TEST(Balance, run_of_uneven_pieces_slices_the_concatenation_evenly) {
  balance(sizes_of({5, 1, 9, 0, 3}));
  balance(sizes_of({0, 0, 1, 0}));
  balance(sizes_of({1, 2, 3, 4, 5, 6, 7}));
  balance(sizes_of({17}));
  balance(sizes_of({0, 10, 0, 0, 10, 0}));
  balance(sizes_of({30, 0, 0, 3}), {IndexCoding::elias_fano, ValueCoding::log4});  // values still travel exactly
  EXPECT_EQ(balance(sizes_of({0, 0, 0})), 0u);
  EXPECT_EQ(balance(sizes_of({10, 10, 10})), 0u);
  Random random(3);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<Sizes> sizes(1 + random.below(8));
    for (Sizes& s : sizes) s = {random.below(4) == 0 ? 0 : random.below(50), 0};
    balance(sizes);
  }
}

TEST(Balance, run_with_all_on_one_rank_hands_a_piece_to_every_other) {
  for (const std::size_t holder : {0U, 3U, 7U}) {
    std::vector<Sizes> sizes(8, Sizes{0, 0});
    sizes[holder].entries = 100;
    EXPECT_EQ(balance(sizes), 7u);
  }
}

TEST(Balance, run_with_a_rank_that_brings_other_entries_is_a_comm_error) {
  EXPECT_THROW(run_world("threads", 2,
                         [](Communicator& comm) {
                           auto sizes = sizes_of({4, 0});
                           SparseVector piece;
                           if (comm.rank() == 0) piece = make_sparse({{1, 1}, {2, 1}, {3, 1}, {4, 1}});
                           Balance balance;
                           balance.run(comm, {{}, {0, 100}, comm.rank() == 0 ? 9U : 8U}, sizes, piece);
                         }),
               CommError);
}

using Load = std::vector<std::uint64_t>;

const Load kEven{100, 110, 90, 100};
const Load kUneven{310, 30, 30, 30};
const Cuts kCuts{0, 250, 500, 750, 1000};

// Steps from `from` on in which a recut is due, always with the same cuts and load.
std::vector<std::uint64_t> due(RecutRule& rule, std::uint64_t from, std::uint64_t to, const Cuts& cuts,
                               const Load& load) {
  std::vector<std::uint64_t> steps;
  for (std::uint64_t step = from; step < to; ++step)
    if (rule.is_due(step, cuts, load)) steps.push_back(step);
  return steps;
}

TEST(RecutRule, is_due_at_the_first_step_and_16_steps_after_the_last) {
  RecutRule rule;
  EXPECT_TRUE(rule.is_due(0, kCuts, kUneven));
  const Load less{200, 65, 65, 70};
  EXPECT_EQ(due(rule, 1, 18, kCuts, less), (std::vector<std::uint64_t>{16}));
}

TEST(RecutRule, is_not_due_while_the_load_is_even_or_there_is_none) {
  RecutRule rule;
  EXPECT_TRUE(due(rule, 0, 100, kCuts, kEven).empty());
  EXPECT_TRUE(due(rule, 100, 120, kCuts, {0, 0, 0, 0}).empty());
  EXPECT_TRUE(due(rule, 120, 200, kCuts, {3, 0, 0, 0}).empty());  // noise
  EXPECT_TRUE(rule.is_due(200, kCuts, kUneven));
}

TEST(RecutRule, is_due_ever_more_rarely_when_it_does_not_help) {
  RecutRule rule;
  EXPECT_EQ(due(rule, 0, 1100, kCuts, kUneven), (std::vector<std::uint64_t>{0, 32, 96, 224, 480, 736, 992}));
}

TEST(RecutRule, is_due_soon_again_when_the_last_one_helped) {
  RecutRule rule;
  due(rule, 0, 225, kCuts, kUneven);  // the last at 224, the pause is 256
  EXPECT_TRUE(due(rule, 225, 300, kCuts, kEven).empty());
  EXPECT_EQ(due(rule, 300, 301, kCuts, kUneven).size(), 1u);
}

// All load lies in a few indices: it takes several recuts to find them.
TEST(RecutRule, is_due_soon_again_when_the_load_came_into_a_narrower_region) {
  RecutRule rule;
  EXPECT_TRUE(rule.is_due(0, {0, 800, 900, 950, 1000}, kUneven));
  EXPECT_TRUE(due(rule, 1, 16, {0, 200, 400, 600, 1000}, kUneven).empty());
  EXPECT_TRUE(rule.is_due(16, {0, 200, 400, 600, 1000}, kUneven));
}

TEST(RecutRule, is_not_due_for_the_load_of_one_index) {
  RecutRule rule;
  EXPECT_TRUE(due(rule, 0, 300, {0, 1, 400, 700, 1000}, kUneven).empty());
  EXPECT_TRUE(due(rule, 300, 400, {0, 1, 1, 1, 1000}, {90, 0, 0, 10}).empty());
  EXPECT_TRUE(rule.is_due(400, {0, 1, 400, 700, 1000}, Load{310, 400, 30, 30}));
}

TEST(RecutRule, save_and_load_go_on_alike) {
  for (const std::uint64_t stop : {1U, 10U, 33U, 100U, 250U}) {
    RecutRule rule;
    due(rule, 0, stop, kCuts, kUneven);
    StateWriter writer;
    rule.save(writer);
    const Bytes state = writer.seal();
    StateReader reader(state);
    RecutRule resumed;
    resumed.load(reader);
    EXPECT_EQ(due(resumed, stop, 1000, kCuts, kUneven), due(rule, stop, 1000, kCuts, kUneven));
  }
}

TEST(RecutRule, load_of_an_impossible_pause_throws) {
  for (const std::uint64_t pause : {0U, 15U, 257U}) {
    StateWriter writer;
    for (const std::uint64_t number : {std::uint64_t{5}, pause, std::uint64_t{1}, std::uint64_t{1}}) writer.put(number);
    const Bytes state = writer.seal();
    StateReader reader(state);
    RecutRule rule;
    EXPECT_THROW(rule.load(reader), UsageError);
  }
}

}  // namespace
}  // namespace oktopk::balance_test
