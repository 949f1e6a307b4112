// SPDX-License-Identifier: Apache-2.0
// reused: Ok-Topk's threshold reuse (paper section 3.2): the exact k-th magnitude every tau' steps, reused as a
// threshold in between. Cheap, because the threshold is known before the pass; the count drifts away from k while
// gradients change (docs/algorithms/oktopk.md). follows_counts adds what the authors' released code does for
// VGG-16: 1.2% up or down after a count above 5k/4 or below 2k/3, and up to five times 3% up in a step that selects
// more than 4k/3. Fewer than k non-zero values give no threshold: the next step evaluates again.
#include <memory>

#include "oktopk/base/error.h"
#include "oktopk/select/selector.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

class Reused final : public Selector {
 public:
  Reused(int tau_prime, bool follows_counts) : tau_prime_(tau_prime), follows_counts_(follows_counts) {
    require(tau_prime >= 1, "reused selector: tau' = ", tau_prime, ", but it must be at least 1");
  }
  std::string_view name() const override { return "reused"; }

  void save(StateWriter& state) const override { state.put(step_, std::uint64_t{k_}, threshold_); }

  void load(StateReader& state) override {
    step_ = state.take<int>();
    k_ = state.take<std::uint64_t>();
    threshold_ = state.take_finite<float>("the local threshold", 0);
  }

 protected:
  void do_select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) override {
    const bool evaluate = step_ == 0 || k != k_ || threshold_ == 0;
    step_ = (step_ + 1) % tau_prime_;
    k_ = k;
    if (evaluate) {
      threshold_ = select_for_threshold(device, in, k, out);
    } else {
      device.accumulate_select(in, threshold_, out);
      if (follows_counts_) follow(out, k);
    }
  }

 private:
  void follow(SparseVector& out, std::size_t k) {
    constexpr float kStep = 1.012F;
    constexpr float kGuard = 1.03F;
    constexpr int kGuards = 5;
    if (3 * out.size() < 2 * k) threshold_ /= kStep;
    if (4 * out.size() > 5 * k) threshold_ *= kStep;
    for (int i = 0; i < kGuards && 3 * out.size() > 4 * k; ++i) {
      threshold_ *= kGuard;
      keep_at_least(out, threshold_);
    }
  }

  int tau_prime_;
  bool follows_counts_;
  int step_ = 0;
  std::size_t k_ = 0;    // of the last step: another k needs another threshold
  float threshold_ = 0;  // 0: not known
};

}  // namespace

std::unique_ptr<Selector> make_reused(const SelectorOptions& options) {
  return std::make_unique<Reused>(options.tau_prime, options.follows_counts);
}

}  // namespace oktopk
