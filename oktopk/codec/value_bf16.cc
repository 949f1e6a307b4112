// SPDX-License-Identifier: Apache-2.0
// bf16: the upper 16 bits of a float, rounded to nearest even; relative error at most 2^-9. Values
// that would round to infinity become the largest finite bf16, so that finite stays finite.
#include <algorithm>
#include <bit>
#include <cstring>

#include "oktopk/base/error.h"
#include "oktopk/codec/bf16.h"
#include "oktopk/codec/value_codec.h"

namespace oktopk {
namespace {

class Bf16 final : public ValueCodec {
 public:
  std::size_t bytes(std::size_t count) const override { return sizeof(std::uint16_t) * count; }
  std::size_t cut_bytes() const override { return 0; }

  void encode(std::span<const float> val, std::span<std::byte> out) const override {
    for (std::size_t i = 0; i < val.size(); ++i) {
      const std::uint16_t half = to_bf16(val[i]);
      std::memcpy(out.data() + sizeof half * i, &half, sizeof half);
    }
  }

  void decode(std::span<const std::byte> payload, std::span<float> out) const override {
    std::uint32_t most = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::uint16_t half;
      std::memcpy(&half, payload.data() + sizeof half * i, sizeof half);
      most = std::max(most, half & 0x7FFFu);
      out[i] = from_bf16(half);
    }
    if (most >= 0x7F80u) fail<CommError>("bf16: a value among ", out.size(), " is not finite");
  }
};

}  // namespace

const ValueCodec& value_bf16() {
  static constexpr Bf16 codec;
  return codec;
}

}  // namespace oktopk
