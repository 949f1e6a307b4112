// SPDX-License-Identifier: Apache-2.0
#include "oktopk/codec/frame.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <set>
#include <vector>

namespace oktopk::checksum_test {
namespace {

std::vector<std::byte> random_bytes(std::size_t size) {
  std::mt19937_64 random(size);
  std::vector<std::byte> bytes(size);
  for (auto& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

constexpr std::array<std::byte, 28> kHeader{};

TEST(Checksum, change_of_any_bit_changes_it) {
  for (const std::size_t size : {0u, 1u, 31u, 32u, 33u, 100u}) {
    std::vector<std::byte> payload = random_bytes(size);
    std::array<std::byte, 28> header{};
    const std::uint32_t before = frame_checksum(header, payload);
    for (std::size_t bit = 0; bit < 8 * 28; ++bit) {
      header[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_NE(frame_checksum(header, payload), before) << bit;
      header[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      payload[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_NE(frame_checksum(header, payload), before) << bit;
      payload[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
}

TEST(Checksum, change_of_any_two_bits_changes_it) {
  std::vector<std::byte> payload = random_bytes(80);
  const std::uint32_t before = frame_checksum(kHeader, payload);
  for (std::size_t a = 0; a < 640; ++a) {
    payload[a / 8] ^= std::byte{1} << (a % 8);
    for (std::size_t b = 0; b < a; ++b) {
      payload[b / 8] ^= std::byte{1} << (b % 8);
      ASSERT_NE(frame_checksum(kHeader, payload), before) << a << ' ' << b;
      payload[b / 8] ^= std::byte{1} << (b % 8);
    }
    payload[a / 8] ^= std::byte{1} << (a % 8);
  }
}

TEST(Checksum, swap_of_words_changes_it) {
  const std::vector<std::byte> payload = random_bytes(160);
  const std::uint32_t before = frame_checksum(kHeader, payload);
  for (std::size_t a = 8; a < 160; a += 8) {
    for (std::size_t b = 0; b < a; b += 8) {
      std::vector<std::byte> swapped = payload;
      std::swap_ranges(swapped.begin() + static_cast<long>(a), swapped.begin() + static_cast<long>(a) + 8,
                       swapped.begin() + static_cast<long>(b));
      EXPECT_NE(frame_checksum(kHeader, swapped), before) << a << ' ' << b;
    }
  }
}

TEST(Checksum, counters_hardly_collide) {
  std::set<std::uint32_t> seen;
  std::array<std::byte, 8> payload{};
  for (unsigned i = 0; i < 65536; ++i) {
    payload[0] = static_cast<std::byte>(i);
    payload[7] = static_cast<std::byte>(i >> 8);
    seen.insert(frame_checksum(kHeader, payload));
  }
  EXPECT_GE(seen.size(), 65536u - 8);
}

}  // namespace
}  // namespace oktopk::checksum_test
