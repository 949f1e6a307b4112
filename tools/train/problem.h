// SPDX-License-Identifier: Apache-2.0
// The problem that networks learn: samples in memory, one column each, and the batches that ranks draw from them.
// The samples are generated, so that no file is needed: normal inputs whose variance decays from feature to feature,
// and labels drawn from the softmax of a random two-layer network, the teacher. Labels are noisy on purpose: the loss
// has a floor of about 0.3 log(classes), so that relative differences between losses mean something.
#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace oktopk {

using Matrix = Eigen::MatrixXf;  // a column per sample

struct Batch {
  Matrix inputs;
  std::vector<int> labels;  // 0 <= label < classes
  std::size_t size() const { return labels.size(); }
};

struct LearningProblem {
  Batch train, test;
  int classes = 0;
  double floor = 0;  // the mean cross-entropy of the true probabilities on `test`

  int features() const { return static_cast<int>(train.inputs.rows()); }
};

struct TeacherOptions {
  int features = 64;
  int classes = 10;
  int hidden = 32;  // of the teacher
  int train = 262144;
  int test = 8192;
  std::uint64_t seed = 1;
};

// The same for the same options, on every machine. A larger set begins with the smaller one.
LearningProblem make_teacher(const TeacherOptions& options);

// Gathers the given samples. COST: no allocation once `out` has the size.
void take_batch(const Batch& data, std::span<const std::uint32_t> samples, Batch& out);

// The samples of one rank at `step`, drawn with replacement: `count` positions from `first` on of a global batch that
// depends on (total, seed, step) only. So runs with other presets, or with the same global batch on another number of
// ranks, see the same samples.
void draw_samples(std::size_t total, std::uint64_t seed, std::uint64_t step, std::uint64_t first, std::uint64_t count,
                  std::vector<std::uint32_t>& out);

}  // namespace oktopk
