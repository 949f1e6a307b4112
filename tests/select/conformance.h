// SPDX-License-Identifier: Apache-2.0
// The fixture of what the contract in selector.h promises of every selector, and streams of data.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "oktopk/base/random.h"
#include "oktopk/select/selector.h"

namespace oktopk {

enum class Data { normal, zero, equal, tied, mostly_zero };

inline std::vector<float> make_data(Data data, std::size_t n, std::uint64_t step) {
  Random random(6, step, n);
  std::vector<float> out(n);
  for (float& x : out) {
    const double z = random.normal();
    switch (data) {
      case Data::normal:
        x = static_cast<float>(z);
        break;
      case Data::zero:
        x = 0;
        break;
      case Data::equal:
        x = std::copysign(0.5F, static_cast<float>(z));
        break;
      case Data::tied:
        x = static_cast<float>(std::round(z));
        break;
      case Data::mostly_zero:
        x = random.below(50) == 0 ? static_cast<float>(z) : -0.0F;
        break;
    }
  }
  return out;
}

class SelectorConformance : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Selector> selector_ = make_selector(GetParam(), {.tau_prime = 3, .P = 4});
  SparseVector out_;
};

inline std::vector<std::string> kinds() {
  std::vector<std::string> all;
  for (const SelectorInfo& info : selectors()) all.emplace_back(info.name);
  return all;
}

inline std::string kind_name(const testing::TestParamInfo<std::string>& info) { return info.param; }

}  // namespace oktopk
