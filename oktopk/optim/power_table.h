// SPDX-License-Identifier: Apache-2.0
// 1 - beta^j by j, in double: what is left to know of a moment's age. Grows with the steps made,
// and ends where the power is too small to be seen: some 350 entries for a beta of 0.9, 37,000 for
// 0.999. COST: O(1) per step; after a change of beta, all entries anew.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "oktopk/optim/rule_tables.h"

namespace oktopk {

class PowerTable {
 public:
  // Good until the next call. REQUIRES: beta in [0, 1).
  PowerView up_to(double beta, std::uint32_t exponent) {
    if (beta != beta_) values_.clear();
    beta_ = beta;
    while (values_.size() <= exponent && (values_.empty() || values_.back() < 1))
      values_.push_back(1 - std::pow(beta, static_cast<double>(values_.size())));
    return {values_.data(), static_cast<std::uint32_t>(values_.size())};
  }

 private:
  double beta_ = 0;
  std::vector<double> values_;
};

}  // namespace oktopk
