// SPDX-License-Identifier: Apache-2.0
// Parts of profiles that only this folder uses: the names of prices, files, and the two halves of calibrate(): timed
// rounds of messages, and timed kernels of a step. docs/tuning.md has a table of how each price is measured.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oktopk/tune/profile.h"

namespace oktopk {

// In the order of saved states.
struct NamedPrice {
  std::string_view name;
  double Machine::*price;
  double least = 0;
};
inline constexpr std::array<NamedPrice, 7> kMachinePrices = {{{"alpha", &Machine::alpha},
                                                              {"beta", &Machine::beta},
                                                              {"gamma", &Machine::gamma},
                                                              {"overhead", &Machine::overhead},
                                                              {"contention", &Machine::contention, 1},
                                                              {"delta", &Machine::delta},
                                                              {"sigma", &Machine::sigma}}};

std::string read_text(const std::string& file);  // UsageError says why it cannot be read

// `machine` with the prices of a network in place of its own: alpha, beta, overhead and contention, equal on all ranks
// of `all`. The network is free where no part has two ranks. Collective over `all`, which agrees on times and on
// numbers of rounds; the rounds themselves are among `part`, all parts at once. COST: about `budget` seconds, 2 MiB.
Machine measure_network(Communicator& all, Communicator& part, const Clock& now, double budget, Machine machine = {});

// Sets the prices of the processor in `profile`: gamma, delta, sigma and the prices of codings, while all ranks compute
// at once. Collective; equal on all ranks. COST: about `budget` seconds, and as long again to fill 2 * options.values
// floats.
void measure_kernels(Communicator& comm, const Clock& now, double budget, const CalibrateOptions& options,
                     Profile& profile);

double median(std::vector<double> values);  // 0 if there are none
// The median of the slopes between all pairs of points (Theil and Sen): any one of five points may be arbitrarily
// wrong. REQUIRES: as many y as x, no two x equal.
double median_slope(std::span<const double> x, std::span<const double> y);

}  // namespace oktopk
