// SPDX-License-Identifier: Apache-2.0
// all: the frame holds every index of its range, so none is written. For dense blocks.
#include <numeric>

#include "oktopk/codec/index_codec.h"

namespace oktopk {
namespace {

class All final : public IndexCodec {
 public:
  std::size_t encode_to(std::span<const Index> /*idx*/, Range /*range*/, std::byte* /*out*/) const override {
    return 0;
  }

  void decode_next(IndexCursor& cursor, std::span<Index> out) const override {
    std::iota(out.begin(), out.end(), cursor.next);
    cursor.next += static_cast<Index>(out.size());
    cursor.done += out.size();
  }

  SizeBounds bounds(std::size_t /*count*/, std::size_t /*width*/) const override { return {0, 0}; }

  std::size_t max_bytes(std::size_t /*entries*/, std::size_t /*width*/, std::size_t /*frames*/) const override {
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
