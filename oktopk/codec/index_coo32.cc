// SPDX-License-Identifier: Apache-2.0
// coo32: index - range.begin as 32 bits each. 32 bits per index; a copy with an offset.
#include <cstring>

#include "oktopk/base/error.h"
#include "oktopk/codec/index_codec.h"

namespace oktopk {
namespace {

class Coo32 final : public IndexCodec {
 public:
  void encode(std::span<const Index> idx, Range range, Bytes& out) const override {
    const std::size_t start = out.size();
    out.resize(start + sizeof(Index) * idx.size());
    std::byte* to = out.data() + start;
    for (const Index i : idx) {
      const Index relative = i - range.begin;
      std::memcpy(to, &relative, sizeof relative);
      to += sizeof relative;
    }
  }

  void decode(std::span<const std::byte> payload, Range range,
              std::span<Index> out) const override {
    std::memcpy(out.data(), payload.data(), payload.size());
    bool increasing = true;
    for (std::size_t i = 1; i < out.size(); ++i) increasing &= out[i - 1] < out[i];
    if (!increasing) fail<CommError>("coo32: ", out.size(), " indices are not increasing");
    if (out.back() >= range.width()) {
      fail<CommError>("coo32: index ", out.back(), " in a range of ", range.width());
    }
    for (Index& i : out) i += range.begin;
  }

  SizeBounds bounds(std::size_t count, std::size_t /*width*/) const override {
    return {sizeof(Index) * count, sizeof(Index) * count};
  }

  std::size_t max_bytes(std::size_t entries, std::size_t /*width*/,
                        std::size_t /*frames*/) const override {
    return sizeof(Index) * entries;
  }

  double expected_bytes(double entries, double /*width*/) const override { return 4 * entries; }
};

}  // namespace

const IndexCodec& index_coo32() {
  static constexpr Coo32 codec;
  return codec;
}

}  // namespace oktopk
