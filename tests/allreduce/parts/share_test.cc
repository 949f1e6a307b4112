// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/share.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "oktopk/base/error.h"

namespace oktopk::share_test {
namespace {

ShareHeader make_header() {
  ShareHeader header;
  header.load = 0x0123456789abcdefU;
  header.near.arrivals = (std::uint64_t{1} << 40) + 5;
  for (std::uint64_t i = 0; i < NearTail::kBins; ++i) header.near.below[i] = 1000 * i + 7;
  return header;
}

void expect_round_trip(const ShareHeader& header) {
  Bytes bytes;
  put_share_header(header, bytes);
  EXPECT_LE(bytes.size(), kMaxShareHeaderBytes);
  bytes.resize(bytes.size() + 10);  // the frame behind it
  std::span<const std::byte> rest = bytes;
  const ShareHeader back = take_share_header(rest, 1);
  EXPECT_EQ(rest.size(), 10u);
  EXPECT_EQ(back.load, header.load);
  EXPECT_EQ(back.near.arrivals, header.near.arrivals);
  EXPECT_EQ(back.near.below, header.near.below);
}

TEST(Share, header_makes_the_round_trip) {
  expect_round_trip({});
  expect_round_trip(make_header());
  ShareHeader largest;
  largest.load = largest.near.arrivals = std::numeric_limits<std::uint64_t>::max();
  largest.near.below.fill(std::numeric_limits<std::uint64_t>::max());
  expect_round_trip(largest);
}

TEST(Share, header_of_small_counts_is_short) {
  ShareHeader header;
  header.load = 300;
  header.near.arrivals = 40;
  header.near.below.fill(3);
  Bytes bytes;
  put_share_header(header, bytes);
  EXPECT_EQ(bytes.size(), 2 + 1 + 8u);
  EXPECT_EQ(static_cast<double>(bytes.size()), expected_share_header_bytes(300, 40, 3));
}

TEST(Share, header_too_short_names_the_peer) {
  Bytes bytes;
  put_share_header(make_header(), bytes);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    // A buffer of exactly that size lets the sanitizer see reads beyond it.
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<long>(size));
    std::span<const std::byte> rest = cut;
    try {
      take_share_header(rest, 6);
      FAIL() << size << " bytes of " << bytes.size();
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 6"), std::string::npos);
    }
  }
}

TEST(Share, header_of_any_bytes_is_refused_or_taken_within_them) {
  std::mt19937_64 random(3);
  int taken = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes(random() % 60);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random() % 140);
    std::span<const std::byte> rest = bytes;
    try {
      take_share_header(rest, 6);
      EXPECT_LE(rest.size(), bytes.size());
      ++taken;
    } catch (const CommError&) {
    }
  }
  EXPECT_GT(taken, 100);
}

}  // namespace
}  // namespace oktopk::share_test
