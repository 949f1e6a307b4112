// SPDX-License-Identifier: Apache-2.0
// controlled (ours, the default): one fused pass with a threshold theta that is steered by the counts it yields. Aims
// at 1.1k and trims to exactly k.
//   * Newton step in log-log: theta *= exp(0.4 * H * ln(count/aim)), with H the mean of ln(|v|/theta) over some
//     selected entries (Hill's estimator of the tail's slope).
//   * Before the pass a sample checks theta. If it is far off (a spike, a drop of the learning rate), the sample's
//     quantile replaces it.
//   * A pass that still yields fewer than 2k/3 is repeated once with a lower theta, then made exactly.
// The state is three numbers. The first selection is exact.
#include <algorithm>
#include <cmath>
#include <memory>

#include "oktopk/select/sample.h"
#include "oktopk/select/selector.h"
#include "oktopk/sparse/tail.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

constexpr double kAim = 1.1;          // of k
constexpr double kGain = 0.4;         // of the Newton step
constexpr double kMaxLogRatio = 1.5;  // clamp of ln(count/aim)
constexpr double kSmoothing = 0.2;    // of the slope
constexpr double kSampleHits = 200;   // expected entries above the threshold in the sample
constexpr double kSampleTolerance = 0.25;
constexpr double kSampleDeviations = 3;
constexpr double kTooFew = 0.67;  // of k: repeat the pass

class Controlled final : public Selector {
 public:
  std::string_view name() const override { return "controlled"; }

  void save(StateWriter& state) const override { state.put(threshold_, slope_, std::uint64_t{offset_}); }

  void load(StateReader& state) override {
    threshold_ = state.take_finite<float>("the local threshold", 0);
    slope_ = state.take_finite<double>("the slope of the magnitudes");
    offset_ = state.take<std::uint64_t>();
  }

 protected:
  void do_select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) override {
    const double aim = std::min(kAim * static_cast<double>(k), static_cast<double>(in.acc.size()));
    const double least = kTooFew * static_cast<double>(k);
    if (threshold_ <= 0) return restart(device, in, k, out);
    check_by_sample(device, in, aim);
    device.accumulate_select(in, threshold_, out);
    if (static_cast<double>(out.size()) < least) {
      const double ratio = std::max(1.0, static_cast<double>(out.size())) / aim;
      threshold_ *= static_cast<float>(std::exp(std::max(slope_, 0.05) * std::log(ratio)));
      out.clear();
      device.select_at_least(in.acc, 0, threshold_, out);
      if (static_cast<double>(out.size()) < least) return restart(device, {.acc = in.acc}, k, out);
    }
    steer(out, aim);
    keep_largest(out, k);
  }

 private:
  void restart(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) {
    const auto wanted = static_cast<std::size_t>(std::ceil(kAim * static_cast<double>(k)));
    const std::size_t aim = std::min(in.acc.size(), wanted);
    threshold_ = select_for_threshold(device, in, aim, out);
    slope_ = threshold_ > 0 ? tail_slope(out.val, threshold_) : 0.0;
    keep_largest(out, k);
  }

  void check_by_sample(const Device& device, const Accumulation& in, double aim) {
    const auto n = static_cast<double>(in.acc.size());
    const double clusters = kSampleHits * n / (aim * MagnitudeSample::kCluster);
    sample_.draw(device, in, static_cast<std::size_t>(clusters), offset_++);
    if (sample_.size() == 0) return;
    const double expected = sample_.share(aim);
    const auto hits = static_cast<double>(sample_.count_at_least(threshold_));
    const double deviation = std::fabs(std::log(std::max(hits, 0.5) / expected));
    const double sigma = std::max(1 / std::sqrt(expected), sample_.uncertainty(threshold_) / std::max(hits, 1.0));
    if (deviation <= std::max(kSampleDeviations * sigma, kSampleTolerance)) return;
    const float quantile = sample_.largest(static_cast<std::size_t>(expected));
    if (quantile > 0) threshold_ = quantile;
  }

  void steer(const SparseVector& selected, double aim) {
    slope_ += kSmoothing * (tail_slope(selected.val, threshold_) - slope_);
    const double ratio = std::log(std::max(1.0, static_cast<double>(selected.size())) / aim);
    threshold_ *= static_cast<float>(std::exp(kGain * slope_ * std::clamp(ratio, -kMaxLogRatio, kMaxLogRatio)));
  }

  float threshold_ = 0;  // 0: not known yet
  double slope_ = 0;     // H, smoothed
  std::size_t offset_ = 0;
  MagnitudeSample sample_;
};

}  // namespace

std::unique_ptr<Selector> make_controlled(const SelectorOptions& /*options*/) { return std::make_unique<Controlled>(); }

}  // namespace oktopk
