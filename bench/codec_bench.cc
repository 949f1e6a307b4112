// SPDX-License-Identifier: Apache-2.0
// Time per entry of encoding, opening (checksum) and decoding a frame, for every pair of codings
// that changes something: index codings with fp32 and value codings with coo32; then every index
// and value coding alone, beside a copy of as many numbers. Entries are those of a selection:
// uniformly random positions at a density in per mille, magnitudes of a Gaussian tail.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <string_view>

#include "oktopk/codec/coding.h"
#include "oktopk/codec/frame.h"

namespace {

using namespace oktopk;

constexpr Range kRange{0, 1 << 21};

SparseVector selection(double density) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::geometric_distribution<Index> gap(density);
  SparseVector entries;
  for (Index i = gap(random); i < kRange.end; i += 1 + gap(random)) {
    float v = 0;
    while (std::fabs(v) < 2) v = normal(random);
    entries.push_back(i, v);
  }
  return entries;
}

void report(benchmark::State& state, std::size_t entries, std::size_t bytes) {
  const auto count = static_cast<double>(entries);
  using benchmark::Counter;
  // Inverted rates print as seconds: "1.5n" is 1.5 nanoseconds.
  state.counters["s/entry"] = Counter(count, Counter::kIsIterationInvariantRate | Counter::kInvert);
  state.counters["bits/entry"] = 8 * static_cast<double>(bytes) / count;
}

void encode(benchmark::State& state, Codec codec) {
  const SparseVector entries = selection(static_cast<double>(state.range(0)) / 1000);
  Bytes bytes;
  for (auto _ : state) {
    bytes.clear();
    encode_frame({codec, kRange, 0}, entries, bytes);
  }
  report(state, entries.size(), bytes.size());
}

void open(benchmark::State& state, Codec codec) {
  const SparseVector entries = selection(static_cast<double>(state.range(0)) / 1000);
  Bytes bytes;
  encode_frame({codec, kRange, 0}, entries, bytes);
  for (auto _ : state) benchmark::DoNotOptimize(open_frame(bytes, {codec, kRange, 0}));
  report(state, entries.size(), bytes.size());
}

void decode(benchmark::State& state, Codec codec) {
  const SparseVector entries = selection(static_cast<double>(state.range(0)) / 1000);
  Bytes bytes;
  encode_frame({codec, kRange, 0}, entries, bytes);
  const Frame frame = open_frame(bytes, {codec, kRange, 0});
  SparseVector out;
  for (auto _ : state) {
    out.clear();
    decode_frame(frame, out);
  }
  report(state, entries.size(), bytes.size());
}

void encode_indices(benchmark::State& state, IndexCoding coding) {
  const SparseVector entries = selection(static_cast<double>(state.range(0)) / 1000);
  Bytes bytes;
  for (auto _ : state) {
    bytes.clear();
    index_codec(coding).encode(entries.idx, kRange, bytes);
  }
  report(state, entries.size(), bytes.size());
}

void decode_indices(benchmark::State& state, IndexCoding coding) {
  SparseVector entries = selection(static_cast<double>(state.range(0)) / 1000);
  Bytes bytes;
  index_codec(coding).encode(entries.idx, kRange, bytes);
  for (auto _ : state) index_codec(coding).decode(bytes, kRange, entries.idx);
  report(state, entries.size(), bytes.size());
}

void encode_values(benchmark::State& state, ValueCoding coding) {
  const SparseVector entries = selection(static_cast<double>(state.range(0)) / 1000);
  Bytes bytes(value_codec(coding).bytes(entries.size()));
  for (auto _ : state) value_codec(coding).encode(entries.val, bytes);
  report(state, entries.size(), bytes.size());
}

void decode_values(benchmark::State& state, ValueCoding coding) {
  SparseVector entries = selection(static_cast<double>(state.range(0)) / 1000);
  Bytes bytes(value_codec(coding).bytes(entries.size()));
  value_codec(coding).encode(entries.val, bytes);
  for (auto _ : state) value_codec(coding).decode(bytes, entries.val);
  report(state, entries.size(), bytes.size());
}

// The limit: four bytes per entry, read and written.
void copy(benchmark::State& state) {
  const SparseVector entries = selection(static_cast<double>(state.range(0)) / 1000);
  Uninitialised<Index> to(entries.size());
  for (auto _ : state) {
    std::memcpy(to.data(), entries.idx.data(), sizeof(Index) * to.size());
    benchmark::ClobberMemory();
  }
  report(state, entries.size(), sizeof(Index) * to.size());
}

template <class Function, class... Coding>
void add(std::string_view verb, std::string_view name, Function function, Coding... coding) {
  const std::string title = std::string(verb) + '/' + std::string(name);
  benchmark::RegisterBenchmark(title.c_str(), function, coding...)->Arg(1)->Arg(10)->Arg(100);
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const char* name : {"coo32", "u16_blocks", "bit_packed", "elias_fano", "bitmap", "coo32+bf16", "coo32+log8",
                           "coo32+log4", "elias_fano+bf16"}) {
    const Codec codec = parse_codec(name);
    add("encode", name, encode, codec);
    add("open", name, open, codec);
    add("decode", name, decode, codec);
  }
  for (const IndexCoding coding : {IndexCoding::coo32, IndexCoding::u16_blocks, IndexCoding::bit_packed,
                                   IndexCoding::elias_fano, IndexCoding::bitmap}) {
    const std::string_view name = index_codings()[static_cast<std::size_t>(coding)].name;
    add("encode_indices", name, encode_indices, coding);
    add("decode_indices", name, decode_indices, coding);
  }
  for (const ValueCoding coding : {ValueCoding::fp32, ValueCoding::bf16, ValueCoding::log8, ValueCoding::log4}) {
    const std::string_view name = value_codings()[static_cast<std::size_t>(coding)].name;
    add("encode_values", name, encode_values, coding);
    add("decode_values", name, decode_values, coding);
  }
  add("copy", "u32", copy);
  return true;
}();

}  // namespace
