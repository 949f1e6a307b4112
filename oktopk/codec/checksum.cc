// SPDX-License-Identifier: Apache-2.0
// The 32-bit checksum of a frame (frame.h): 31 bits of a multiplicative hash in four lanes and one parity bit. The
// parity catches every odd number of flipped bits, the hash any other damage but one in 2^31. It guards against
// accidents, not against an adversary: decoders trust no byte. COST: about memory speed.
//
// Four lanes of h = fold((h ^ word0) * (word1 ^ constant)), the full 128-bit product folded by xor (the mixing step of
// wyhash, Wang Yi 2019), so that four multiplications are in flight at once. A plain 64-bit multiplication would move
// the top bits of a word nowhere, and two flips there could cancel.
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "oktopk/codec/frame.h"
#include "oktopk/cpu/bits.h"

namespace oktopk {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

constexpr std::size_t kHashLanes = 4;
constexpr std::size_t kStripeBytes = 16 * kHashLanes;
constexpr std::uint64_t kConstant = 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
constexpr std::array<std::uint64_t, kHashLanes> kSeeds{0xA0761D6478BD642Fu, 0xE7037ED1A0B428DBu, 0x8EBC6AF09C88C6E3u,
                                                       0x589965CC75374CC3u};

__extension__ using Product = unsigned __int128;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const Product product = static_cast<Product>(a) * (b ^ kConstant);
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

struct HashLanes {
  // Whole stripes. The lanes are locals, not an array: they have to stay in registers.
  void add(const std::byte* from, std::size_t stripes) {
    std::uint64_t h0 = hash[0], h1 = hash[1], h2 = hash[2], h3 = hash[3];
    std::uint64_t all = parity;
    const auto lane = [&](std::uint64_t h, const std::byte* at) {
      const std::uint64_t first = load_u64(at);
      const std::uint64_t second = load_u64(at + 8);
      all ^= first ^ second;
      return mix(h ^ first, second);
    };
    for (; stripes > 0; --stripes, from += kStripeBytes) {
      h0 = lane(h0, from);
      h1 = lane(h1, from + 16);
      h2 = lane(h2, from + 32);
      h3 = lane(h3, from + 48);
    }
    hash = {h0, h1, h2, h3};
    parity = all;
  }

  // A last, incomplete stripe is filled with zeros: the context says how long the payload is.
  void add_padded(std::span<const std::byte> part) {
    std::array<std::byte, kStripeBytes> stripe{};
    std::memcpy(stripe.data(), part.data(), part.size());
    add(stripe.data(), 1);
  }

  std::uint32_t finish() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t lane : hash) sum = mix(sum ^ lane, 0);
    const auto odd = static_cast<std::uint32_t>(std::popcount(parity) & 1);
    return (static_cast<std::uint32_t>(sum) & ~1u) | odd;
  }

  std::array<std::uint64_t, kHashLanes> hash = kSeeds;
  std::uint64_t parity = 0;
};

}  // namespace

std::uint32_t frame_checksum(std::span<const std::byte, 28> context, std::span<const std::byte> payload) {
  HashLanes lanes;
  lanes.add_padded(context);
  const std::size_t stripes = payload.size() / kStripeBytes;
  lanes.add(payload.data(), stripes);
  const auto rest = payload.subspan(stripes * kStripeBytes);
  if (!rest.empty()) lanes.add_padded(rest);
  return lanes.finish();
}

}  // namespace oktopk
