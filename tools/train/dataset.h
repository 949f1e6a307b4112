// SPDX-License-Identifier: Apache-2.0
// What a network learns from: labelled samples in memory, one column each, and the batches that are
// drawn from them. Where in the flow: draw_samples -> take_batch -> Network::gradient -> reduction.
// Invariant: inputs has shape.features() rows and labels.size() columns; 0 <= label < classes.
#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace oktopk {

using Matrix = Eigen::MatrixXf;  // a column per sample

// Of one sample; a flat vector is {n, 1, 1}. In a column, channel after channel, row after row.
struct Shape {
  int channels = 1;
  int height = 1;
  int width = 1;
  int pixels() const { return height * width; }
  int features() const { return channels * pixels(); }
  friend bool operator==(const Shape&, const Shape&) = default;
};

struct Dataset {
  Shape shape;
  int classes = 0;
  Matrix inputs;  // features x samples
  std::vector<int> labels;
  std::size_t size() const { return labels.size(); }
};

struct LearningProblem {
  std::string name;
  Dataset train;
  Dataset test;
  // The mean cross-entropy on `test` of the true probabilities, below which nothing honest gets;
  // 0 where it is not known.
  double floor = 0;
};

struct Batch {
  Matrix inputs;
  std::vector<int> labels;
};

// Gathers the given samples. REQUIRES: each < data.size(). COST: no allocation once `out` has the
// size.
void take_batch(const Dataset& data, std::span<const std::uint32_t> samples, Batch& out);

// The samples of `rank` at `step`, drawn with replacement: positions rank * per_rank and following
// of a global batch that depends on (dataset_size, seed, step) only. So runs with other algorithms,
// or with the same global batch on another number of ranks, see the same samples.
void draw_samples(std::size_t dataset_size, std::uint64_t seed, std::uint64_t step, int rank, int per_rank,
                  std::vector<std::uint32_t>& out);

}  // namespace oktopk
