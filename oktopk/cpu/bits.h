// SPDX-License-Identifier: Apache-2.0
// Fixed-width bit fields, least significant bit first: field i of width w occupies bits [i * w, (i + 1) * w). A 64-bit
// accumulator writes, unaligned 64-bit loads read. Padding bits are zero.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace oktopk {

inline std::uint64_t load_u64(const std::byte* from) {
  std::uint64_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

// The first `size` <= 8 bytes, zeros above.
inline std::uint64_t load_tail(const std::byte* from, std::size_t size) {
  if (size == 8) return load_u64(from);
  std::uint64_t word = 0;
  if (size != 0) std::memcpy(&word, from, size);
  return word;
}

constexpr std::size_t bytes_for_bits(std::size_t bits) { return (bits + 7) / 8; }

constexpr std::uint64_t low_mask(unsigned width) { return (std::uint64_t{1} << width) - 1; }

// Writes bytes_for_bits(count * width) bytes. field_at(i) has no bits above width <= 32.
template <class FieldAt>
void pack_bits(std::size_t count, unsigned width, std::byte* out, FieldAt field_at) {
  std::uint64_t word = 0;
  unsigned used = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t field = field_at(i);
    word |= field << used;
    used += width;
    if (used >= 64) {
      std::memcpy(out, &word, sizeof word);
      out += sizeof word;
      used -= 64;
      word = used == 0 ? 0 : field >> (width - used);
    }
  }
  if (used != 0) std::memcpy(out, &word, bytes_for_bits(used));
}

// Reads out.size() fields of width <= 32. REQUIRES: bytes.size() == bytes_for_bits(out.size() * width).
inline void unpack_bits(std::span<const std::byte> bytes, unsigned width, std::span<std::uint32_t> out) {
  for (std::size_t i = 0, bit = 0; i < out.size(); ++i, bit += width) {
    const std::size_t at = bit / 8;
    const std::uint64_t word = load_tail(bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at));
    out[i] = static_cast<std::uint32_t>((word >> (bit % 8)) & low_mask(width));
  }
}

// Sets the bits at position_at(0) < position_at(1) < ... of zeros. Writes whole words, which may reach 7 bytes further
// than the last position. No branch depends on the positions: they are random.
template <class PositionAt>
void set_ones(std::size_t count, std::byte* out, PositionAt position_at) {
  std::uint64_t word = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t position = position_at(i);
    const std::uint64_t same = position / 64 == at ? ~std::uint64_t{0} : 0;
    at = position / 64;
    word = (word & same) | std::uint64_t{1} << (position % 64);
    std::memcpy(out + 8 * at, &word, sizeof word);
  }
}

// Whether the bits of `bytes` from `bits` on are zero. REQUIRES: bytes.size() == bytes_for_bits(bits).
inline bool padding_is_zero(std::span<const std::byte> bytes, std::size_t bits) {
  return bits % 8 == 0 || (std::to_integer<unsigned>(bytes.back()) >> (bits % 8)) == 0;
}

}  // namespace oktopk
