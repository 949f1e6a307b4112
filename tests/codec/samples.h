// SPDX-License-Identifier: Apache-2.0
// Parts that the codec tests share: every codec by name, sparse vectors of many shapes, damaged frames.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/codec/codec.h"
#include "oktopk/codec/frame.h"

namespace oktopk::testing {

using Random = std::mt19937_64;

inline double uniform(Random& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

inline std::vector<Codec> every_codec() {
  std::vector<Codec> codecs;
  for (std::size_t i = 0; i < index_codings().size(); ++i) {
    for (std::size_t v = 0; v < value_codings().size(); ++v) {
      codecs.push_back({static_cast<IndexCoding>(i), static_cast<ValueCoding>(v)});
    }
  }
  return codecs;
}

// For INSTANTIATE_TEST_SUITE_P, which takes no '+'.
inline std::string test_name(Codec codec) {
  std::string name = to_string(codec);
  std::replace(name.begin(), name.end(), '+', '_');
  return name;
}

struct Sample {
  std::string name;
  Range range;
  SparseVector entries;
};

inline float normal_value(Random& random) {
  std::normal_distribution<float> normal;
  return normal(random);
}

// Each index of the range with probability `density`.
inline SparseVector random_entries(Range range, double density, Random& random) {
  SparseVector entries;
  for (Index i = range.begin; i < range.end; ++i) {
    if (uniform(random) < density) entries.push_back(i, normal_value(random));
  }
  return entries;
}

inline SparseVector entries_at(std::vector<Index> idx, Random& random) {
  std::sort(idx.begin(), idx.end());
  idx.erase(std::unique(idx.begin(), idx.end()), idx.end());
  SparseVector entries;
  for (const Index i : idx) entries.push_back(i, normal_value(random));
  return entries;
}

// Runs of neighbours with long gaps between them.
inline SparseVector clustered_entries(Range range, Index run, Index gap, Random& random) {
  SparseVector entries;
  for (Index i = range.begin; i < range.end; ++i) {
    if ((i - range.begin) % (run + gap) < run) entries.push_back(i, normal_value(random));
  }
  return entries;
}

inline SparseVector extreme_values() {
  SparseVector entries;
  const float least = 0x1p-149f;
  const float most = 0x1.FFFFFEp127f;
  for (const float v : {0.0f, least, 0x1p-126f, 0x1p-127f, 1.0f, 3e-9f, 0x1.FFFFFEp-1f, most}) {
    entries.push_back(static_cast<Index>(3 * entries.size()), v);
    entries.push_back(static_cast<Index>(3 * entries.size() + 1), -v);
  }
  return entries;
}

inline std::vector<Sample> samples_of_widths(Random& random) {
  std::vector<Sample> samples;
  for (const Index width : {1u, 63u, 64u, 65u, 65535u, 65536u, 65537u}) {
    const Range range{0, width};
    const std::string name = "width " + std::to_string(width);
    samples.push_back({name + ", all", range, random_entries(range, 1.1, random)});
    samples.push_back({name + ", first", range, entries_at({0}, random)});
    samples.push_back({name + ", last", range, entries_at({width - 1}, random)});
    samples.push_back({name + ", ends", range, entries_at({0, width / 2, width - 1}, random)});
    samples.push_back({name + ", 5%", range, random_entries(range, 0.05, random)});
  }
  return samples;
}

inline std::vector<Sample> make_samples() {
  Random random(20240607);
  std::vector<Sample> samples = samples_of_widths(random);
  const Index top = 0xFFFFFFFFu;
  const Range shifted{1000, 51000};
  const Range high{top - 66000, top};
  samples.push_back({"no width", {7, 7}, {}});
  samples.push_back({"no entries", {0, 100}, {}});
  samples.push_back({"2^20, 1%", {0, 1 << 20}, random_entries({0, 1 << 20}, 0.01, random)});
  samples.push_back({"shifted, 30%", shifted, random_entries(shifted, 0.3, random)});
  samples.push_back({"runs", shifted, clustered_entries(shifted, 40, 3000, random)});
  samples.push_back({"one big gap per 512", shifted, clustered_entries(shifted, 512, 9000, random)});
  samples.push_back({"high, 2%", high, random_entries(high, 0.02, random)});
  samples.push_back({"high, last", high, entries_at({top - 1}, random)});
  samples.push_back({"full width", {0, top}, entries_at({0, 1, 77777, 1u << 31, top - 1}, random)});
  samples.push_back({"extreme values", {0, 100}, extreme_values()});
  SparseVector zeros = random_entries({0, 3000}, 0.3, random);
  std::fill(zeros.val.begin(), zeros.val.end(), 0.0f);
  samples.push_back({"only zeros", {0, 3000}, zeros});
  return samples;
}

// The samples that `codec` can hold, in tolerable memory; for `all`, with every index.
inline std::vector<Sample> samples_for(Codec codec) {
  const bool all = codec.index == IndexCoding::all;
  const std::size_t most = all || codec.index == IndexCoding::bitmap ? 1 << 21 : 0xFFFFFFFF;
  std::vector<Sample> samples;
  static const std::vector<Sample> every = make_samples();
  for (Sample sample : every) {
    if (sample.range.width() > most) continue;
    if (all) {
      SparseVector dense;
      std::size_t next = 0;
      for (Index i = sample.range.begin; i < sample.range.end; ++i) {
        const bool has = next < sample.entries.size() && sample.entries.idx[next] == i;
        dense.push_back(i, has ? sample.entries.val[next++] : 0.0f);
      }
      sample.entries = dense;
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

template <class T>
void put(Bytes& frame, std::size_t offset, T value) {
  std::memcpy(frame.data() + offset, &value, sizeof value);
}

// Makes the checksum right again, so that damage gets as far as the decoders: that of a receiver
// who reads these bytes and expects `spec`. Bytes that it cannot even read that far stay as they
// are.
inline void reseal(Bytes& bytes, const FrameSpec& spec) {
  try {
    const Frame frame = read_frame_head(bytes, spec);
    put(bytes, 0, frame_checksum_of(frame, spec.tag));
  } catch (const CommError&) {
  }
}

inline Bytes encoded(Codec codec, Range range, CooView entries, std::uint32_t tag = 0) {
  Bytes out;
  encode_frame({codec, range, tag}, entries, out);
  return out;
}

inline SparseVector decoded(std::span<const std::byte> bytes, const FrameSpec& spec) {
  SparseVector out;
  decode_frame(open_frame(bytes, spec), out);
  return out;
}

}  // namespace oktopk::testing
