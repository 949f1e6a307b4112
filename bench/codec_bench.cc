// SPDX-License-Identifier: Apache-2.0
// Time per entry of encoding, opening (checksum) and decoding a frame, for every pair of codings
// that changes something: index codings with fp32 and value codings with coo32. Entries are those
// of a selection: uniformly random positions at a density in per mille, magnitudes of a Gaussian
// tail.
#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <string>

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
  for (auto _ : state) benchmark::DoNotOptimize(open_frame(bytes));
  report(state, entries.size(), bytes.size());
}

void decode(benchmark::State& state, Codec codec) {
  const SparseVector entries = selection(static_cast<double>(state.range(0)) / 1000);
  Bytes bytes;
  encode_frame({codec, kRange, 0}, entries, bytes);
  const Frame frame = open_frame(bytes);
  SparseVector out;
  for (auto _ : state) {
    out.clear();
    decode_frame(frame, out);
  }
  report(state, entries.size(), bytes.size());
}

void decode_add(benchmark::State& state, Codec codec) {
  const SparseVector entries = selection(static_cast<double>(state.range(0)) / 1000);
  Bytes bytes;
  encode_frame({codec, kRange, 0}, entries, bytes);
  const Frame frame = open_frame(bytes);
  SparseVector scratch;
  std::vector<float> sums(kRange.width());
  for (auto _ : state) decode_frame_add(frame, sums, scratch);
  report(state, entries.size(), bytes.size());
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const char* name : {"coo32", "u16_blocks", "bit_packed", "elias_fano", "bitmap",
                           "coo32+bf16", "coo32+log8", "coo32+log4", "elias_fano+bf16"}) {
    const Codec codec = parse_codec(name);
    const auto add = [&](const char* verb, auto function) {
      const std::string title = std::string(verb) + '/' + name;
      benchmark::RegisterBenchmark(title.c_str(), function, codec)->Arg(1)->Arg(10)->Arg(100);
    };
    add("encode", encode);
    add("open", open);
    add("decode", decode);
    add("decode_add", decode_add);
  }
  return true;
}();

}  // namespace
