// SPDX-License-Identifier: Apache-2.0
// The head of what an owner gathers in circulant: the integers by which all ranks steer the
// threshold and the cuts (docs/wire_format.md). It stands before the owner's frame, whose checksum
// covers it (tag_behind of frames.h).
//
// COST: ten varints, 10 to 20 B.
#pragma once

#include <cstdint>
#include <span>

#include "oktopk/base/bytes.h"
#include "oktopk/base/varint.h"
#include "oktopk/sparse/tail.h"

namespace oktopk {

struct ShareHeader {
  std::uint64_t load = 0;  // entries that arrived for the region, before merging
  NearTail near;
};
inline constexpr std::size_t kMaxShareHeaderBytes = (2 + NearTail::kBins) * kMaxVarintBytes;

// The bytes of a header with these numbers, `below` in each bin.
double expected_share_header_bytes(double load, double arrivals, double below);

void put_share_header(const ShareHeader& header, Bytes& out);

// Cuts the header off. Throws CommError when the bytes cannot be one; only the frame behind it
// tells whether it is undamaged and of this step.
ShareHeader take_share_header(std::span<const std::byte>& bytes, int peer);

}  // namespace oktopk
