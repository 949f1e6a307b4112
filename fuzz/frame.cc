// SPDX-License-Identifier: Apache-2.0
// Any bytes as a frame, sparse or dense. reseal() corrects the checksum, so that the fuzzer gets past it.
#include <cmath>

#include "fuzz/target.h"
#include "oktopk/base/error.h"
#include "tests/codec/samples.h"

namespace {

using namespace oktopk;

using fuzz::check;

constexpr std::size_t kSpecBytes = 9;  // of the input: codings, two ends of the range

FrameSpec spec_of(std::span<const std::byte> input) {
  const auto codings = std::to_integer<std::size_t>(input[0]);
  FrameSpec spec;
  spec.codec.index = static_cast<IndexCoding>(codings % index_codings().size());
  spec.codec.value = static_cast<ValueCoding>(codings / 16 % value_codings().size());
  std::memcpy(&spec.range.begin, input.data() + 1, 4);
  std::memcpy(&spec.range.end, input.data() + 5, 4);
  if (spec.range.begin > spec.range.end) std::swap(spec.range.begin, spec.range.end);
  return spec;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kSpecBytes) return 0;
  const auto input = std::as_bytes(std::span(data, size));
  const FrameSpec spec = spec_of(input);
  Bytes bytes(input.begin() + kSpecBytes, input.end());
  testing::reseal(bytes, spec);
  SparseVector out;
  try {
    const Frame frame = open_frame(bytes, spec);
    check(frame.count <= 2 * frame.payload.size());
    decode_frame(frame, out);
    check(out.size() <= frame.count);
    check(is_canonical(out));
    check(out.empty() || (out.idx.front() >= frame.range.begin && out.idx.back() < frame.range.end));
    for (const float v : out.val) check(std::isfinite(v));
    // Entries that decode can be sent again without loss in full precision.
    Bytes again;
    SparseVector back;
    const FrameSpec exact{{IndexCoding::elias_fano, ValueCoding::fp32}, frame.range, 0};
    encode_frame(exact, out, again);
    decode_frame(open_frame(again, exact), back);
    check(std::ranges::equal(back.idx, out.idx));
    check(std::ranges::equal(back.val, out.val));
  } catch (const CommError&) {
  }
  return 0;
}
