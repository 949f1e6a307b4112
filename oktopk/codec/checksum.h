// SPDX-License-Identifier: Apache-2.0
// The 32-bit checksum of a frame: 31 bits of a multiplicative hash in four lanes and one
// parity bit. The parity catches every odd number of flipped bits, the hash any other damage but
// one in 2^31. It guards against accidents, not against an adversary: decoders trust no byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace oktopk {

// `context` is what both sides know of the frame besides its payload (frame.cc). COST: about memory
// speed.
std::uint32_t frame_checksum(std::span<const std::byte, 28> context, std::span<const std::byte> payload);

}  // namespace oktopk
