// SPDX-License-Identifier: Apache-2.0
// The head of what an owner gathers in circulant: the integers by which all ranks steer the
// threshold and the cuts (docs/wire_format.md). It stands before the owner's frame, whose checksum
// covers it (tag_behind of frames.h).
//
// COST: the counts take 25 fields of as many bits as the largest needs, the other numbers as many
// bytes as they need: about 15 B for small k, 50 B for counts of a thousand.
#pragma once

#include <cstdint>
#include <span>

#include "oktopk/allreduce/global_threshold.h"
#include "oktopk/base/bytes.h"
#include "oktopk/base/varint.h"

namespace oktopk {

struct ShareHeader {
  std::uint64_t load = 0;  // entries that arrived for the region, before merging
  TailWindow window;
};
inline constexpr std::size_t kMaxShareHeaderBytes = 4 * kMaxVarintBytes + 1 + 4 * TailWindow::kBins;

std::size_t share_header_bytes(const ShareHeader& header);
// The same for an owner of `available` sums, with up to `count` of them in a bin of the window.
double expected_share_header_bytes(double load, double count, double available);

void put_share_header(const ShareHeader& header, Bytes& out);

// Cuts the header off. Throws CommError when the bytes cannot be one; only the frame behind it
// tells whether it is undamaged and of this step.
ShareHeader take_share_header(std::span<const std::byte>& bytes, int peer);

}  // namespace oktopk
