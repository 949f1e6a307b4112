// SPDX-License-Identifier: Apache-2.0
#include "tools/train/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "oktopk/base/error.h"

namespace oktopk::dataset_test {
namespace {

using Samples = std::vector<std::uint32_t>;

// The global batch, rank after rank.
Samples draw_all(std::size_t size, std::uint64_t seed, std::uint64_t step, int ranks, int per_rank) {
  Samples all, mine;
  for (int rank = 0; rank < ranks; ++rank) {
    draw_samples(size, seed, step, rank, per_rank, mine);
    EXPECT_EQ(mine.size(), static_cast<std::size_t>(per_rank));
    all.insert(all.end(), mine.begin(), mine.end());
  }
  return all;
}

TEST(DrawSamples, draw_on_other_numbers_of_ranks_gives_the_same_global_batch) {
  const Samples one = draw_all(1000, 5, 17, 1, 60);
  for (const int ranks : {2, 3, 5, 12}) EXPECT_EQ(draw_all(1000, 5, 17, ranks, 60 / ranks), one) << ranks;
}

TEST(DrawSamples, draw_other_step_or_seed_gives_other_samples) {
  const Samples samples = draw_all(1000, 5, 17, 2, 30);
  EXPECT_NE(draw_all(1000, 5, 18, 2, 30), samples);
  EXPECT_NE(draw_all(1000, 6, 17, 2, 30), samples);
}

TEST(DrawSamples, draw_many_reaches_all_samples_evenly) {
  std::vector<int> counts(50);
  for (std::uint64_t step = 0; step < 200; ++step)
    for (const std::uint32_t s : draw_all(50, 1, step, 3, 16)) ++counts.at(s);
  const auto [fewest, most] = std::ranges::minmax(counts);
  EXPECT_GT(fewest, 192 - 70);  // five deviations
  EXPECT_LT(most, 192 + 70);
}

TEST(DrawSamples, draw_from_nothing_throws) {
  Samples out;
  EXPECT_THROW(draw_samples(0, 1, 0, 0, 1, out), UsageError);
  EXPECT_THROW(draw_samples(9, 1, 0, -1, 1, out), UsageError);
  EXPECT_THROW(draw_samples(9, 1, 0, 0, 0, out), UsageError);
}

Dataset three_samples() {
  Dataset data{.shape = {.channels = 2}, .classes = 3, .inputs = Matrix(2, 3), .labels = {0, 2, 1}};
  data.inputs << 1, 3, 5, 2, 4, 6;
  return data;
}

TEST(TakeBatch, take_gathers_columns_and_labels_in_order) {
  Batch batch;
  take_batch(three_samples(), Samples{2, 0, 2, 1}, batch);
  Matrix expected(2, 4);
  expected << 5, 1, 5, 3, 6, 2, 6, 4;
  EXPECT_EQ(batch.inputs, expected);
  EXPECT_EQ(batch.labels, (std::vector{1, 0, 1, 2}));
}

TEST(TakeBatch, take_again_reuses_the_memory) {
  Batch batch;
  take_batch(three_samples(), Samples{0, 1}, batch);
  const float* place = batch.inputs.data();
  take_batch(three_samples(), Samples{1, 2}, batch);
  EXPECT_EQ(batch.inputs.data(), place);
}

TEST(TakeBatch, take_sample_that_is_not_there_throws) {
  Batch batch;
  EXPECT_THROW(take_batch(three_samples(), Samples{3}, batch), UsageError);
}

}  // namespace
}  // namespace oktopk::dataset_test
