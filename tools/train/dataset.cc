// SPDX-License-Identifier: Apache-2.0
#include "tools/train/dataset.h"

#include <limits>

#include "oktopk/base/error.h"
#include "oktopk/base/random.h"

namespace oktopk {
namespace {

constexpr std::uint64_t kSampling = 0x73616d706c657321U;  // keeps this use of a seed from others

}  // namespace

void take_batch(const Dataset& data, std::span<const std::uint32_t> samples, Batch& out) {
  out.inputs.resize(data.inputs.rows(), static_cast<Eigen::Index>(samples.size()));
  out.labels.resize(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    require(samples[i] < data.size(), "sample ", samples[i], " of ", data.size());
    out.inputs.col(static_cast<Eigen::Index>(i)) = data.inputs.col(samples[i]);
    out.labels[i] = data.labels[samples[i]];
  }
}

void draw_samples(std::size_t dataset_size, std::uint64_t seed, std::uint64_t step, int rank, int per_rank,
                  std::vector<std::uint32_t>& out) {
  require(dataset_size >= 1 && dataset_size <= std::numeric_limits<std::uint32_t>::max(), "dataset of ", dataset_size,
          " samples: must be 1 to 2^32 - 1");
  require(rank >= 0 && per_rank >= 1, "rank ", rank, " with ", per_rank,
          " samples: rank must be at least 0, samples at least 1");
  const auto count = static_cast<std::uint64_t>(per_rank);
  const std::uint64_t first = static_cast<std::uint64_t>(rank) * count;
  out.resize(count);
  for (std::uint64_t i = 0; i < count; ++i)
    out[i] = static_cast<std::uint32_t>(Random(seed ^ kSampling, step, first + i).below(dataset_size));
}

}  // namespace oktopk
