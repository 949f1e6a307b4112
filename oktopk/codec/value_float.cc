// SPDX-License-Identifier: Apache-2.0
// The value codings that are floats:
//   fp32  IEEE floats as they are, lossless.
//   bf16  the upper 16 bits of a float, rounded to nearest even; relative error at most 2^-9. Values that would round
//   to
//         infinity become the largest finite bf16, so that finite stays finite.
#include <cstring>

#include "oktopk/base/error.h"
#include "oktopk/codec/coding.h"
#include "oktopk/cpu/kernels.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

class Fp32Values final : public ValueCodec {
 public:
  std::size_t bytes(std::size_t count) const override { return sizeof(float) * count; }

  void encode(std::span<const float> val, std::span<std::byte> out) const override {
    std::memcpy(out.data(), val.data(), out.size());
  }

  void decode(std::span<const std::byte> payload, std::span<float> out) const override {
    std::memcpy(out.data(), payload.data(), payload.size());
    if (first_nonfinite(out) != out.size()) fail<CommError>("fp32: a value among ", out.size(), " is not finite");
  }
};

class Bf16Values final : public ValueCodec {
 public:
  std::size_t bytes(std::size_t count) const override { return sizeof(Bf16) * count; }

  void encode(std::span<const float> val, std::span<std::byte> out) const override {
    kernels().codings.to_bf16(val.data(), val.size(), out.data());
  }

  void decode(std::span<const std::byte> payload, std::span<float> out) const override {
    if (!kernels().codings.from_bf16(payload.data(), out.size(), out.data())) {
      fail<CommError>("bf16: a value among ", out.size(), " is not finite");
    }
  }
};

constexpr Fp32Values kFp32;
constexpr Bf16Values kBf16;

}  // namespace

const ValueCodec& value_fp32() { return kFp32; }
const ValueCodec& value_bf16() { return kBf16; }

}  // namespace oktopk
