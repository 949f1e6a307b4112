// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/share.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "oktopk/base/error.h"
#include "oktopk/codec/bits.h"

namespace oktopk {
namespace {

constexpr std::size_t kCounts = TailWindow::kBins;

// Bits that the largest count needs.
unsigned count_width(const TailWindow& w) {
  return static_cast<unsigned>(std::bit_width(*std::max_element(w.counts.begin(), w.counts.end())));
}

std::uint64_t rounded_up(double x) { return static_cast<std::uint64_t>(std::ceil(x)); }

}  // namespace

std::size_t share_header_bytes(const ShareHeader& header) {
  const TailWindow& w = header.window;
  return varint_bytes(w.first_bin) + varint_bytes(header.load) + varint_bytes(w.above) +
         varint_bytes(w.available) + 1 + bytes_for_bits(kCounts * count_width(w));
}

double expected_share_header_bytes(double load, double count, double available) {
  ShareHeader header{.load = rounded_up(load), .window = {}};
  header.window.first_bin = kMagnitudeBins / 2;
  header.window.counts.fill(static_cast<std::uint32_t>(rounded_up(count)));
  header.window.above = rounded_up(count);
  header.window.available = rounded_up(available);
  return static_cast<double>(share_header_bytes(header));
}

// first_bin, load, above, available, u8 bits per count, counts.
void put_share_header(const ShareHeader& header, Bytes& out) {
  const TailWindow& w = header.window;
  const std::size_t start = out.size();
  out.resize(start + share_header_bytes(header));
  std::byte* to = out.data() + start;
  for (const std::uint64_t number : {std::uint64_t{w.first_bin}, header.load, w.above, w.available})
    to = put_varint(number, to);
  const unsigned width = count_width(w);
  *to++ = static_cast<std::byte>(width);
  pack_bits(kCounts, width, to, [&](std::size_t i) { return w.counts[i]; });
}

ShareHeader take_share_header(std::span<const std::byte>& bytes, int peer) {
  const std::size_t there = bytes.size();
  const auto check = [&](bool good) {
    if (!good)
      fail<CommError>("from rank ", peer, ": a share was due, ", there,
                      " bytes are something else");
  };
  ShareHeader header;
  TailWindow& w = header.window;
  std::uint64_t first_bin = 0;
  check(take_varint(bytes, first_bin) && take_varint(bytes, header.load) &&
        take_varint(bytes, w.above) && take_varint(bytes, w.available) && !bytes.empty());
  check(first_bin <= kMagnitudeBins - kCounts);
  w.first_bin = static_cast<std::uint32_t>(first_bin);
  const auto width = std::to_integer<unsigned>(bytes.front());
  check(width <= 32 && bytes.size() > bytes_for_bits(kCounts * width));
  const auto fields = bytes.subspan(1, bytes_for_bits(kCounts * width));
  const BitFields counts(fields, width);
  for (std::size_t i = 0; i < kCounts; ++i) w.counts[i] = static_cast<std::uint32_t>(counts[i]);
  bytes = bytes.subspan(1 + fields.size());
  return header;
}

}  // namespace oktopk
