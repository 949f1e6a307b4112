// SPDX-License-Identifier: Apache-2.0
// The circulant sparse reduce-scatter: the same sums for every skip list, tallies that add up,
// pruning that loses nothing.
#include "oktopk/allreduce/parts/reduce_scatter.h"

#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "tests/support/runs.h"

namespace oktopk::reduce_scatter_test {
namespace {

constexpr Index kN = 1000;
constexpr int kSizes[] = {1, 2, 3, 5, 7, 8, 12};

std::vector<Skips> skip_lists(int P) {
  std::vector<Skips> lists;
  for (const char* text : {"direct", "halving", "power", "grid", "radix:3"}) lists.push_back(parse_skips(text, P));
  Skips every;
  for (int s = P; s >= 1; --s) every.push_back(s);
  lists.push_back(every);
  if (P == 12) lists.push_back({12, 7, 3, 1});
  return lists;
}

SparseVector selection_of(int rank) {
  Random random(9, static_cast<std::uint64_t>(rank));
  return random_sparse(random, 150, 0, kN);
}

struct Reduced {
  SparseVector region, returned, dropped;
  BlockTally tally;
  Traffic traffic;
};

std::vector<Reduced> reduce(int P, const Skips& skips, const Cuts& cuts, Codec codec = {},
                            const ReduceScatterOptions& options = {}) {
  return gather_world("threads", P, [&](Communicator& comm) {
    CountingCommunicator counting(comm);
    SparseReduceScatter scatter;
    scatter.set_skips(skips);
    const auto rank = static_cast<std::uint64_t>(comm.rank());
    // Ranks 2, 5, 8, ... have nothing.
    const SparseVector mine = rank % 3 == 2 ? SparseVector{} : selection_of(comm.rank());
    const BlockTally tally{mine.empty() ? 0U : 1U, 0, mine.empty() ? 0 : -1000 - (1LL << 30) * comm.rank()};
    const auto device = make_cpu_device();
    const Contribution contribution{mine};
    ReduceScatterOptions with_tally = options;
    with_tally.tally = &tally;
    Outcome out;
    for (int repeat = 0; repeat < 2; ++repeat) {  // the second run must not see the first
      counting.reset();
      out.returned.clear();
      out.dropped.clear();
      scatter.run({counting, *device, contribution, kN, 75, codec, 5, 0}, cuts, with_tally, out);
    }
    Reduced reduced;
    reduced.region.append(scatter.sums());
    reduced.returned = out.returned;
    reduced.dropped = out.dropped;
    reduced.tally = scatter.tally();
    reduced.traffic = counting.traffic();
    return reduced;
  });
}

std::vector<Entries> brought(int P) {
  std::vector<Entries> all;
  for (int r = 0; r < P; ++r)
    if (r % 3 != 2) all.push_back(entries_of(selection_of(r)));
  return all;
}

TEST(SparseReduceScatter, run_with_any_skips_gives_sums_and_tallies_by_the_messages_of_its_skips) {
  for (const int P : kSizes) {
    const Entries sums = oracle_sum(brought(P));
    std::uint32_t contributors = 0;
    std::int64_t log_threshold = 0;
    for (int r = 0; r < P; ++r) {
      if (r % 3 == 2) continue;
      ++contributors;
      log_threshold += -1000 - (1LL << 30) * r;
    }
    for (const Skips& skips : skip_lists(P))
      for (Cuts cuts : {equal_cuts(kN, P), Cuts(static_cast<std::size_t>(P) + 1, 0)}) {
        cuts.back() = kN;  // the second: all but the last region empty
        SCOPED_TRACE("P = " + std::to_string(P) + ", skips " + to_string(skips));
        const auto reduced = reduce(P, skips, cuts);
        Entries joined;
        for (int r = 0; r < P; ++r) {
          const Reduced& mine = reduced[static_cast<std::size_t>(r)];
          EXPECT_EQ(part(mine.region, region(cuts, r)).size(), mine.region.size());
          joined.merge(entries_of(mine.region));
          std::uint64_t load = 0;
          for (int from = 0; from < P; ++from)
            if (from % 3 != 2) load += part(selection_of(from), region(cuts, r)).size();
          EXPECT_EQ(mine.tally.contributors, contributors);
          EXPECT_EQ(mine.tally.log_threshold, log_threshold);
          EXPECT_EQ(mine.tally.load, load);
          EXPECT_EQ(mine.traffic.messages_sent, static_cast<std::uint64_t>(message_count(skips)));
          EXPECT_EQ(mine.traffic.messages_received, mine.traffic.messages_sent);
        }
        EXPECT_EQ(joined, sums);
      }
  }
}

TEST(SparseReduceScatter, run_with_a_quota_keeps_it_and_drops_no_mass) {
  for (const int P : kSizes)
    for (const std::size_t quota : {1U, 7U, 40U})
      for (const Skips& skips : skip_lists(P)) {
        Entries total;
        for (const Reduced& r : reduce(P, skips, equal_cuts(kN, P), {}, {.quota = quota})) {
          EXPECT_LE(r.region.size(), quota);
          for (const SparseVector* v : {&r.region, &r.dropped})
            for (const auto& [i, x] : list_of(*v)) oracle_add(total, {{i, x}});
        }
        EXPECT_EQ(total, oracle_sum(brought(P))) << "P = " << P << ", skips " << to_string(skips);
      }
}

TEST(SparseReduceScatter, run_with_a_lossy_codec_returns_the_rounding_errors) {
  for (const int P : {3, 8})
    for (const ValueCoding value : {ValueCoding::bf16, ValueCoding::log8, ValueCoding::log4})
      for (const Skips& skips : skip_lists(P)) {
        std::vector<double> total(kN, 0.0);
        std::size_t errors = 0;
        for (const Reduced& r : reduce(P, skips, equal_cuts(kN, P), {IndexCoding::coo32, value})) {
          errors += r.returned.size();
          for (const SparseVector* v : {&r.region, &r.returned})
            for (const auto& [i, x] : list_of(*v)) total[i] += x;
        }
        EXPECT_GT(errors, 0u);
        for (const auto& [i, x] : oracle_sum(brought(P))) EXPECT_NEAR(total[i], x, 1e-5);
      }
}

TEST(SparseReduceScatter, run_in_buckets_gives_the_same_sums) {
  for (const int P : kSizes) {
    const Cuts cuts = equal_cuts(kN, P);
    const auto expected = reduce(P, direct_skips(P), cuts);
    for (const std::size_t bucket : {0U, 1U, 2U, 4U, 100U}) {
      const auto reduced = reduce(P, direct_skips(P), cuts, {}, {.bucket = bucket});
      for (int r = 0; r < P; ++r) {
        const Reduced& mine = reduced[static_cast<std::size_t>(r)];
        const Reduced& plain = expected[static_cast<std::size_t>(r)];
        EXPECT_EQ(mine.tally.load, plain.tally.load);
        EXPECT_EQ(mine.traffic.bytes_sent, plain.traffic.bytes_sent);
        EXPECT_EQ(list_of(mine.region), list_of(plain.region)) << "P = " << P << ", bucket " << bucket;
      }
    }
  }
}

TEST(SparseReduceScatter, run_with_another_tag_on_one_rank_is_a_comm_error) {
  for (const bool tallies : {false, true})
    EXPECT_THROW(run_world("threads", 3,
                           [&](Communicator& comm) {
                             SparseReduceScatter scatter;
                             scatter.set_skips(direct_skips(3));
                             const BlockTally tally;
                             const SparseVector mine = selection_of(comm.rank());
                             const Contribution contribution{mine};
                             const auto device = make_cpu_device();
                             Outcome out;
                             scatter.run({comm, *device, contribution, kN, 75, {}, comm.rank() == 1 ? 6U : 5U, 0},
                                         equal_cuts(kN, 3), {.tally = tallies ? &tally : nullptr}, out);
                           }),
                 CommError);
}

TEST(SparseReduceScatter, predict_counts_messages_and_disjoint_blocks) {
  const Problem problem{.n = 1e6, .k = 800, .P = 8, .disjoint = true};
  const Cost direct = SparseReduceScatter::predict(direct_skips(8), problem, {}, {});
  EXPECT_DOUBLE_EQ(direct.messages, 7);
  EXPECT_DOUBLE_EQ(direct.bytes, 7 * (6 + 8 * 100.0));
  EXPECT_DOUBLE_EQ(direct.entries, 800);  // those at home included
  const BlockTally tally;
  const Cost halving = SparseReduceScatter::predict(halving_skips(8), problem, {}, {.tally = &tally});
  EXPECT_DOUBLE_EQ(halving.messages, 3);
  // Tallies of 1, 2 and 4 contributors, loads of 100, 200 and 400, 128 octaves each.
  EXPECT_DOUBLE_EQ(halving.bytes, 7 * 6 + 4 * (1 + 1 + 3) + 2 * (1 + 2 + 3) + (1 + 2 + 3) + 8 * (400.0 + 400 + 400));
  const Cost pruned = SparseReduceScatter::predict(halving_skips(8), problem, {}, {.quota = 100});
  EXPECT_DOUBLE_EQ(pruned.bytes, 7 * (6 + 8 * 100.0));
}

}  // namespace
}  // namespace oktopk::reduce_scatter_test
