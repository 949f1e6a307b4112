// SPDX-License-Identifier: Apache-2.0
// The results of all ranks of a job, outside of the simulated network: updates by step, states by step and rank. It
// checks agreement when a rank posts a step, and mass at the end.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/reduce/synchroniser.h"
#include "tests/faults/plan.h"
#include "oktopk/laws/inputs.h"

namespace oktopk::faults {

class Board {
 public:
  using Failure = std::function<void(std::string)>;
  Board(const Plan& plan, Failure failure) : plan_(plan), failure_(std::move(failure)) {}

  // Step number plan.steps is the flush.
  void post(int rank, std::uint64_t step, const Update& update) {
    std::vector<float> mean(plan_.n, 0.0F);
    update.for_each([&](Index i, float value) { mean[i] = value; });
    const auto [at, is_new] = updates_.try_emplace(step, mean);
    for (Index i = 0; i < plan_.n && !is_new; ++i) {
      if (std::bit_cast<std::uint32_t>(mean[i]) == std::bit_cast<std::uint32_t>(at->second[i])) continue;
      return failure_(text_of("agreement: step ", step, ", index ", i, ": rank ", rank, " has ", mean[i],
                              ", before it was ", at->second[i]));
    }
  }

  void save(int rank, std::uint64_t step, Bytes state) {
    auto& states = states_[step];
    states.resize(static_cast<std::size_t>(plan_.P));
    states[static_cast<std::size_t>(rank)] = std::move(state);
  }
  // The newest step that all ranks saved; 0: none.
  std::uint64_t saved_step() const {
    std::uint64_t newest = 0;
    for (const auto& [step, states] : states_) {
      bool is_complete = true;
      for (const Bytes& state : states) is_complete = is_complete && !state.empty();
      if (is_complete) newest = step;
    }
    return newest;
  }
  const Bytes& state(std::uint64_t step, int rank) const { return states_.at(step)[static_cast<std::size_t>(rank)]; }

  std::uint64_t hash() const {
    std::uint64_t hash = 0;
    for (const auto& [step, mean] : updates_) hash = hash_bytes(std::as_bytes(std::span(mean)), hash + step);
    return hash;
  }

  // Inputs are multiples of 2^-10, and so are the sums; a mean's rounding error is far below that, times P.
  void check_mass() const {
    const auto units = [](double value) { return std::llround(value * 1024); };
    std::vector<long long> given(plan_.n), applied(plan_.n);
    for (std::uint64_t step = 0; step < plan_.steps; ++step)
      for (int rank = 0; rank < plan_.P; ++rank) {
        const std::vector<float> gradient = make_input(plan_.input, plan_.n, rank, step, plan_.seed);
        for (Index i = 0; i < plan_.n; ++i) given[i] += units(gradient[i]);
      }
    std::vector<double> sum(plan_.n);
    for (const auto& [step, mean] : updates_)
      for (Index i = 0; i < plan_.n; ++i) {
        applied[i] += units(static_cast<double>(mean[i]) * plan_.P);
        sum[i] += static_cast<double>(mean[i]) * plan_.P;
      }
    for (Index i = 0; i < plan_.n; ++i) {
      const double off = plan_.is_exact() ? static_cast<double>(given[i] != applied[i])
                                          : std::abs(sum[i] - static_cast<double>(given[i]) / 1024);
      if (off > (plan_.is_exact() ? 0 : 1e-3))
        return failure_(
            text_of("mass: index ", i, ": given ", static_cast<double>(given[i]) / 1024, ", applied ", sum[i]));
    }
  }

 private:
  const Plan& plan_;
  Failure failure_;
  std::map<std::uint64_t, std::vector<float>> updates_;
  std::map<std::uint64_t, std::vector<Bytes>> states_;
};

}  // namespace oktopk::faults
