// SPDX-License-Identifier: Apache-2.0
// fp32: IEEE floats as they are, 32 bits each. Lossless.
#include <bit>
#include <cstdint>
#include <cstring>

#include "oktopk/base/error.h"
#include "oktopk/codec/value_codec.h"

namespace oktopk {
namespace {

class Fp32 final : public ValueCodec {
 public:
  std::size_t bytes(std::size_t count) const override { return sizeof(float) * count; }
  std::size_t cut_bytes() const override { return 0; }

  void encode(std::span<const float> val, std::span<std::byte> out) const override {
    std::memcpy(out.data(), val.data(), out.size());
  }

  void decode(std::span<const std::byte> payload, std::span<float> out) const override {
    constexpr std::uint32_t kInfinity = 0x7F800000u;
    std::uint32_t wrong = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, payload.data() + sizeof bits * i, sizeof bits);
      wrong |= (bits & kInfinity) == kInfinity ? 1u : 0u;
      out[i] = std::bit_cast<float>(bits);
    }
    if (wrong != 0) fail<CommError>("fp32: a value among ", out.size(), " is not finite");
  }
};

}  // namespace

const ValueCodec& value_fp32() {
  static constexpr Fp32 codec;
  return codec;
}

}  // namespace oktopk
