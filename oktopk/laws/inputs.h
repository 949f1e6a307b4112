// SPDX-License-Identifier: Apache-2.0
// Generated gradients for benches and laws: the same for the same (kind, n, rank, step, seed).
// The first three look like gradients; the others are dyadic (multiples of 2^-10 below 1/2), so that sums are exact in
// any order and laws can be checked to the last bit.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "oktopk/base/random.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

enum class Input {
  gaussian,  // independent normal values
  laplace,   // independent, heavier tails
  layered,   // 40 layers of lognormal size and scale, Student t3 noise, hot rows: as in real models
  dyadic,    // random, spread evenly
  skewed,    // nearly all of the mass in the first sixteenth of the indices
  tied,      // three distinct magnitudes only
  equal,     // one magnitude, everywhere
  zero,      // nothing at all
  lonely,    // only rank 0 has anything
};

struct InputInfo {
  Input kind;
  std::string_view name;
  std::string_view summary;
};
std::span<const InputInfo> inputs();
Input find_input(std::string_view name);

std::vector<float> make_input(Input kind, Index n, int rank, std::uint64_t step, std::uint64_t seed);

// One value of the noise in gaussian, laplace and layered. REQUIRES: kind is one of these three.
float draw_noise(Input kind, Random& random);

// Multiplies x by the scale of each index of `layered`, which is the same on all ranks and in all steps.
void scale_layers(std::span<float> x, std::uint64_t seed);

// For kernel benches: in huge pages. Beyond 2^20 elements the same random numbers repeat with another sign, another
// start and (unless dyadic) a scale that differs by 2^-12, so that 2^24 elements take a tenth of a second. Smaller
// inputs are those of make_input.
Uninitialised<float> make_large_input(Input kind, Index n, int rank, std::uint64_t step, std::uint64_t seed);

}  // namespace oktopk
