// SPDX-License-Identifier: Apache-2.0
// integer (ours): the selector of preset `slots`. The threshold is the bits of a magnitude, and the counts that it
// yields steer it by the integer rules of sparse/slots_format.h: K1 on a GPU does the same, bit by bit. The first
// selection for a k takes the exact k-th magnitude and all that reach it; later ones take what reaches the threshold,
// however many they are.
// COST: one pass over n, and about 2 ns per entry.
#include <algorithm>
#include <bit>
#include <memory>
#include <vector>

#include "oktopk/select/selector.h"
#include "oktopk/sparse/slots_format.h"

namespace oktopk {
namespace {

using slots::Deal;

class Integer final : public Selector {
 public:
  explicit Integer(int owners) : owners_(static_cast<std::uint32_t>(owners)) {}
  std::string_view name() const override { return "integer"; }

  void save(StateWriter& state) const override { state.put(k_, bound_); }

  void load(StateReader& state) override {
    k_ = state.take<std::uint64_t>();
    bound_ = state.take<std::uint32_t>();
    require(bound_ >= slots::kLeastBound && bound_ < slots::kInfinity, "state: a local threshold with the bits ",
            bound_);
  }

 protected:
  void do_select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) override {
    if (k_ == k) {
      device.accumulate_select(in, std::bit_cast<float>(bound_), out);
    } else {
      if (k == in.acc.size()) device.accumulate(in);
      const float kth = k == in.acc.size() ? 0 : select_for_threshold(device, in, k, out);
      bound_ = std::max(magnitude_bits(kth), slots::kLeastBound);
      k_ = k;
      out.clear();
      device.select_at_least(in.acc, 0, std::bit_cast<float>(bound_), out);
    }
    steer(Deal::of(in.acc.size(), owners_), out);
  }

 private:
  // Blocks of the same number of all owners lie side by side: an owner's block ends where the number changes.
  void steer(const Deal& deal, const SparseVector& selected) {
    std::uint64_t reached[slots::kTail] = {};
    std::uint64_t block = 0;
    in_block_.assign(deal.P, 0);
    for (std::size_t i = 0; i < selected.size(); ++i) {
      const std::uint64_t now = selected.idx[i] / (std::uint64_t{slots::kBlock} * deal.P);
      if (now != block) in_block_.assign(deal.P, 0);
      block = now;
      if (++in_block_[deal.owner(selected.idx[i])] > slots::kMostOfBlock) continue;
      const std::uint32_t sent = slots::float_bits_of(slots::value_of(magnitude_bits(selected.val[i])));
      ++reached[std::max(slots::tail_step(sent, bound_), slots::kStepsDown)];
    }
    for (std::size_t j = slots::kTail - 1; j > 0; --j) reached[j - 1] += reached[j];
    bound_ = slots::steered(bound_, reached, k_);
  }

  std::uint32_t owners_;
  std::uint64_t k_ = 0;  // that the threshold is for; 0: none yet
  std::uint32_t bound_ = slots::kLeastBound;
  std::vector<std::uint32_t> in_block_;  // entries of each owner's block so far
};

}  // namespace

std::unique_ptr<Selector> make_integer(const SelectorOptions& options) { return std::make_unique<Integer>(options.P); }

}  // namespace oktopk
