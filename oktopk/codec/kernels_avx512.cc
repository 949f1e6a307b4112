// SPDX-License-Identifier: Apache-2.0
// The kernels that are faster with AVX-512 than with AVX2; the others are those of AVX2.
#include "oktopk/base/simd.h"
#include "oktopk/codec/kernel_bodies.h"

namespace oktopk {
namespace {

constexpr unsigned kLanes = 16;

OKTOPK_AVX512 void pack(const std::uint32_t* fields, unsigned width, std::byte* out) {
  bodies::pack<kLanes>(fields, width, out);
}

OKTOPK_AVX512 void unpack(const std::byte* from, unsigned width, std::uint32_t* fields) {
  bodies::unpack<kLanes>(from, width, fields);
}

OKTOPK_AVX512 void log_codes(const LogQuantiser& q, const float* val, std::size_t count, std::uint8_t* codes) {
  bodies::log_codes(q, val, count, codes);
}

}  // namespace

const CodecKernels& codec_kernels_avx512() {
  static const CodecKernels table = [] {
    CodecKernels kernels = codec_kernels_avx2();
    kernels.pack = pack;
    kernels.unpack = unpack;
    kernels.log_codes = log_codes;
    return kernels;
  }();
  return table;
}

}  // namespace oktopk
