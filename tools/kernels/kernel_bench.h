// SPDX-License-Identifier: Apache-2.0
// The kernels that `oktopk kernels` times, on one problem. kernel_bench.cc makes the data, the
// other files hold the rows: elements (passes over n), sparse (over k entries), codecs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "oktopk/codec/codec.h"
#include "oktopk/device/device.h"
#include "oktopk/select/selector.h"
#include "tests/laws/inputs.h"
#include "tools/kernels/kernel_row.h"
#include "tools/kernels/limits.h"

namespace oktopk {

// Values of n elements, and a gradient that leads from them to others of the same distribution, so
// that x += gradient, x -= gradient in turns keeps its shape.
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
  using Report = std::function<void(const KernelRow&)>;

  // REQUIRES: data outlives it; 1 <= k <= n.
  KernelBench(const KernelData& data, std::size_t k, const Options& options, Report report);

  // All rows, at the SIMD level in use.
  void run();

 private:
  void time(KernelRow row, const Body& kernel, const Body& limit, const Body& prepare = {});
  // prepare, then a look at so much other memory that caches hold nothing else.
  void empty_caches(const Body& prepare);
  // The limit is a copy of as many bytes as the row says.
  void time_beside_copy(KernelRow row, const Body& kernel, const Body& prepare = {});

  // elements.cc
  void scan();
  void fused(const std::string& type, Gradient gradient, std::vector<Reach> reach);
  void exact();
  void passes();
  void selector(const SelectorInfo& info);
  void baselines();
  // sparse.cc
  void reduce(int P, std::vector<Reach> reach);
  void trim();
  void dense_mean();
  // codecs.cc
  void index_coding(IndexCoding coding, const CodingInfo& info);
  void value_coding(ValueCoding coding, const CodingInfo& info);
  void frame(const std::string& codec);

  bool wants(const std::string& kernel) const;
  // The numbers to reach hold for large n: few entries, seen again and again, are known by heart to
  // caches and branch predictors. Some hold at a density of 1%.
  bool is_large() const { return data_.n >= 1U << 24U; }
  bool is_one_percent() const;

  static constexpr double kCold = 1 << 25;                      // bytes
  static constexpr std::size_t kOthers = std::size_t{1} << 25;  // floats

  const KernelData& data_;
  std::size_t k_;
  Options options_;
  Report report_;
  std::unique_ptr<Device> device_;
  Limits limits_;
  float threshold_ = 0;          // the k-th magnitude of x
  SparseVector selection_;       // the k largest of x
  SparseVector next_;            // those at the threshold after the gradient
  float sink_ = 0;               // keeps the compiler from leaving a read out
  Uninitialised<float> others_;  // what empty_caches() looks at
};

}  // namespace oktopk
