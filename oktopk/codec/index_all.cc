// SPDX-License-Identifier: Apache-2.0
// all: the frame holds every index of its range, so none is written. For dense blocks.
#include <numeric>

#include "oktopk/codec/index_codec.h"

namespace oktopk {
namespace {

class All final : public IndexCodec {
 public:
  void encode(std::span<const Index> /*idx*/, Range /*range*/, Bytes& /*out*/) const override {}

  void decode(std::span<const std::byte> /*payload*/, Range range,
              std::span<Index> out) const override {
    std::iota(out.begin(), out.end(), range.begin);
  }

  SizeBounds bounds(std::size_t /*count*/, std::size_t /*width*/) const override { return {0, 0}; }

  std::size_t max_bytes(std::size_t /*entries*/, std::size_t /*width*/,
                        std::size_t /*frames*/) const override {
    return 0;
  }

  double expected_bytes(double /*entries*/, double /*width*/) const override { return 0; }
};

}  // namespace

const IndexCodec& index_all() {
  static constexpr All codec;
  return codec;
}

}  // namespace oktopk
