// SPDX-License-Identifier: Apache-2.0
// How a sorted sparse vector becomes bytes: an index coding times a value coding, any pair legal. docs/wire_format.md
// has every byte. Lossless codings keep every bit of every value; lossy ones round to nearest, and the encoder's rank
// keeps the rounding error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace oktopk {

enum class IndexCoding : std::uint8_t {
  coo32 = 0,       // 32-bit indices
  u16_blocks = 1,  // 16-bit offsets inside blocks of 65536
  bit_packed = 2,  // gaps, packed with one width per 512
  elias_fano = 3,  // low bits packed, high bits unary: within 0.6 bit of the entropy
  bitmap = 4,      // one bit per index of the range: best above ~25% density
  all = 5,         // every index of the range, no index bytes (dense blocks)
};

enum class ValueCoding : std::uint8_t {
  fp32 = 0,  // lossless
  bf16 = 1,  // round to nearest even
  log8 = 2,  // sign + 7-bit logarithmic level between the smallest and largest magnitude of 256
  log4 = 3,  // sign + 3-bit level, the same way
};

// Numbers of enumerators: codec.cc has a row for each.
inline constexpr std::size_t kIndexCodingCount = 6;
inline constexpr std::size_t kValueCodingCount = 4;

struct Codec {
  IndexCoding index = IndexCoding::coo32;
  ValueCoding value = ValueCoding::fp32;
  bool lossless() const { return value == ValueCoding::fp32; }
  friend bool operator==(const Codec&, const Codec&) = default;
};

// "elias_fano+bf16". parse_codec also accepts one half alone; the other one is then coo32 or fp32. For a name that does
// not exist, all three throw UsageError with the name and a list of those that do.
std::string to_string(Codec codec);
Codec parse_codec(std::string_view text);
IndexCoding find_index_coding(std::string_view name);
ValueCoding find_value_coding(std::string_view name);

class IndexCodec;
class ValueCodec;

// A row of the table of codings: an index coding or a value coding.
struct CodingInfo {
  std::string_view name;
  std::string_view summary;
  const IndexCodec& (*index)() = nullptr;
  const ValueCodec& (*value)() = nullptr;
};
std::span<const CodingInfo> index_codings();  // in enum order
std::span<const CodingInfo> value_codings();

// Payload sizes, without the head of a frame. max_payload_bytes holds for any `entries` sorted indices inside `width`
// positions, cut into `frames` frames in any way; expected is for uniformly random positions in one frame. With
// IndexCoding::all every position is an entry, whatever `entries` says.
std::size_t max_payload_bytes(Codec codec, std::size_t entries, std::size_t width, std::size_t frames = 1);
double expected_payload_bytes(Codec codec, double entries, double width);

}  // namespace oktopk
