// SPDX-License-Identifier: Apache-2.0
// An index coding on its own: its payload as numbers, and decoding of made-up payloads.
#pragma once

#include <cstdint>
#include <vector>

#include "oktopk/codec/coding.h"
#include "tests/codec/samples.h"

namespace oktopk::testing {

using Numbers = std::vector<unsigned>;

inline Bytes to_bytes(const Numbers& numbers) {
  Bytes bytes;
  for (const unsigned n : numbers) bytes.push_back(static_cast<std::byte>(n));
  return bytes;
}

inline Numbers payload_of(const IndexCodec& codec, Range range, const std::vector<Index>& idx) {
  Bytes bytes;
  codec.encode(idx, range, bytes);
  Numbers numbers;
  for (const std::byte b : bytes) numbers.push_back(std::to_integer<unsigned>(b));
  return numbers;
}

inline std::vector<Index> indices_of(const IndexCodec& codec, Range range, std::size_t count, const Numbers& payload) {
  std::vector<Index> idx(count);
  codec.decode(to_bytes(payload), range, idx);
  return idx;
}

// Bits per index for uniformly random indices at 1% of 2^21 positions.
inline double bits_at_one_percent(const IndexCodec& codec) {
  Random random(9);
  const Range range{0, 1 << 21};
  const SparseVector entries = random_entries(range, 0.01, random);
  Bytes bytes;
  codec.encode(entries.idx, range, bytes);
  return 8.0 * static_cast<double>(bytes.size()) / static_cast<double>(entries.size());
}

}  // namespace oktopk::testing
