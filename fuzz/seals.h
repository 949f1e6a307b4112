// SPDX-License-Identifier: Apache-2.0
// Corrects the seals of a saved state (base/state.h), the states inside it first.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "oktopk/base/bytes.h"
#include "oktopk/base/hash.h"
#include "oktopk/base/state.h"

namespace oktopk::fuzz {

inline constexpr char kStateMagic[] = "KTOPKST1";
inline constexpr std::uint32_t kStateVersion = 3;

// Magic, version and zeros, the content's size, its checksum.
inline void seal_at(std::span<std::byte> state) {
  const std::uint64_t size = state.size() - kStateHeadBytes;
  const std::uint64_t version = kStateVersion;
  const std::uint64_t checksum = hash_bytes(state.subspan(kStateHeadBytes), kStateVersion);
  std::memcpy(state.data(), kStateMagic, 8);
  std::memcpy(state.data() + 8, &version, 8);
  std::memcpy(state.data() + 16, &size, 8);
  std::memcpy(state.data() + 24, &checksum, 8);
}

inline Bytes resealed(std::span<const std::byte> bytes) {
  Bytes state(bytes.begin(), bytes.end());
  if (state.size() < kStateHeadBytes) return state;
  // An inner state begins behind its size; those further behind may lie inside it, so they come first.
  for (std::size_t at = state.size() - kStateHeadBytes; at >= kStateHeadBytes + 8; --at) {
    std::uint64_t size = 0;
    if (std::memcmp(state.data() + at, kStateMagic, 8) != 0) continue;
    std::memcpy(&size, state.data() + at - 8, 8);
    if (size >= kStateHeadBytes && size <= state.size() - at) seal_at(std::span(state).subspan(at, size));
  }
  seal_at(state);
  return state;
}

}  // namespace oktopk::fuzz
