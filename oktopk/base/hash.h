// SPDX-License-Identifier: Apache-2.0
// A 64-bit hash: checks of small messages and of saved states, tags of steps. It works byte by byte and is too slow for
// payloads of frames, which have a checksum of their own (codec/frame.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace oktopk {

// FNV-1a with a final mix; every bit of the input changes about half of the bits of the result.
inline std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed = 0) {
  std::uint64_t hash = 0xcbf29ce484222325U ^ (seed * 0x9e3779b97f4a7c15U);
  for (const std::byte b : bytes) hash = (hash ^ static_cast<std::uint8_t>(b)) * 0x100000001b3U;
  hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccdU;
  return hash ^ (hash >> 33);
}

inline std::uint64_t hash_text(std::string_view text, std::uint64_t seed = 0) {
  return hash_bytes(std::as_bytes(std::span(text.data(), text.size())), seed);
}

}  // namespace oktopk
