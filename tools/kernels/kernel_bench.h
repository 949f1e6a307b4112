// SPDX-License-Identifier: Apache-2.0
// The kernels that `oktopk kernels` times, each beside its limit (limits.h), on one problem. kernel_bench.cc has the
// loop that times a row and the numbers to reach, kernel_rows.cc the rows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "oktopk/base/simd.h"
#include "oktopk/codec/codec.h"
#include "oktopk/device/device.h"
#include "tests/laws/inputs.h"
#include "tools/kernels/limits.h"
#include "tools/kernels/timing.h"

namespace oktopk {

enum class Measure { ratio, nanoseconds, bits };
std::string_view unit_of(Measure measure);  // "x", "ns", "bits"

// A number to reach: at most `most`.
struct Reach {
  Measure measure = Measure::ratio;
  double most = 0;
};

struct KernelRow {
  std::string kernel;
  std::string data;
  SimdLevel simd = SimdLevel::scalar;
  double n = 0;
  double k = 0;
  double bytes = 0;             // that have to be moved
  double entries = 0;           // > 0 where the time per entry is the measure
  double bits = 0;              // > 0: size of the code, per entry
  std::string_view limit = "";  // read, copy, axpy
  std::vector<Reach> reach = {};
  TimedPair times = {};

  double nanoseconds() const { return entries > 0 ? 1e9 * times.kernel.median / entries : 0; }
  double bandwidth() const { return times.kernel.median > 0 ? bytes / times.kernel.median : 0; }  // bytes/s
  double value(Measure measure) const;
  bool meets(const Reach& r) const { return value(r.measure) <= r.most; }
  // "1.10 x ok", "10.1 bits, 0.2 ns over"; empty where nothing is to be reached.
  std::string verdict() const;
};

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
  using Report = std::function<void(const KernelRow&)>;

  // REQUIRES: data outlives it; 1 <= k <= n.
  KernelBench(const KernelData& data, std::size_t k, const Options& options, Report report);

  // All rows, at the SIMD level in use.
  void run();

 private:
  // Times the row unless it is not wanted. `prepare` is not timed.
  void add(KernelRow row, const Body& kernel, const Body& prepare = {});
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
  Report report_;
  std::unique_ptr<Device> device_;
  Limits limits_;
  float threshold_ = 0;          // the k-th magnitude of x
  SparseVector selection_;       // the k largest of x
  SparseVector next_;            // those at the threshold after the gradient
  float sink_ = 0;               // keeps the compiler from leaving a read out
  Uninitialised<float> others_;  // fills the caches
};

}  // namespace oktopk
