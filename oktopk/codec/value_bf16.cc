// SPDX-License-Identifier: Apache-2.0
// bf16: the upper 16 bits of a float, rounded to nearest even; relative error at most 2^-9. Values
// that would round to infinity become the largest finite bf16, so that finite stays finite.
#include "oktopk/base/error.h"
#include "oktopk/codec/kernels.h"
#include "oktopk/codec/value_codec.h"

namespace oktopk {
namespace {

class Bf16 final : public ValueCodec {
 public:
  std::size_t bytes(std::size_t count) const override { return sizeof(std::uint16_t) * count; }
  std::size_t cut_bytes() const override { return 0; }

  void encode(std::span<const float> val, std::span<std::byte> out) const override {
    codec_kernels().to_bf16(val.data(), val.size(), out.data());
  }

  void decode(std::span<const std::byte> payload, std::span<float> out) const override {
    if (!codec_kernels().from_bf16(payload.data(), out.size(), out.data())) {
      fail<CommError>("bf16: a value among ", out.size(), " is not finite");
    }
  }
};

}  // namespace

const ValueCodec& value_bf16() {
  static constexpr Bf16 codec;
  return codec;
}

}  // namespace oktopk
