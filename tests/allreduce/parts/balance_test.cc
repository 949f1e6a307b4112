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
  EXPECT_FALSE(Balance::is_due(sizes_of({10, 10, 10, 10}), 1));
  EXPECT_TRUE(Balance::is_due(sizes_of({11, 10, 10, 9}), 1));
  EXPECT_FALSE(Balance::is_due(sizes_of({40, 0, 0, 0}), 4));
  EXPECT_TRUE(Balance::is_due(sizes_of({41, 0, 0, 0, 0}), 4));
  EXPECT_FALSE(Balance::is_due(sizes_of({400, 100, 0, 0, 0}), 4));
  EXPECT_TRUE(Balance::is_due(sizes_of({401, 99, 0, 0, 0}), 4));
}

TEST(Balance, is_due_never_when_there_is_nothing) { EXPECT_FALSE(Balance::is_due(sizes_of({0, 0, 0}), 1)); }

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
    balance.run(counting, sizes, {codec, {0, n}, 9}, piece);
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

TEST(Balance, run_with_empty_ranks_and_nothing_at_all_works) {
  EXPECT_EQ(balance(sizes_of({0, 0, 0})), 0u);
  balance(sizes_of({0, 10, 0, 0, 10, 0}));
}

TEST(Balance, run_of_even_pieces_sends_nothing) { EXPECT_EQ(balance(sizes_of({10, 10, 10})), 0u); }

TEST(Balance, run_with_a_lossy_codec_still_moves_exact_values) {
  balance(sizes_of({30, 0, 0, 3}), {IndexCoding::elias_fano, ValueCoding::log4});
}

TEST(Balance, run_with_a_rank_that_brings_other_entries_is_a_comm_error) {
  EXPECT_THROW(run_world("threads", 2,
                         [](Communicator& comm) {
                           const auto sizes = sizes_of({4, 0});
                           SparseVector piece;
                           if (comm.rank() == 0) piece = make_sparse({{1, 1}, {2, 1}, {3, 1}, {4, 1}});
                           Balance balance;
                           balance.run(comm, sizes, {{}, {0, 100}, comm.rank() == 0 ? 9U : 8U}, piece);
                         }),
               CommError);
}

}  // namespace
}  // namespace oktopk::balance_test
