// SPDX-License-Identifier: Apache-2.0
// The head of what an owner gathers in circulant: the integers by which all ranks steer the
// threshold and the cuts, with a checksum (docs/wire_format.md). It stands before the owner's
// frame.
#pragma once

#include <cstdint>
#include <span>

#include "oktopk/base/bytes.h"
#include "oktopk/device/near_tail.h"

namespace oktopk {

struct ShareHeader {
  std::uint64_t load = 0;  // entries that arrived for the region, before merging
  NearTail near;
};
inline constexpr std::size_t kShareHeaderBytes = 4 + 4 + 8 + 4 * NearTail::kBins;

void put_share_header(const ShareHeader& header, std::uint32_t tag, Bytes& out);

// Throws CommError when the bytes are too few, damaged or of another step.
ShareHeader take_share_header(std::span<const std::byte> bytes, std::uint32_t tag, int peer);

}  // namespace oktopk
