// SPDX-License-Identifier: Apache-2.0
// Device "cpu", scalar: the reference for every faster variant. Selections are written through a
// bounded buffer of the output's own memory: grow, fill without branches, shrink.
#include <algorithm>
#include <bit>
#include <cmath>

#include "oktopk/base/error.h"
#include "oktopk/device/device.h"

namespace oktopk {
namespace {

constexpr std::uint32_t kMagnitudeMask = 0x7fffffffU;
constexpr std::uint32_t kInfinityBits = 0x7f800000U;
constexpr int kBinShift = 20;
constexpr std::size_t kTile = 4096;  // how much is scanned between two growths of the output

std::uint32_t magnitude_bits(float x) { return std::bit_cast<std::uint32_t>(x) & kMagnitudeMask; }

// Appends what `value(i)`, i in [0, n), selects; the store is unconditional, the count is not.
template <class Value>
void select_into(std::size_t n, Index base, float threshold, SparseVector& out, Value value) {
  std::size_t count = out.size();
  for (std::size_t tile = 0; tile < n; tile += kTile) {
    const std::size_t end = std::min(n, tile + kTile);
    out.resize(count + (end - tile));
    Index* idx = out.idx.data();
    float* val = out.val.data();
    for (std::size_t i = tile; i < end; ++i) {
      const float x = value(i);
      idx[count] = base + static_cast<Index>(i);
      val[count] = x;
      count += static_cast<std::size_t>((std::fabs(x) >= threshold) & (x != 0.0F));
    }
    out.resize(count);
  }
}

class CpuDevice final : public Device {
 public:
  std::string_view name() const override { return "cpu"; }

  std::size_t first_nonfinite(std::span<const float> x) const override {
    return static_cast<std::size_t>(
        std::find_if(x.begin(), x.end(),
                     [](float v) { return magnitude_bits(v) >= kInfinityBits; }) -
        x.begin());
  }

  void accumulate(std::span<float> acc, std::span<const float> gradient,
                  float scale) const override {
    OKTOPK_DCHECK(acc.size() == gradient.size());
    for (std::size_t i = 0; i < acc.size(); ++i) acc[i] += scale * gradient[i];
  }

  void multiply(std::span<float> x, float factor) const override {
    for (float& v : x) v *= factor;
  }

  void accumulate_select(std::span<float> acc, std::span<const float> gradient, float scale,
                         float threshold, SparseVector& out) const override {
    OKTOPK_DCHECK(acc.size() == gradient.size());
    out.clear();
    select_into(acc.size(), 0, threshold, out,
                [&](std::size_t i) { return acc[i] += scale * gradient[i]; });
  }

  void select_at_least(std::span<const float> x, Index base, float threshold,
                       SparseVector& out) const override {
    select_into(x.size(), base, threshold, out, [&](std::size_t i) { return x[i]; });
  }

  void magnitude_histogram(std::span<const float> x, MagnitudeHistogram& bins) const override {
    std::uint64_t zeros = 0;
    for (const float v : x) {
      ++bins[magnitude_bin(v)];
      zeros += static_cast<std::uint64_t>(v == 0.0F);
    }
    bins[0] -= zeros;
  }

  void sample_magnitudes(std::span<const float> acc, std::span<const float> gradient, float scale,
                         std::size_t offset, std::size_t stride,
                         Uninitialised<float>& out) const override {
    OKTOPK_DCHECK(stride > 0);
    out.clear();
    for (std::size_t i = offset; i < acc.size(); i += stride)
      out.push_back(std::fabs(gradient.empty() ? acc[i] : acc[i] + scale * gradient[i]));
  }

  Moments moments(std::span<const float> x) const override {
    if (x.empty()) return {};
    double sum = 0;
    double squares = 0;
    for (const float v : x) {
      sum += v;
      squares += double{v} * v;
    }
    const auto n = static_cast<double>(x.size());
    const double mean = sum / n;
    return {mean, std::sqrt(std::max(0.0, squares / n - mean * mean))};
  }

  void add_at(std::span<float> x, Index base, CooView v) const override {
    for (std::size_t i = 0; i < v.size(); ++i) x[v.idx[i] - base] += v.val[i];
  }

  void subtract_at(std::span<float> x, Index base, CooView v) const override {
    for (std::size_t i = 0; i < v.size(); ++i) x[v.idx[i] - base] -= v.val[i];
  }

  void clear_at(std::span<float> x, Index base, std::span<const Index> idx) const override {
    for (const Index i : idx) x[i - base] = 0.0F;
  }
};

}  // namespace

std::size_t magnitude_bin(float x) { return magnitude_bits(x) >> kBinShift; }

float magnitude_bin_edge(std::size_t bin) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bin) << kBinShift);
}

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace oktopk
