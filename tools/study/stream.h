// SPDX-License-Identifier: Apache-2.0
// Gradients as training makes them, generated: a signal that all ranks share and that turns slowly, plus noise of each
// rank's own, so that supports overlap in part. Both have the scale of `layered` (tests/laws/inputs.h): layers of
// different size and scale, hot rows, Student t3 noise.
//   calm   stationary
//   rough  two learning-rate drops (x0.1), single steps that are x10, a slow drift of the scale, and two moments at
//          which all scales move to other places
// The same for the same (options, rank, step), in any order.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "oktopk/sparse/coo.h"

namespace oktopk {

struct SourceOptions {
  std::string data;  // calm, rough, identical, or an input of tests/laws/inputs.h
  Index n = 0;
  int steps = 200;  // of the whole run: the events of rough stand at fixed shares of it
  std::uint64_t seed = 1;
};

class Stream {
 public:
  // calm or rough. `common`: share of the variance that is the ranks' common signal.
  explicit Stream(const SourceOptions& options, double common = 0.5);

  void gradient(int rank, int step, std::vector<float>& out);

  double scale(int step) const;   // learning rate, spikes and drift
  int pattern(int step) const;    // the layout of the scales: 0, 1, 2
  bool is_spike(int step) const;  // x10 in this step only

 private:
  const std::vector<float>& key(std::size_t slot, int number, int pattern);
  std::uint64_t seed_of(int pattern) const;

  struct Key {
    std::pair<int, int> name{-1, -1};  // number, pattern
    std::vector<float> values;
  };

  SourceOptions options_;
  double common_;
  Key keys_[2];
};

// One rank's gradients, step by step.
using Source = std::function<void(int step, std::vector<float>& out)>;

// UsageError lists the names that exist.
void check_source(const std::string& data);
Source make_source(const SourceOptions& options, int rank);

}  // namespace oktopk
