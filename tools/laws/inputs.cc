// SPDX-License-Identifier: Apache-2.0
#include "tools/laws/inputs.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "oktopk/base/find_row.h"
#include "oktopk/base/random.h"

namespace oktopk {
namespace {

constexpr std::array<InputInfo, 9> kInputs = {{
    {Input::gaussian, "gaussian", "independent normal values"},
    {Input::laplace, "laplace", "independent, heavier tails"},
    {Input::layered, "layered", "40 layers of lognormal size and scale, t3 noise, hot rows"},
    {Input::dyadic, "dyadic", "multiples of 2^-10: sums are exact"},
    {Input::skewed, "skewed", "dyadic, nearly all mass in the first sixteenth"},
    {Input::tied, "tied", "dyadic, three distinct magnitudes"},
    {Input::equal, "equal", "dyadic, one magnitude everywhere"},
    {Input::zero, "zero", "all zero"},
    {Input::lonely, "lonely", "dyadic, only rank 0 has anything"},
}};

constexpr float kUnit = 0x1p-10F;

float dyadic(Random& random) {
  const double x = std::clamp(std::round(random.normal() * 100), -511.0, 511.0);
  return static_cast<float>(x) * kUnit;
}

float laplace(Random& random) {
  const double u = random.uniform() - 0.5;
  return static_cast<float>(std::copysign(std::log(1 - 2 * std::fabs(u)), u));
}

float student_t3(Random& random) {
  double squares = 0;
  for (int i = 0; i < 3; ++i) {
    const double x = random.normal();
    squares += x * x;
  }
  return static_cast<float>(random.normal() / std::sqrt(squares / 3));
}

// The scale of each index is common to all ranks and steps; only the noise differs.
void layered(std::vector<float>& out, Random& noise, std::uint64_t seed) {
  constexpr std::size_t kLayers = 40;
  Random layout(seed, 40);
  std::array<double, kLayers> weight{};
  double total = 0;
  for (double& w : weight) total += w = std::exp(1.5 * layout.normal());
  std::size_t begin = 0;
  double before = 0;
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    before += weight[layer];
    const auto end =
        layer + 1 == kLayers
            ? out.size()
            : static_cast<std::size_t>(static_cast<double>(out.size()) * before / total);
    const auto scale = static_cast<float>(std::exp(layout.normal()));
    const bool embedding = layer % 8 == 0;  // a few rows of it are hot
    for (std::size_t i = begin; i < end; ++i) {
      const bool hot = embedding && (i / 64) % 32 == 0;
      out[i] = scale * (hot ? 8.0F : 1.0F) * student_t3(noise);
    }
    begin = end;
  }
}

float exact_value(Input kind, std::size_t i, std::size_t n, int rank, Random& random) {
  const float x = dyadic(random);
  switch (kind) {
    case Input::skewed:
      return i * 16 < n ? x : (random.below(64) == 0 ? kUnit : 0.0F);
    case Input::tied:
      return static_cast<float>(1U << (2 * random.below(3))) * std::copysign(kUnit, x);
    case Input::equal:
      return 64 * std::copysign(kUnit, x);
    case Input::zero:
      return 0.0F;
    case Input::lonely:
      return rank == 0 ? x : 0.0F;
    default:
      return x;
  }
}

}  // namespace

std::span<const InputInfo> inputs() { return kInputs; }

Input find_input(std::string_view name) { return find_row(kInputs, "data", name).kind; }

std::vector<float> make_input(Input kind, Index n, int rank, std::uint64_t step,
                              std::uint64_t seed) {
  Random random(seed, static_cast<std::uint64_t>(rank) + 1000, step);
  std::vector<float> out(n);
  switch (kind) {
    case Input::gaussian:
      for (float& x : out) x = static_cast<float>(random.normal());
      break;
    case Input::laplace:
      for (float& x : out) x = laplace(random);
      break;
    case Input::layered:
      layered(out, random, seed);
      break;
    default:
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = exact_value(kind, i, n, rank, random);
  }
  return out;
}

}  // namespace oktopk
