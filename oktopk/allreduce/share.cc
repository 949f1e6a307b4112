// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/share.h"

#include <cstring>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"

namespace oktopk {
namespace {

std::uint32_t checksum(std::span<const std::byte> bytes, std::uint32_t tag) {
  return static_cast<std::uint32_t>(hash_bytes(bytes, tag));
}

}  // namespace

// checksum u32, arrivals u32, load u64, below 8 x u32.
void put_share_header(const ShareHeader& header, std::uint32_t tag, Bytes& out) {
  const std::size_t start = out.size();
  out.resize(start + kShareHeaderBytes);
  std::byte* to = out.data() + start;
  const auto put = [to](std::size_t at, std::uint64_t value) {
    const auto word = static_cast<std::uint32_t>(value);
    std::memcpy(to + at, &word, 4);
  };
  put(4, header.near.arrivals);
  std::memcpy(to + 8, &header.load, 8);
  for (std::size_t j = 0; j < NearTail::kBins; ++j) put(16 + 4 * j, header.near.below[j]);
  const std::uint32_t check = checksum({to + 4, kShareHeaderBytes - 4}, tag);
  std::memcpy(to, &check, 4);
}

ShareHeader take_share_header(std::span<const std::byte> bytes, std::uint32_t tag, int peer) {
  if (bytes.size() < kShareHeaderBytes)
    fail<CommError>("from rank ", peer, ": ", bytes.size(), " bytes where a share of at least ",
                    kShareHeaderBytes, " was due");
  std::uint32_t check = 0;
  std::memcpy(&check, bytes.data(), 4);
  if (check != checksum(bytes.subspan(4, kShareHeaderBytes - 4), tag))
    fail<CommError>("from rank ", peer, ": a share of another step or problem, or damaged");
  ShareHeader header;
  const auto take = [&](std::size_t at) {
    std::uint32_t word = 0;
    std::memcpy(&word, bytes.data() + at, 4);
    return std::uint64_t{word};
  };
  header.near.arrivals = take(4);
  std::memcpy(&header.load, bytes.data() + 8, 8);
  for (std::size_t j = 0; j < NearTail::kBins; ++j) header.near.below[j] = take(16 + 4 * j);
  return header;
}

}  // namespace oktopk
