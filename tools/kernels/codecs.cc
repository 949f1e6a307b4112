// SPDX-License-Identifier: Apache-2.0
// Codings of the selection: each index and value coding alone, and whole frames. The limit is a
// copy of what is encoded.
#include <numeric>

#include "oktopk/codec/frame.h"
#include "oktopk/codec/coding.h"
#include "tools/kernels/kernel_bench.h"

namespace oktopk {

void KernelBench::index_coding(IndexCoding coding, const CodingInfo& info) {
  const std::string name = "index " + std::string(info.name);
  Uninitialised<Index> indices = selection_.idx;
  Range range{0, data_.n};
  if (coding == IndexCoding::all) {  // it has every index of its range
    range.end = static_cast<Index>(indices.size());
    std::iota(indices.begin(), indices.end(), 0U);
  }
  const IndexCodec& codec = index_codec(coding);
  Bytes code;
  codec.encode(indices, range, code);
  const auto entries = static_cast<double>(indices.size());
  KernelRow row{.bytes = 4 * entries, .entries = entries, .bits = 8 * static_cast<double>(code.size()) / entries};
  if (is_one_percent() && coding == IndexCoding::bit_packed)
    row.reach = {{Measure::bits, 10.1}, {Measure::nanoseconds, 0.2}};
  if (is_one_percent() && coding == IndexCoding::elias_fano)
    row.reach = {{Measure::bits, 8.7}, {Measure::nanoseconds, 1.5}};
  Bytes out;
  if (row.kernel = name + " encode"; wants(row.kernel))
    time_beside_copy(row, [&] {
      out.clear();
      codec.encode(indices, range, out);
    });
  if (row.kernel = name + " decode"; wants(row.kernel))
    time_beside_copy(row, [&] { codec.decode(code, range, indices); });
}

void KernelBench::value_coding(ValueCoding coding, const CodingInfo& info) {
  const std::string name = "value " + std::string(info.name);
  const ValueCodec& codec = value_codec(coding);
  Uninitialised<float> values = selection_.val;
  Bytes code(codec.bytes(values.size()));
  codec.encode(values, code);
  const auto entries = static_cast<double>(values.size());
  KernelRow row{.bytes = 4 * entries, .entries = entries, .bits = 8 * static_cast<double>(code.size()) / entries};
  if (row.kernel = name + " encode"; wants(row.kernel))
    time_beside_copy(row, [&] { codec.encode(selection_.val, code); });
  if (row.kernel = name + " decode"; wants(row.kernel)) time_beside_copy(row, [&] { codec.decode(code, values); });
}

void KernelBench::frame(const std::string& name) {
  const FrameSpec spec{.codec = parse_codec(name), .range = {0, data_.n}};
  Bytes code, out;
  encode_frame(spec, selection_, code);
  const auto entries = static_cast<double>(selection_.size());
  KernelRow row{.bytes = 8 * entries, .entries = entries, .bits = 8 * static_cast<double>(code.size()) / entries};
  const auto measure = [&](const char* verb, const Body& body) {
    row.kernel = "frame " + name + " " + verb;
    if (wants(row.kernel)) time_beside_copy(row, body);
  };
  SparseVector decoded, error;
  measure("encode", [&] {
    out.clear();
    error.clear();
    encode_frame(spec, selection_, out, &error);
  });
  measure("open", [&] { sink_ += static_cast<float>(open_frame(code, spec).count); });
  const Frame opened = open_frame(code, spec);
  measure("decode", [&] {
    decoded.clear();
    decode_frame(opened, decoded);
  });
}

}  // namespace oktopk
