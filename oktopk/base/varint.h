// SPDX-License-Identifier: Apache-2.0
// Whole numbers in as few bytes as they need (LEB128): seven bits per byte, the lowest first, bit 7 set in all bytes
// but the last. For the few numbers around the data on the wire: counts, sizes, notes (docs/wire_format.md). A number
// has one encoding: a longer one than needed is refused.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/base/bytes.h"

namespace oktopk {

inline constexpr std::size_t kMaxVarintBytes = 10;

constexpr std::size_t varint_bytes(std::uint64_t value) {
  return (static_cast<std::size_t>(std::bit_width(value | 1)) + 6) / 7;
}

// Writes varint_bytes(value) bytes and returns where they end.
inline std::byte* put_varint(std::uint64_t value, std::byte* to) {
  for (; value >= 128; value >>= 7) *to++ = static_cast<std::byte>(value | 128);
  *to++ = static_cast<std::byte>(value);
  return to;
}

inline void append_varint(std::uint64_t value, Bytes& out) {
  const std::size_t start = out.size();
  out.resize(start + varint_bytes(value));
  put_varint(value, out.data() + start);
}

// Reads the number at the start of `bytes` and cuts it off. Returns false and leaves `bytes` unchanged if they end
// inside the number, if it needs more than 64 bits, or if it is longer than needed.
inline bool take_varint(std::span<const std::byte>& bytes, std::uint64_t& value) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes.size() && i < kMaxVarintBytes; ++i) {
    const auto byte = std::to_integer<std::uint64_t>(bytes[i]);
    sum |= (byte & 127) << (7 * i);
    if (byte >= 128) continue;
    if ((byte == 0 && i > 0) || (byte > 1 && i + 1 == kMaxVarintBytes)) return false;
    bytes = bytes.subspan(i + 1);
    value = sum;
    return true;
  }
  return false;
}

// Signed numbers: 0, -1, 1, -2, ... become 0, 1, 2, 3, ..., so that small magnitudes stay short.
constexpr std::uint64_t zigzag(std::int64_t value) {
  return (static_cast<std::uint64_t>(value) << 1) ^ (value < 0 ? ~std::uint64_t{0} : 0);
}
constexpr std::int64_t unzigzag(std::uint64_t code) {
  return static_cast<std::int64_t>((code >> 1) ^ ((code & 1) != 0 ? ~std::uint64_t{0} : 0));
}

}  // namespace oktopk
