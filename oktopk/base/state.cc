// SPDX-License-Identifier: Apache-2.0
#include "oktopk/base/state.h"

#include <bit>

#include "oktopk/base/hash.h"

namespace oktopk {
namespace {

static_assert(std::endian::native == std::endian::little, "state is written in host byte order");

constexpr std::uint64_t kMagic = 0x3154534b504f544bU;  // "KTOPKST1"
constexpr std::uint32_t kVersion = 3;

struct Seal {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t reserved = 0;
  std::uint64_t size = 0;
  std::uint64_t checksum = 0;
};
static_assert(sizeof(Seal) == kStateHeadBytes);

// Writes the seal of a state before its content.
void seal_in_place(std::span<std::byte> state) {
  const auto content = state.subspan(kStateHeadBytes);
  const Seal seal{.size = content.size(), .checksum = hash_bytes(content, kVersion)};
  std::memcpy(state.data(), &seal, sizeof(seal));
}

}  // namespace

Bytes StateWriter::seal() && {
  seal_in_place(bytes_);
  return std::move(bytes_);
}

void StateWriter::seal_nested(std::size_t start) {
  const auto nested = std::span(bytes_).subspan(start + sizeof(std::uint64_t));
  const std::uint64_t size = nested.size();
  std::memcpy(bytes_.data() + start, &size, sizeof(size));
  seal_in_place(nested);
}

StateReader::StateReader(std::span<const std::byte> sealed) {
  Seal seal;
  require(sealed.size() >= sizeof(seal), "state: ", sealed.size(), " bytes, but at least ", sizeof(seal),
          " are needed");
  std::memcpy(&seal, sealed.data(), sizeof(seal));
  require(seal.magic == kMagic, "state: this is not a saved state of oktopk");
  require(seal.version == kVersion, "state: saved in format ", seal.version, ", but this library reads format ",
          kVersion);
  require(seal.reserved == 0, "state: damaged, its head is not what was written");
  bytes_ = sealed.subspan(sizeof(seal));
  require(seal.size == bytes_.size(), "state: ", bytes_.size(), " bytes of content where ", seal.size, " were saved");
  require(seal.checksum == hash_bytes(bytes_, kVersion), "state: damaged, the checksum differs");
}

std::span<const std::byte> StateReader::next(std::size_t size) {
  require(size <= bytes_.size(), "state: ", size, " more bytes were expected, but only ", bytes_.size(), " are left");
  const auto taken = bytes_.first(size);
  bytes_ = bytes_.subspan(size);
  return taken;
}

}  // namespace oktopk
