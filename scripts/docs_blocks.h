// SPDX-License-Identifier: Apache-2.0
// The names that C++ blocks of the docs use without declaring them (docs_blocks.py). OKTOPK_NAMES declares them in a
// function, so that a block, one scope deeper, may declare its own.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "oktopk/oktopk.h"

using namespace oktopk;  // NOLINT: some pages leave the namespace out

struct Names {
  Communicator& comm;
  ElasticWorld& world;
  Reducer& reducer;
  SparseSGD& optimiser;
  ReducerOptions options;
};

void compute(std::size_t tensor, std::span<float> gradient);
void compute_gradient(std::span<const float> weights, std::span<float> gradient);
std::span<const float> gradient_of(std::uint64_t step);
float schedule(int step);
bool all_ranks_agree();
Bytes save_weights();
void load_weights(std::span<const std::byte> state);
void report(const MembershipChange& change);

#define OKTOPK_NAMES                                             \
  auto& [comm, world, reducer, optimiser, options] = names;      \
  constexpr std::uint64_t n = 1000;                              \
  const int steps = 100, step = 1, rank = 0, P = 2;              \
  const float learning_rate = 0.1F;                              \
  const std::size_t tensors = 3;                                 \
  const std::vector<std::size_t> tensor_sizes = {300, 300, 400}; \
  const std::string secret = "0123456789abcdef";                 \
  std::vector<float> weights(n), gradient(n);
