// SPDX-License-Identifier: Apache-2.0
// The kernels that `oktopk-lab kernels` times, each beside its limit (limits.h), on one problem. kernel_bench.cc has
// the loop that times a row and the numbers to reach, kernel_rows.cc the rows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lab/kernels/kernel_row.h"
#include "lab/kernels/limits.h"
#include "lab/kernels/timing.h"
#include "oktopk/device/device.h"
#include "oktopk/laws/inputs.h"

namespace oktopk {

// Values of n elements, and a gradient that leads from them to others of the same distribution, so that
// x += gradient, x -= gradient in turns keeps its shape.
struct KernelData {
  KernelData(const InputInfo& input, Index n, std::uint64_t seed);

  std::string name;
  Index n;
  Uninitialised<float> x;
  Uninitialised<float> gradient;
  Uninitialised<Bf16> bf16;  // the gradient, rounded towards zero
  Uninitialised<Fp16> fp16;
};

class KernelBench {
 public:
  struct Options {
    int repetitions = 21;
    int threads = 1;
    std::string only;        // kernels whose name contains this
    bool baselines = false;  // also what the standard library offers
  };
  // REQUIRES: data outlives it; 1 <= k <= n.
  KernelBench(const KernelData& data, std::size_t k, const Options& options, RowReport report);

  // All rows, at the SIMD level in use.
  void run();

 private:
  // Times the row unless it is not wanted. `prepare` is not timed.
  void add(const KernelRow& row, const Body& kernel, const Body& prepare = {});
  Body make_limit(const KernelRow& row);

  // kernel_rows.cc
  void add_passes();
  void add_selectors();
  void add_baselines();
  void add_sparse();
  void add_codings();
  void add_frames();

  const KernelData& data_;
  std::size_t k_;
  Options options_;
  RowReport report_;
  std::unique_ptr<Device> device_;
  Limits limits_;
  float threshold_ = 0;          // the k-th magnitude of x
  SparseVector selection_;       // the k largest of x
  SparseVector next_;            // those at the threshold after the gradient
  float sink_ = 0;               // keeps the compiler from leaving a read out
  Uninitialised<float> others_;  // fills the caches
};

}  // namespace oktopk
