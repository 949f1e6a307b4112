// SPDX-License-Identifier: Apache-2.0
// Exact top-k inside each of P equal regions, k/P each (TopKA2A, SparDL): balanced by construction,
// at the price of weak entries from cold regions and missed ones from hot regions. When P does not
// divide k, the regions that get one entry more (or any at all, if k < P) rotate with the steps.
#pragma once

#include "oktopk/select/selector.h"
#include "oktopk/sparse/cuts.h"

namespace oktopk {

class QuotaSelector final : public Selector {
 public:
  explicit QuotaSelector(int P) : P_(P) {}
  std::string_view name() const override { return "quota"; }
  void save(StateWriter& state) const override { state.put(std::uint64_t{step_}); }
  void load(StateReader& state) override { step_ = state.take<std::uint64_t>(); }

 protected:
  void do_select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) override;

 private:
  int P_;
  Cuts cuts_;
  std::size_t step_ = 0;
  SparseVector region_;
};

}  // namespace oktopk
