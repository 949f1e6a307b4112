// SPDX-License-Identifier: Apache-2.0
// The oracle, by hand. Truth accepts right updates and finds the errors in slightly wrong ones.
#include "oktopk/laws/truth.h"

#include <gtest/gtest.h>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/presets.h"

namespace oktopk::truth_test {
namespace {

// ---- The oracle on cases small enough to compute by hand.

TEST(Oracle, sum_adds_by_index_and_leaves_zeros_out) {
  const std::vector<Entries> ranks = {{{1, 2}, {3, 4}}, {{1, -2}, {2, 5}}, {{3, 1}}};
  EXPECT_EQ(oracle_sum(ranks), (Entries{{2, 5}, {3, 5}}));
  EXPECT_EQ(oracle_sum({}), Entries{});
}

TEST(Oracle, sum_rounds_to_float_after_each_addition) {
  const std::vector<Entries> ranks = {{{0, 16777216}}, {{0, 1}}, {{0, 1}}};
  EXPECT_EQ(oracle_sum(ranks), (Entries{{0, 16777216}}));
}

TEST(Oracle, top_takes_larger_magnitudes_then_smaller_indices) {
  const Entries x = {{0, 1}, {1, -3}, {2, 2}, {5, -2}, {9, 2}};
  EXPECT_EQ(oracle_top(x, 1), (Entries{{1, -3}}));
  EXPECT_EQ(oracle_top(x, 3), (Entries{{1, -3}, {2, 2}, {5, -2}}));
  EXPECT_EQ(oracle_top(x, 99), x);
  EXPECT_EQ(oracle_top(x, 0), Entries{});
}

TEST(Oracle, at_least_includes_the_threshold) {
  const Entries x = {{0, 1}, {1, -3}, {2, 2}};
  EXPECT_EQ(oracle_at_least(x, 2), (Entries{{1, -3}, {2, 2}}));
  EXPECT_EQ(oracle_at_least(x, 0), x);
}

TEST(Oracle, kth_counts_from_the_largest) {
  const Entries x = {{0, 1}, {1, -3}, {2, 2}};
  EXPECT_EQ(oracle_kth(x, 1), 3);
  EXPECT_EQ(oracle_kth(x, 3), 1);
  EXPECT_EQ(oracle_kth(x, 10), 1);
  EXPECT_EQ(oracle_kth({}, 1), 0);
}

TEST(Oracle, gtopk_prunes_at_every_node_of_the_tree) {
  // Index 0 sums to 6 and is the largest of all, but neither half of the tree keeps it.
  const std::vector<Entries> four = {{{0, 2}}, {{1, 3}}, {{2, 5}}, {{0, 4}}};
  EXPECT_EQ(oracle_gtopk(four, 1), (Entries{{2, 5}}));
  EXPECT_EQ(oracle_gtopk(four, 4), (Entries{{0, 6}, {1, 3}, {2, 5}}));
  const std::vector<Entries> three = {{{0, 2}}, {{0, 2}}, {{1, 3}}};
  EXPECT_EQ(oracle_gtopk(three, 1), (Entries{{0, 4}}));
  EXPECT_EQ(oracle_gtopk(std::vector<Entries>{{{0, 2}, {1, 3}}}, 1), (Entries{{1, 3}}));
}

TEST(Oracle, spardl_prunes_each_block_before_it_is_sent_and_at_the_end) {
  // Two ranks, regions [0, 2) and [2, 4), quota 1. Rank 1 sends only the larger of its two entries
  // for region 0, so index 0 stays without it.
  const std::vector<Entries> two = {{{0, 2}, {3, 1}}, {{0, 4}, {1, 5}, {3, 1}}};
  EXPECT_EQ(oracle_spardl(two, 4, 2), (Entries{{1, 5}, {3, 2}}));
  EXPECT_EQ(oracle_spardl(two, 4, 4), (Entries{{0, 6}, {1, 5}, {3, 2}}));
  EXPECT_EQ(oracle_spardl(std::vector<Entries>{{{0, 2}, {3, 1}}}, 4, 1), (Entries{{0, 2}}));
}

TEST(Oracle, spardl_with_room_for_all_is_the_sum_for_any_number_of_ranks) {
  for (std::size_t P = 1; P <= 12; ++P) {
    std::vector<Entries> ranks;
    for (std::size_t r = 0; r < P; ++r)
      ranks.push_back({{static_cast<Index>(r), 1}, {static_cast<Index>(3 * r + 1), 2}, {40, 1}});
    EXPECT_EQ(oracle_spardl(ranks, 50, 50 * P), oracle_sum(ranks)) << P;
  }
}

// ---- Truth.

constexpr Index kN = 10;
constexpr std::size_t kK = 2;

StepRecord make_record() {
  StepRecord record;
  record.selections = {{{1, 4}, {2, 3}}, {{1, 1}, {5, -6}}};  // sums: 1: 5, 2: 3, 5: -6
  record.refreshed = true;
  return record;
}

std::size_t errors(const std::string& preset, StepRecord record, const Entries& update, std::uint64_t step = 0) {
  const auto allreduce = make_allreduce(find_preset(preset), {});
  record.update = update;
  return Truth(*allreduce, kN, kK).check(record, step);
}

TEST(Truth, right_updates_have_no_errors) {
  const Entries all = {{1, 5}, {2, 3}, {5, -6}};
  const Entries top = {{1, 5}, {5, -6}};
  for (const char* preset : {"topka", "gaussiank", "topkdsa", "topka2a"})
    EXPECT_EQ(errors(preset, make_record(), all), 0u) << preset;
  for (const char* preset : {"gtopk", "oktopk", "circulant"})
    EXPECT_EQ(errors(preset, make_record(), top), 0u) << preset;
}

TEST(Truth, wrong_missing_and_invented_entries_are_counted) {
  for (const Preset& preset : presets()) {
    if (preset.name == "dense") continue;
    const std::string name(preset.name);
    const bool sums_all = residual_rule(preset.residuals[0]).takes_union;
    const Entries good = sums_all ? Entries{{1, 5}, {2, 3}, {5, -6}} : Entries{{1, 5}, {5, -6}};
    Entries off = good;
    off[1] += 1.0 / 1024;
    EXPECT_GT(errors(name, make_record(), off), 0u) << name;
    Entries missing = good;
    missing.erase(5);
    EXPECT_GT(errors(name, make_record(), missing), 0u) << name;
    Entries invented = good;
    invented[8] = 1;
    EXPECT_GT(errors(name, make_record(), invented), 0u) << name;
  }
}

TEST(Truth, circulant_takes_fewer_than_k_only_without_a_refresh) {
  StepRecord record = make_record();
  EXPECT_GT(errors("circulant", record, {{5, -6}}), 0u);
  record.refreshed = false;
  EXPECT_EQ(errors("circulant", record, {{5, -6}}, 1), 0u);
  EXPECT_GT(errors("circulant", record, {{1, 5}}, 1), 0u);
}

TEST(Truth, circulant_counts_what_owners_remember) {
  StepRecord record = make_record();
  record.memory = {{2, 10}};
  EXPECT_EQ(errors("circulant", record, {{2, 13}, {5, -6}}), 0u);
  EXPECT_GT(errors("circulant", record, {{1, 5}, {5, -6}}), 0u);
}

TEST(Truth, oktopk_by_the_paper_reuses_the_threshold_of_the_last_evaluation) {
  AllreduceOptions options;
  options.thresholds = ThresholdRule::paper;
  const auto allreduce = make_allreduce(find_preset("oktopk"), options);
  Truth truth(*allreduce, kN, kK);
  StepRecord record = make_record();
  record.update = {{1, 5}, {5, -6}};
  EXPECT_EQ(truth.check(record, 0), 0u);
  record.selections = {{{1, 4}, {2, 5}}, {{4, 7}}};
  record.update = {{2, 5}, {4, 7}};
  EXPECT_EQ(truth.check(record, 1), 0u);
  record.update = {{1, 4}, {2, 5}, {4, 7}};
  EXPECT_GT(truth.check(record, 2), 0u);
  EXPECT_NE(truth.detail(), "");
}

TEST(Truth, oktopk_steered_gives_the_largest_sums_and_as_many_as_its_band_allows) {
  const auto allreduce = make_allreduce(find_preset("oktopk"), {});
  const auto wrong = [&](Index first, Index count) {  // of 300 sums 300, 299, ..., 1
    StepRecord record;
    record.selections.resize(1);
    for (Index i = 0; i < 300; ++i) record.selections[0][i] = 300.0 - i;
    for (Index i = first; i < first + count; ++i) record.update[i] = 300.0 - i;
    return Truth(*allreduce, 1000, 100).check(record, 1);
  };
  EXPECT_EQ(wrong(0, 100), 0u);
  EXPECT_EQ(wrong(0, 145), 0u);  // the band: 100 / 4 + 2 * 10
  EXPECT_GT(wrong(0, 146), 0u);
  EXPECT_EQ(wrong(0, 55), 0u);
  EXPECT_GT(wrong(0, 54), 0u);
  EXPECT_GT(wrong(1, 100), 0u);
}

TEST(Truth, dense_in_bf16_may_round_and_no_more) {
  for (const char* codec : {"bf16", "log4"}) {
    AllreduceOptions options;
    options.codec = parse_codec(codec);
    const auto allreduce = make_allreduce(find_preset("dense"), options);
    const auto wrong = [&](const Entries& update) {
      StepRecord record = make_record();
      record.update = update;
      return Truth(*allreduce, kN, kK).check(record, 0);
    };
    EXPECT_EQ(wrong({{1, 5.03}, {2, 2.98}, {5, -6}}), 0u);
    EXPECT_GT(wrong({{1, 5.2}, {2, 3}, {5, -6}}), 0u);
    EXPECT_GT(wrong({{1, 5}, {2, 3}}), 0u);
    EXPECT_GT(wrong({{1, 5}, {2, 3}, {5, -6}, {8, 0.001}}), 0u);
  }
}

TEST(Truth, tolerance_allows_rounding_and_no_more) {
  const auto allreduce = make_allreduce(find_preset("topka"), {});
  Truth truth(*allreduce, kN, kK, 1e-3);
  StepRecord record = make_record();
  record.update = {{1, 5.001}, {2, 3}, {5, -6}};
  EXPECT_EQ(truth.check(record, 0), 0u);
  record.update = {{1, 5.1}, {2, 3}, {5, -6}};
  EXPECT_GT(truth.check(record, 1), 0u);
}

}  // namespace
}  // namespace oktopk::truth_test
