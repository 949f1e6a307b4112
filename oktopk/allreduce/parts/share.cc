// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/share.h"

#include <cmath>

#include "oktopk/base/error.h"

namespace oktopk {

double expected_share_header_bytes(double load, double arrivals, double below) {
  const auto bytes = [](double number) {
    return static_cast<double>(varint_bytes(static_cast<std::uint64_t>(std::ceil(number))));
  };
  return bytes(load) + bytes(arrivals) + NearTail::kBins * bytes(below);
}

// load, arrivals, below from the threshold downwards.
void put_share_header(const ShareHeader& header, Bytes& out) {
  append_varint(header.load, out);
  append_varint(header.near.arrivals, out);
  for (const std::uint64_t count : header.near.below) append_varint(count, out);
}

ShareHeader take_share_header(std::span<const std::byte>& bytes, int peer) {
  const std::size_t there = bytes.size();
  ShareHeader header;
  bool good = take_varint(bytes, header.load) && take_varint(bytes, header.near.arrivals);
  for (std::uint64_t& count : header.near.below) good = good && take_varint(bytes, count);
  if (!good) fail<CommError>("from rank ", peer, ": a share was due, ", there, " bytes are something else");
  return header;
}

}  // namespace oktopk
