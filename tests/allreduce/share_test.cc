// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/share.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "oktopk/base/error.h"

namespace oktopk::share_test {
namespace {

ShareHeader make_header() {
  ShareHeader header;
  header.load = 0x0123456789abcdefU;
  header.window.first_bin = 1031;
  for (std::uint32_t i = 0; i < TailWindow::kBins; ++i) header.window.counts[i] = 1000 * i + 7;
  header.window.above = (std::uint64_t{1} << 40) + 5;
  header.window.available = (std::uint64_t{1} << 41) + 6;
  return header;
}

void expect_round_trip(const ShareHeader& header) {
  Bytes bytes;
  put_share_header(header, bytes);
  ASSERT_EQ(bytes.size(), share_header_bytes(header));
  EXPECT_LE(bytes.size(), kMaxShareHeaderBytes);
  bytes.resize(bytes.size() + 10);  // the frame behind it
  std::span<const std::byte> rest = bytes;
  const ShareHeader back = take_share_header(rest, 1);
  EXPECT_EQ(rest.size(), 10u);
  EXPECT_EQ(back.load, header.load);
  EXPECT_EQ(back.window.first_bin, header.window.first_bin);
  EXPECT_EQ(back.window.counts, header.window.counts);
  EXPECT_EQ(back.window.above, header.window.above);
  EXPECT_EQ(back.window.available, header.window.available);
}

TEST(Share, header_makes_the_round_trip) {
  expect_round_trip({});
  expect_round_trip(make_header());
  ShareHeader largest = make_header();
  largest.load = largest.window.above = largest.window.available =
      std::numeric_limits<std::uint64_t>::max();
  largest.window.first_bin = kMagnitudeBins - TailWindow::kBins;
  largest.window.counts.fill(std::numeric_limits<std::uint32_t>::max());
  expect_round_trip(largest);
  for (std::uint32_t count = 1; count != 0; count *= 2) {
    ShareHeader header = make_header();
    header.window.counts.fill(0);
    header.window.counts[TailWindow::kBins - 1] = count;
    expect_round_trip(header);
  }
}

TEST(Share, header_of_small_counts_is_short) {
  ShareHeader header;
  header.load = 50;
  header.window.first_bin = 4000;
  header.window.counts.fill(3);
  header.window.above = 2;
  header.window.available = 80;
  EXPECT_EQ(share_header_bytes(header), 2 + 1 + 1 + 1 + 1 + 7u);
  EXPECT_EQ(share_header_bytes(header), expected_share_header_bytes(50, 3, 80));
  EXPECT_EQ(share_header_bytes({}), 5u);
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

TEST(Share, header_of_any_bytes_is_refused_or_in_range) {
  std::mt19937_64 random(3);
  int taken = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes(random() % 60);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random() % 140);
    std::span<const std::byte> rest = bytes;
    try {
      const ShareHeader header = take_share_header(rest, 6);
      EXPECT_LE(header.window.first_bin, kMagnitudeBins - TailWindow::kBins);
      EXPECT_LE(rest.size(), bytes.size());
      ++taken;
    } catch (const CommError&) {
    }
  }
  EXPECT_GT(taken, 100);
}

}  // namespace
}  // namespace oktopk::share_test
