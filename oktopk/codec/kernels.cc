// SPDX-License-Identifier: Apache-2.0
// The reference, for any processor, and the choice of the table.
#include "oktopk/codec/kernels.h"

#include <array>

#include "oktopk/base/simd.h"
#include "oktopk/codec/bits.h"
#include "oktopk/codec/kernel_bodies.h"

namespace oktopk {
namespace {

// The least that the compilers assume: SSE2 and its kind.
constexpr unsigned kLanes = 4;

void unpack_gaps(const std::byte* from, unsigned width, Index next, Index* out) {
  bodies::unpack<kLanes>(from, width, out);
  for (std::size_t i = 0; i < kFieldBlock; ++i) {
    next += out[i];
    out[i] = next++;
  }
}

OnesListed list_ones(std::span<const std::byte> words, Index base, Index* out, std::size_t room) {
  std::size_t ones = 0;
  std::size_t read = 0;
  for (; 8 * read < words.size() && ones < room; ++read, base += 64) {
    for (std::uint64_t word = load_u64(words.data() + 8 * read); word != 0; word &= word - 1) {
      out[ones++] = base + static_cast<Index>(std::countr_zero(word));
    }
  }
  return {ones, read};
}

void set_high_bits(const LowPart& low, const Index* idx, std::size_t count, std::byte* out) {
  set_ones(count, out, [&](std::size_t i) { return ((idx[i] - low.begin) >> low.width) + i; });
}

constexpr CodecKernels kScalar{
    .increasing = [](const Index* idx, std::size_t count) { return bodies::increasing(idx, count); },
    .gaps = [](const Index* idx, Index next, Index* gaps) { return bodies::gaps(idx, next, gaps); },
    .pack = [](const std::uint32_t* fields, unsigned width,
               std::byte* out) { bodies::pack<kLanes>(fields, width, out); },
    .unpack = [](const std::byte* from, unsigned width,
                 std::uint32_t* fields) { bodies::unpack<kLanes>(from, width, fields); },
    .unpack_gaps = unpack_gaps,
    .list_ones = list_ones,
    .set_high_bits = set_high_bits,
    .join = [](const HighBits& high, Index* low, std::size_t count) { bodies::join(high, low, count); },
    .to_bf16 = [](const float* val, std::size_t count, std::byte* out) { bodies::to_bf16(val, count, out); },
    .from_bf16 = [](const std::byte* from, std::size_t count,
                    float* val) { return bodies::from_bf16(from, count, val); },
    .split_bf16 = [](float* val, std::size_t count, std::byte* out) { return bodies::split_bf16(val, count, out); },
    .add_bf16 = [](const std::byte* from, std::size_t count, float* sum) { return bodies::add_bf16(from, count, sum); },
    .extremes = [](const float* val, std::size_t count,
                   std::int32_t floor) { return bodies::extremes(val, count, floor); },
    .log_codes = [](const LogQuantiser& q, const float* val, std::size_t count,
                    std::uint8_t* codes) { bodies::log_codes(q, val, count, codes); },
};

}  // namespace

const CodecKernels& codec_kernels_scalar() { return kScalar; }

const CodecKernels& codec_kernels() {
  using Table = const CodecKernels& (*)();
  static constexpr std::array<Table, 3> kTables{codec_kernels_scalar, codec_kernels_avx2, codec_kernels_avx512};
  return kTables[static_cast<std::size_t>(simd_level())]();
}

}  // namespace oktopk
