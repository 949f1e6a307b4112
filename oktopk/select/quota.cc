// SPDX-License-Identifier: Apache-2.0
// quota: exact top-k inside each of P equal regions, k/P each (TopKA2A, SparDL). Balanced by construction, at the price
// of weak entries from cold regions and missed ones from hot regions. If P does not divide k, the regions that get one
// entry more (or any at all, if k < P) rotate with the steps.
#include <limits>
#include <memory>

#include "oktopk/select/selector.h"
#include "oktopk/sparse/cuts.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

class Quota final : public Selector {
 public:
  explicit Quota(int P) : P_(P) {}
  std::string_view name() const override { return "quota"; }
  void save(StateWriter& state) const override { state.put(std::uint64_t{step_}); }
  void load(StateReader& state) override { step_ = state.take<std::uint64_t>(); }

 protected:
  void do_select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) override {
    const auto n = static_cast<Index>(in.acc.size());
    if (cuts_.empty() || cuts_.back() != n) cuts_ = equal_cuts(n, P_);
    const auto P = static_cast<std::size_t>(P_);
    // Regions without a turn are not looked at, so this pass must find what is not finite.
    device.accumulate_select(in, std::numeric_limits<float>::max(), out);
    if (first_nonfinite(out.val) < out.size()) return;
    out.clear();
    for (std::size_t r = 0; r < P; ++r) {
      const std::size_t turn = (r + step_) % P;
      const std::size_t quota = (turn + 1) * k / P - turn * k / P;
      const Range range = region(cuts_, static_cast<int>(r));
      if (quota == 0 || range.width() == 0) continue;
      select_exact(device, {.acc = in.acc.subspan(range.begin, range.width())}, quota, region_);
      for (Index& i : region_.idx) i += range.begin;
      out.append(region_);
    }
    ++step_;
  }

 private:
  int P_;
  Cuts cuts_;
  std::size_t step_ = 0;
  SparseVector region_;
};

}  // namespace

std::unique_ptr<Selector> make_quota(const SelectorOptions& options) { return std::make_unique<Quota>(options.P); }

}  // namespace oktopk
