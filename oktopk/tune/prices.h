// SPDX-License-Identifier: Apache-2.0
// Parts of profiles that only this folder uses.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oktopk/tune/profile.h"

namespace oktopk {

struct NamedPrice {
  std::string_view name;
  double Machine::*price;
};
// In the order of saved states.
inline constexpr std::array<NamedPrice, 7> kMachinePrices = {{{"alpha", &Machine::alpha},
                                                              {"beta", &Machine::beta},
                                                              {"gamma", &Machine::gamma},
                                                              {"overhead", &Machine::overhead},
                                                              {"contention", &Machine::contention},
                                                              {"delta", &Machine::delta},
                                                              {"sigma", &Machine::sigma}}};

std::string read_text(const std::string& file);  // UsageError says why it cannot be read

double median(std::vector<double> values);  // 0 if there are none
// The median of the slopes between all pairs of points (Theil and Sen): any one of five points may be arbitrarily
// wrong. REQUIRES: as many y as x, no two x equal.
double median_slope(std::span<const double> x, std::span<const double> y);

}  // namespace oktopk
