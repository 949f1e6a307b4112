// SPDX-License-Identifier: Apache-2.0
// The tables of codings, their names, and payload sizes. A new coding adds one enumerator in
// codec.h, one line in a table here and one file.
#include "oktopk/codec/codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "oktopk/base/error.h"
#include "oktopk/codec/index_codec.h"
#include "oktopk/codec/value_codec.h"

namespace oktopk {
namespace {

constexpr std::array<CodingInfo, 6> kIndexCodings{{
    {"coo32", "32-bit indices; the fastest"},
    {"u16_blocks", "16-bit offsets inside blocks of 65536"},
    {"bit_packed", "gaps, bit-packed with one width per 512"},
    {"elias_fano", "packed low bits, unary high bits; near the entropy at any density"},
    {"bitmap", "one bit per position of the range; best above 25% density"},
    {"all", "every index of the range, no index bytes"},
}};
constexpr std::array<const IndexCodec& (*)(), 6> kIndexCodecs{index_coo32,      index_u16_blocks, index_bit_packed,
                                                              index_elias_fano, index_bitmap,     index_all};

constexpr std::array<CodingInfo, 4> kValueCodings{{
    {"fp32", "32-bit floats, lossless"},
    {"bf16", "the upper half of a float, rounded to nearest even"},
    {"log8", "sign and 7-bit logarithmic level per value, a scale per 256"},
    {"log4", "sign and 3-bit logarithmic level per value, a scale per 256"},
}};
constexpr std::array<const ValueCodec& (*)(), 4> kValueCodecs{value_fp32, value_bf16, value_log8, value_log4};

template <class Coding>
std::optional<Coding> find(std::span<const CodingInfo> table, std::string_view name) {
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i].name == name) return static_cast<Coding>(i);
  }
  return std::nullopt;
}

std::string names(std::span<const CodingInfo> table) {
  std::string text;
  for (const CodingInfo& info : table) (text += text.empty() ? "" : ", ") += info.name;
  return text;
}

[[noreturn]] void fail_parse(std::string_view text) {
  fail<UsageError>("parse_codec: '", text, "' is not INDEX+VALUE, INDEX or VALUE with INDEX in {", names(kIndexCodings),
                   "} and VALUE in {", names(kValueCodings), "}");
}

}  // namespace

std::span<const CodingInfo> index_codings() { return kIndexCodings; }
std::span<const CodingInfo> value_codings() { return kValueCodings; }

const IndexCodec& index_codec(IndexCoding coding) {
  const auto at = static_cast<std::size_t>(coding);
  if (at >= kIndexCodecs.size())
    fail<UsageError>("index coding ", at, " does not exist: use one of {", names(kIndexCodings), "}");
  return kIndexCodecs[at]();
}

const ValueCodec& value_codec(ValueCoding coding) {
  const auto at = static_cast<std::size_t>(coding);
  if (at >= kValueCodecs.size())
    fail<UsageError>("value coding ", at, " does not exist: use one of {", names(kValueCodings), "}");
  return kValueCodecs[at]();
}

std::string to_string(Codec codec) {
  const auto index = static_cast<std::size_t>(codec.index);
  const auto value = static_cast<std::size_t>(codec.value);
  std::string text(index < kIndexCodings.size() ? kIndexCodings[index].name : "?");
  text += '+';
  text += value < kValueCodings.size() ? kValueCodings[value].name : "?";
  return text;
}

Codec parse_codec(std::string_view text) {
  const std::size_t plus = text.find('+');
  const auto index = find<IndexCoding>(kIndexCodings, text.substr(0, plus));
  if (plus == std::string_view::npos) {
    if (index) return {*index, ValueCoding::fp32};
    const auto value = find<ValueCoding>(kValueCodings, text);
    if (!value) fail_parse(text);
    return {IndexCoding::coo32, *value};
  }
  const auto value = find<ValueCoding>(kValueCodings, text.substr(plus + 1));
  if (!index || !value) fail_parse(text);
  return {*index, *value};
}

std::size_t max_payload_bytes(Codec codec, std::size_t entries, std::size_t width, std::size_t frames) {
  const bool all = codec.index == IndexCoding::all;
  entries = all ? width : std::min(entries, width);
  frames = std::min(frames, entries);  // an empty frame has no payload
  if (frames == 0) return 0;
  const ValueCodec& values = value_codec(codec.value);
  std::size_t value_bytes = values.bytes(entries) + (frames - 1) * values.cut_bytes();
  // encode_dense_frame replaces the logarithmic codings by bf16.
  if (all && !codec.lossless()) {
    value_bytes = std::max(value_bytes, value_codec(ValueCoding::bf16).bytes(entries));
  }
  return index_codec(codec.index).max_bytes(entries, width, frames) + value_bytes;
}

double expected_payload_bytes(Codec codec, double entries, double width) {
  entries = codec.index == IndexCoding::all ? width : std::min(entries, width);
  if (!(entries > 0)) return 0;
  const auto count = static_cast<std::size_t>(std::ceil(entries));
  // Proportional below one entry, so that sums over many sparse frames stay right.
  const double value_bytes =
      static_cast<double>(value_codec(codec.value).bytes(count)) * entries / static_cast<double>(count);
  return index_codec(codec.index).expected_bytes(entries, width) + value_bytes;
}

}  // namespace oktopk
