// SPDX-License-Identifier: Apache-2.0
// A small reproducible random generator (SplitMix64): the same numbers on every machine, cheap to seed, so that every
// (seed, rank, step) can have a stream of its own.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace oktopk {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  // A stream of its own for each combination.
  Random(std::uint64_t seed, std::uint64_t a, std::uint64_t b = 0)
      : state_(seed * 0x9e3779b97f4a7c15U ^ (a + 1) * 0xbf58476d1ce4e5b9U ^ (b + 1) * 0x94d049bb133111ebU) {
    next();
  }

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }

  // 0 <= result < bound.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }

  // In (0, 1).
  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }

  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  std::uint64_t state_;
};

}  // namespace oktopk
