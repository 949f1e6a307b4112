// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/gather.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "oktopk/base/error.h"
#include "tests/support/sparse.h"

namespace oktopk::tallies_test {
namespace {

ShareTally make_tally() {
  ShareTally tally;
  tally.load = 0x0123456789abcdefU;
  tally.near.arrivals = (std::uint64_t{1} << 40) + 5;
  for (std::uint64_t i = 0; i < NearTail::kBins; ++i) tally.near.below[i] = 1000 * i + 7;
  return tally;
}

void expect_round_trip(const ShareTally& tally) {
  Bytes bytes;
  put(tally, bytes);
  EXPECT_LE(bytes.size(), ShareTally::kMaxBytes);
  bytes.resize(bytes.size() + 10);  // the frame behind it
  std::span<const std::byte> rest = bytes;
  const ShareTally back = take_share_tally(rest, 1);
  EXPECT_EQ(rest.size(), 10u);
  EXPECT_EQ(back.load, tally.load);
  EXPECT_EQ(back.near.arrivals, tally.near.arrivals);
  EXPECT_EQ(back.near.below, tally.near.below);
}

TEST(ShareTally, makes_the_round_trip) {
  expect_round_trip({});
  expect_round_trip(make_tally());
  ShareTally largest;
  largest.load = largest.near.arrivals = std::numeric_limits<std::uint64_t>::max();
  largest.near.below.fill(std::numeric_limits<std::uint64_t>::max());
  expect_round_trip(largest);
}

TEST(ShareTally, of_small_counts_is_short) {
  ShareTally tally;
  tally.load = 300;
  tally.near.arrivals = 40;
  tally.near.below.fill(3);
  Bytes bytes;
  put(tally, bytes);
  EXPECT_EQ(bytes.size(), 2 + 1 + 8u);
  EXPECT_EQ(static_cast<double>(bytes.size()), tally_bytes(tally));
}

TEST(ShareTally, too_short_names_the_peer) {
  Bytes bytes;
  put(make_tally(), bytes);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    // A buffer of exactly that size lets the sanitizer see reads beyond it.
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<long>(size));
    std::span<const std::byte> rest = cut;
    try {
      take_share_tally(rest, 6);
      FAIL() << size << " bytes of " << bytes.size();
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 6"), std::string::npos);
    }
  }
}

TEST(ShareTally, of_any_bytes_is_refused_or_taken_within_them) {
  std::mt19937_64 random(3);
  int taken = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes(random() % 60);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random() % 140);
    std::span<const std::byte> rest = bytes;
    try {
      take_share_tally(rest, 6);
      EXPECT_LE(rest.size(), bytes.size());
      ++taken;
    } catch (const CommError&) {
    }
  }
  EXPECT_GT(taken, 100);
}

TEST(BlockTally, makes_the_round_trip_and_refuses_other_bytes) {
  for (const BlockTally& tally :
       {BlockTally{}, BlockTally{3, 1U << 20, -5000}, BlockTally{0xffffffffU, 7, 1LL << 43}}) {
    Bytes bytes;
    put(tally, bytes);
    EXPECT_LE(bytes.size(), BlockTally::kMaxBytes);
    std::span<const std::byte> rest = bytes;
    const BlockTally back = take_block_tally(rest, 1);
    EXPECT_TRUE(rest.empty());
    EXPECT_EQ(back.contributors, tally.contributors);
    EXPECT_EQ(back.load, tally.load);
    EXPECT_EQ(back.log_threshold, tally.log_threshold);
    rest = std::span(bytes).first(bytes.size() - 1);
    EXPECT_THROW(take_block_tally(rest, 6), CommError);
  }
  Bytes bytes;
  put(BlockTally{1, 1, (1LL << 44) + 1}, bytes);
  std::span<const std::byte> rest = bytes;
  EXPECT_THROW(take_block_tally(rest, 6), CommError);
}

TEST(BlockTally, of_a_selection_has_the_log_of_its_smallest_magnitude) {
  EXPECT_EQ(BlockTally::of({}).contributors, 0u);
  const BlockTally tally = BlockTally::of(make_sparse({{1, -8}, {3, 0.5F}, {9, 2}}));
  EXPECT_EQ(tally.contributors, 1u);
  EXPECT_EQ(tally.log_threshold, -BlockTally::kOctave);
}

}  // namespace
}  // namespace oktopk::tallies_test
