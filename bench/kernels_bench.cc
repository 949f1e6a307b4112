// SPDX-License-Identifier: Apache-2.0
// The kernels of a step at every SIMD level, for a few sizes and densities: scan, fused accumulate
// and select, exact top-k, selectors, sum, trim. Small sizes, so that a run takes seconds; `oktopk
// kernels` has the large ones, beside their limits. Names: kernel/level/n/density in per mille.
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "oktopk/base/simd.h"
#include "oktopk/select/selector.h"
#include "oktopk/sparse/sum.h"
#include "oktopk/sparse/top.h"

namespace {

using namespace oktopk;

struct Problem {
  explicit Problem(const benchmark::State& state)
      : x(static_cast<std::size_t>(state.range(0))), gradient(x.size()), device(make_cpu_device()) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& v : x) v = normal(random);
    for (std::size_t i = 0; i < x.size(); ++i) gradient[i] = normal(random) - x[i];
    k = x.size() * static_cast<std::size_t>(state.range(1)) / 1000;
    threshold = kth_magnitude(x, k);
    device->select_at_least(x, 0, threshold, selection);
  }

  // Added in one call and taken away in the next, so that values keep their size.
  Accumulation next() {
    sign = -sign;
    return {x, gradient, sign};
  }

  Uninitialised<float> x, gradient;
  std::unique_ptr<Device> device;
  std::size_t k = 0;
  float threshold = 0;
  float sign = -1;
  SparseVector selection, out;
};

void report_bytes(benchmark::State& state, double bytes) {
  state.counters["bytes/s"] = benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
}

void report_entries(benchmark::State& state, std::size_t entries) {
  using benchmark::Counter;
  // Inverted rates print as seconds: "1.5n" is 1.5 nanoseconds.
  state.counters["s/entry"] =
      Counter(static_cast<double>(entries), Counter::kIsIterationInvariantRate | Counter::kInvert);
}

void scan(benchmark::State& state, SimdLevel level) {
  const SimdLimit limit(level);
  Problem p(state);
  for (auto _ : state) {
    p.out.clear();
    p.device->select_at_least(p.x, 0, p.threshold, p.out);
  }
  report_bytes(state, 4 * static_cast<double>(p.x.size()));
}

void fused(benchmark::State& state, SimdLevel level) {
  const SimdLimit limit(level);
  Problem p(state);
  for (auto _ : state) p.device->accumulate_select(p.next(), p.threshold, p.out);
  report_bytes(state, 12 * static_cast<double>(p.x.size()));
}

void exact(benchmark::State& state, SimdLevel level) {
  const SimdLimit limit(level);
  Problem p(state);
  for (auto _ : state) select_exact(*p.device, {.acc = p.x}, p.k, p.out);
  report_bytes(state, 4 * static_cast<double>(p.x.size()));
}

void select(benchmark::State& state, SimdLevel level, SelectorKind kind) {
  const SimdLimit limit(level);
  Problem p(state);
  const auto selector = make_selector(kind, {.P = 4});
  for (auto _ : state) selector->select(*p.device, p.next(), p.k, p.out);
  report_bytes(state, 12 * static_cast<double>(p.x.size()));
}

// P regions of the selection, added up as if they were the same one.
void add_up(benchmark::State& state, SimdLevel level, std::size_t P) {
  const SimdLimit limit(level);
  Problem p(state);
  const auto width = static_cast<Index>(p.x.size() / P);
  std::vector<SparseVector> parts(P);
  for (std::size_t r = 0; r < P; ++r) {
    const auto begin = static_cast<Index>(r * width);
    parts[r].append(part(p.selection, {begin, begin + width}));
    for (Index& i : parts[r].idx) i -= begin;
  }
  const std::vector<CooView> views(parts.begin(), parts.end());
  for (auto _ : state) sum(views, {0, width}, p.out);
  report_entries(state, p.selection.size());
}

void trim(benchmark::State& state, SimdLevel level) {
  const SimdLimit limit(level);
  Problem p(state);
  for (auto _ : state) {
    state.PauseTiming();
    p.out.clear();
    p.out.append(p.selection);
    state.ResumeTiming();
    keep_largest(p.out, p.k - p.k / 10);
  }
  report_entries(state, p.selection.size());
}

template <class Function, class... Arguments>
void add(const std::string& name, SimdLevel level, Function function, Arguments... arguments) {
  const std::string title = name + '/' + std::string(to_string(level));
  benchmark::RegisterBenchmark(title.c_str(), function, level, arguments...)
      ->ArgsProduct({{1 << 16, 1 << 20}, {1, 10}})
      ->MinTime(0.05)
      ->Unit(benchmark::kMicrosecond);
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const SimdLevel level : simd_levels()) {
    add("scan", level, scan);
    add("fused", level, fused);
    add("exact", level, exact);
    for (const SelectorInfo& info : selectors()) add("selector_" + std::string(info.name), level, select, info.kind);
    for (const std::size_t P : {2, 4, 16}) add("sum_" + std::to_string(P), level, add_up, P);
    add("trim", level, trim);
  }
  return true;
}();

}  // namespace
