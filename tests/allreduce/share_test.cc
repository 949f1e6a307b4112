// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/share.h"

#include <gtest/gtest.h>

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

TEST(Share, header_makes_the_round_trip) {
  Bytes bytes(3);
  put_share_header(make_header(), 42, bytes);
  ASSERT_EQ(bytes.size(), 3 + kShareHeaderBytes);
  bytes.resize(bytes.size() + 10);
  const ShareHeader back = take_share_header(std::span(bytes).subspan(3), 42, 1);
  const ShareHeader expected = make_header();
  EXPECT_EQ(back.load, expected.load);
  EXPECT_EQ(back.window.first_bin, expected.window.first_bin);
  EXPECT_EQ(back.window.counts, expected.window.counts);
  EXPECT_EQ(back.window.above, expected.window.above);
  EXPECT_EQ(back.window.available, expected.window.available);
}

TEST(Share, header_with_any_flipped_bit_is_refused) {
  Bytes bytes;
  put_share_header(make_header(), 42, bytes);
  for (std::size_t bit = 0; bit < 8 * kShareHeaderBytes; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_THROW(take_share_header(bytes, 42, 1), CommError) << "bit " << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  EXPECT_NO_THROW(take_share_header(bytes, 42, 1));
}

TEST(Share, header_of_another_step_or_too_short_names_the_peer) {
  Bytes bytes;
  put_share_header(make_header(), 42, bytes);
  const auto message = [&](std::size_t size, std::uint32_t tag) {
    try {
      take_share_header(std::span(bytes).first(size), tag, 6);
    } catch (const CommError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(message(kShareHeaderBytes, 43).find("rank 6"), std::string::npos);
  EXPECT_NE(message(kShareHeaderBytes - 1, 42).find("rank 6"), std::string::npos);
  EXPECT_NE(message(0, 42).find("rank 6"), std::string::npos);
}

}  // namespace
}  // namespace oktopk::share_test
