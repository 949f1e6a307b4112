// SPDX-License-Identifier: Apache-2.0
// The table of codings, their names, and the sizes of payloads and frames. A new coding is an enumerator in codec.h, a
// class in indices.cc or values.cc, a factory in coding.h and a row here.
#include "oktopk/codec/codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "oktopk/base/varint.h"
#include "oktopk/codec/coding.h"
#include "oktopk/codec/frame.h"
#include "oktopk/cpu/bits.h"

namespace oktopk {
namespace {

// Index codings, then value codings.
constexpr std::array<CodingInfo, kIndexCodingCount + kValueCodingCount> kCodings{{
    {"coo32", "32-bit indices; the fastest", index_coo32},
    {"u16_blocks", "16-bit offsets inside blocks of 65536", index_u16_blocks},
    {"bit_packed", "gaps, bit-packed with one width per 512", index_bit_packed},
    {"elias_fano", "packed low bits, unary high bits; near the entropy at any density", index_elias_fano},
    {"bitmap", "one bit per position of the range; best above 25% density", index_bitmap},
    {"all", "every index of the range, no index bytes", index_all},
    {"fp32", "32-bit floats, lossless", nullptr, value_fp32},
    {"bf16", "the upper half of a float, rounded to nearest even", nullptr, value_bf16},
    {"log8", "sign and 7-bit logarithmic level per value, a scale per 256", nullptr, value_log8},
    {"log4", "sign and 3-bit logarithmic level per value, a scale per 256", nullptr, value_log4},
}};
static_assert(!kCodings[kIndexCodingCount - 1].name.empty() && !kCodings.back().name.empty(), "a coding lacks its row");

template <class Coding>
const CodingInfo& row_of(std::span<const CodingInfo> table, Coding coding) {
  const auto at = static_cast<std::size_t>(coding);
  require(at < table.size(), "coding number ", at, " does not exist: there are ", table.size());
  return table[at];
}

template <class Coding>
Coding find_coding(std::span<const CodingInfo> table, std::string_view what, std::string_view name) {
  return static_cast<Coding>(&find_row(table, what, name) - table.data());
}

}  // namespace

std::span<const CodingInfo> index_codings() { return std::span(kCodings).first(kIndexCodingCount); }
std::span<const CodingInfo> value_codings() { return std::span(kCodings).subspan(kIndexCodingCount); }

const IndexCodec& index_codec(IndexCoding coding) { return row_of(index_codings(), coding).index(); }
const ValueCodec& value_codec(ValueCoding coding) { return row_of(value_codings(), coding).value(); }

IndexCoding find_index_coding(std::string_view name) {
  return find_coding<IndexCoding>(index_codings(), "index coding", name);
}
ValueCoding find_value_coding(std::string_view name) {
  return find_coding<ValueCoding>(value_codings(), "value coding", name);
}

std::string to_string(Codec codec) {
  std::string name(row_of(index_codings(), codec.index).name);
  return (name += '+') += row_of(value_codings(), codec.value).name;
}

Codec parse_codec(std::string_view text) {
  const std::size_t plus = text.find('+');
  if (plus != std::string_view::npos)
    return {find_index_coding(text.substr(0, plus)), find_value_coding(text.substr(plus + 1))};
  const bool is_index = find_row(kCodings, "codec", text).index != nullptr;
  return is_index ? Codec{.index = find_index_coding(text)} : Codec{.value = find_value_coding(text)};
}

std::size_t max_payload_bytes(Codec codec, std::size_t entries, std::size_t width, std::size_t frames) {
  const bool all = codec.index == IndexCoding::all;
  entries = all ? width : std::min(entries, width);
  frames = std::min(frames, entries);  // an empty frame has no payload
  if (frames == 0) return 0;
  const ValueCodec& values = value_codec(codec.value);
  std::size_t value_bytes = values.bytes(entries) + (frames - 1) * values.cut_bytes();
  // encode_dense_frame replaces the logarithmic codings by bf16.
  if (all && !codec.lossless()) value_bytes = std::max(value_bytes, value_codec(ValueCoding::bf16).bytes(entries));
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

Codec dense_codec(Codec codec) { return {IndexCoding::all, codec.lossless() ? ValueCoding::fp32 : ValueCoding::bf16}; }

// bit_packed says how many index bytes it has; no coding takes more than 5 bytes per index.
std::size_t frame_head_bytes(Codec codec, std::size_t count) {
  const bool has_field = count > 0 && !index_codec(codec.index).has_fixed_size();
  const std::size_t field = has_field ? bytes_for_bits(static_cast<std::size_t>(std::bit_width(5 * count))) : 0;
  return kFrameChecksumBytes + varint_bytes(2 * std::uint64_t{count}) + field;
}

double expected_frame_bytes(Codec codec, double entries, double width) {
  const double count = codec.index == IndexCoding::all ? width : std::clamp(entries, 0.0, width);
  return static_cast<double>(frame_head_bytes(codec, static_cast<std::size_t>(std::ceil(count)))) +
         expected_payload_bytes(codec, entries, width);
}

// The head of a dense frame has one byte besides the checksum.
std::size_t dense_frame_bytes(Codec codec, std::size_t width) {
  return kFrameChecksumBytes + 1 + value_codec(dense_codec(codec).value).bytes(width);
}

double expected_dense_frame_bytes(Codec codec, double width) {
  return static_cast<double>(dense_frame_bytes(codec, 0)) + expected_payload_bytes(dense_codec(codec), width, width);
}

std::size_t max_frame_bytes(Codec codec, std::size_t entries, std::size_t width, std::size_t frames) {
  const bool all = codec.index == IndexCoding::all;
  const std::size_t count = all ? width : std::min(entries, width);
  return frames * frame_head_bytes(codec, count) + max_payload_bytes(codec, entries, width, frames);
}

}  // namespace oktopk
