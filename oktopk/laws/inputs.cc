// SPDX-License-Identifier: Apache-2.0
#include "oktopk/laws/inputs.h"

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
constexpr Index kBlock = 1U << 20U;  // the random numbers of a large input

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

// out = block, over and over: each time from another place on, with another sign or scale.
void repeat(const std::vector<float>& block, float growth, std::span<float> out) {
  Random places(out.size());
  for (std::size_t begin = 0, turn = 0; begin < out.size(); begin += block.size(), ++turn) {
    const std::size_t start = turn == 0 ? 0 : places.below(block.size());
    const float scale = (turn % 2 == 0 ? 1.0F : -1.0F) * (1 + static_cast<float>(turn) * growth);
    const std::size_t count = std::min(block.size(), out.size() - begin);
    const std::size_t first = std::min(count, block.size() - start);
    const auto at = block.begin() + static_cast<std::ptrdiff_t>(start);
    const auto scaled = [scale](float x) { return scale * x; };
    float* const to = out.data() + begin;
    std::transform(at, at + static_cast<std::ptrdiff_t>(first), to, scaled);
    std::transform(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(count - first), to + first, scaled);
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

float draw_noise(Input kind, Random& random) {
  switch (kind) {
    case Input::laplace:
      return laplace(random);
    case Input::layered:
      return student_t3(random);
    default:
      return static_cast<float>(random.normal());
  }
}

void scale_layers(std::span<float> x, std::uint64_t seed) {
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
        layer + 1 == kLayers ? x.size() : static_cast<std::size_t>(static_cast<double>(x.size()) * before / total);
    const auto scale = static_cast<float>(std::exp(layout.normal()));
    const bool embedding = layer % 8 == 0;  // a few rows of it are hot
    for (std::size_t i = begin; i < end; ++i) {
      const bool hot = embedding && (i / 64) % 32 == 0;
      x[i] *= scale * (hot ? 8.0F : 1.0F);
    }
    begin = end;
  }
}

std::vector<float> make_input(Input kind, Index n, int rank, std::uint64_t step, std::uint64_t seed) {
  Random random(seed, static_cast<std::uint64_t>(rank) + 1000, step);
  std::vector<float> out(n);
  if (kind >= Input::dyadic) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = exact_value(kind, i, n, rank, random);
    return out;
  }
  for (float& x : out) x = draw_noise(kind, random);
  if (kind == Input::layered) scale_layers(out, seed);
  return out;
}

Uninitialised<float> make_large_input(Input kind, Index n, int rank, std::uint64_t step, std::uint64_t seed) {
  const bool has_places = kind == Input::skewed;  // its first sixteenth differs: no repetition
  if (n <= kBlock || has_places) {
    const auto all = make_input(kind, n, rank, step, seed);
    return {all.begin(), all.end()};
  }
  std::vector<float> block(kBlock);
  if (kind == Input::layered) {
    Random random(seed, static_cast<std::uint64_t>(rank) + 1000, step);
    for (float& x : block) x = student_t3(random);
  } else {
    block = make_input(kind, kBlock, rank, step, seed);
  }
  Uninitialised<float> out(n);
  const bool is_dyadic = kind >= Input::dyadic;
  repeat(block, is_dyadic ? 0.0F : 0x1p-12F, out);
  if (kind == Input::layered) scale_layers(out, seed);
  return out;
}

}  // namespace oktopk
