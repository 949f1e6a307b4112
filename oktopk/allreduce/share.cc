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

// checksum u32, first_bin u32, load u64, above u64, available u64, counts 25 x u32.
void put_share_header(const ShareHeader& header, std::uint32_t tag, Bytes& out) {
  const std::size_t start = out.size();
  out.resize(start + kShareHeaderBytes);
  std::byte* to = out.data() + start;
  const TailWindow& w = header.window;
  std::memcpy(to + 4, &w.first_bin, 4);
  std::memcpy(to + 8, &header.load, 8);
  std::memcpy(to + 16, &w.above, 8);
  std::memcpy(to + 24, &w.available, 8);
  std::memcpy(to + 32, w.counts.data(), 4 * w.counts.size());
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
  TailWindow& w = header.window;
  std::memcpy(&w.first_bin, bytes.data() + 4, 4);
  std::memcpy(&header.load, bytes.data() + 8, 8);
  std::memcpy(&w.above, bytes.data() + 16, 8);
  std::memcpy(&w.available, bytes.data() + 24, 8);
  std::memcpy(w.counts.data(), bytes.data() + 32, 4 * w.counts.size());
  return header;
}

}  // namespace oktopk
