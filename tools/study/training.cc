// SPDX-License-Identifier: Apache-2.0
#include "tools/study/training.h"

#include <memory>

#include "oktopk/base/error.h"
#include "tools/train/network.h"
#include "tools/train/teacher.h"

namespace oktopk {
namespace {

constexpr int kSamplesPerRank = 16;
constexpr std::uint64_t kFewest = 512;  // weights: below that there is no network to speak of

std::uint64_t weights_of(std::uint64_t hidden, std::uint64_t features, std::uint64_t classes) {
  const std::uint64_t half = hidden / 2;
  return (features + 1) * hidden + (hidden + 1) * half + (half + 1) * classes;
}

}  // namespace

Training::Training(Index most, std::uint64_t seed)
    : seed_(seed), problem_(make_teacher({.train = 16384, .test = 256, .seed = seed})) {
  require(most >= kFewest, "n = ", most, ", but training needs at least ", kFewest, " weights");
  const auto features = static_cast<std::uint64_t>(problem_.train.shape.features());
  const auto classes = static_cast<std::uint64_t>(problem_.train.classes);
  std::uint64_t hidden = 2;
  while (weights_of(hidden + 2, features, classes) <= most) hidden += 2;
  network_ = "mlp:" + std::to_string(hidden) + "," + std::to_string(hidden / 2);
}

std::vector<float> Training::weights() const {
  const auto network = make_network(network_, problem_.train.shape, problem_.train.classes);
  std::vector<float> weights(network->parameters());
  network->initialise(weights, seed_);
  return weights;
}

TrainingSource Training::source(int rank) const {
  struct Mine {
    std::unique_ptr<Network> network;
    std::vector<std::uint32_t> samples;
    Batch batch;
  };
  const auto mine = std::make_shared<Mine>();
  mine->network = make_network(network_, problem_.train.shape, problem_.train.classes);
  return [this, mine, rank](int step, std::span<const float> weights, std::span<float> gradient) {
    draw_samples(problem_.train.size(), seed_, static_cast<std::uint64_t>(step), rank, kSamplesPerRank, mine->samples);
    take_batch(problem_.train, mine->samples, mine->batch);
    return mine->network->gradient(weights, mine->batch, gradient);
  };
}

}  // namespace oktopk
