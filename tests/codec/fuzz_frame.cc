// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: any bytes as a stream of frames, with the checksums made right so that the
// fuzzer gets past them. Not part of the build:
//   clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -I. tests/codec/fuzz_frame.cc
//       oktopk/codec/[!n]*.cc oktopk/base/[!n]*.cc oktopk/sparse/coo.cc -o fuzz_frame &&
//       ./fuzz_frame -max_total_time=120
#include <cmath>
#include <cstdlib>

#include "oktopk/base/error.h"
#include "tests/codec/samples.h"

namespace {

using namespace oktopk;

void check(bool holds) {
  if (!holds) std::abort();
}

// A byte of input picks the codings and a few the range, so that most inputs pass the header.
Bytes frame_of(std::span<const std::byte> input) {
  Bytes frame(input.begin(), input.end());
  testing::put(frame, 0, std::uint16_t{0x4B4F});
  testing::put(frame, 2, std::uint8_t{2});
  testing::put(frame, 16, std::uint64_t{frame.size() - kFrameHeaderBytes});
  testing::reseal(frame);
  return frame;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kFrameHeaderBytes) return 0;
  const Bytes bytes = frame_of(std::as_bytes(std::span(data, size)));
  SparseVector out;
  try {
    const Frame frame = open_frame(bytes);
    check(frame.count <= 2 * frame.payload.size());
    decode_frame(frame, out);
    check(is_canonical(out));
    check(out.empty() ||
          (out.idx.front() >= frame.range.begin && out.idx.back() < frame.range.end));
    for (const float v : out.val) check(std::isfinite(v));
    // What decodes can be sent again without loss in full precision.
    Bytes again;
    SparseVector back;
    encode_frame({{IndexCoding::elias_fano, ValueCoding::fp32}, frame.range, 0}, out, again);
    decode_frame(open_frame(again), back);
    check(std::ranges::equal(back.idx, out.idx));
    check(std::ranges::equal(back.val, out.val));
  } catch (const CommError&) {
  }
  return 0;
}
