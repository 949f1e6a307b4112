// SPDX-License-Identifier: Apache-2.0
// One step of AdamW or SGD over many tensors of any floating type, in one call: the host part of the PyTorch
// optimisers. The rules are in adam_rule.h and sgd_rule.h. The caller owns the tensors, their state and the clock.
// Tensors are cut into blocks, which threads share; the number of threads changes no result.
// COST: O(entries that arrive); O(n) in dense steps. Memory: the list of blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/optim/adam_rule.h"
#include "oktopk/optim/sgd_rule.h"

namespace oktopk {

enum class WeightType { fp32, bf16, fp16, fp64 };
inline constexpr std::size_t kWeightTypes = 4;

// A step of Adam, or half of it.
enum class AdamPart { all, moments, move };
inline constexpr std::size_t kAdamParts = 3;

// A parameter, its mean gradient and its state, all in one order. State is in float, or in double for weights in
// double. Pointers that a step does not need are null.
struct TensorState {
  WeightType type = WeightType::fp32;
  std::size_t size = 0;
  void* weights = nullptr;
  const void* mean = nullptr;             // of the weights' type
  void* first = nullptr;                  // Adam's first moment, SGD's velocity
  void* second = nullptr;                 // Adam's second moment
  const void* roots = nullptr;            // AdamPart::move: square roots of the second moment
  std::uint32_t* last = nullptr;          // the step in which a coordinate last arrived
  std::uint32_t* arrivals = nullptr;      // by which steps that aged its second moment
  const std::int64_t* indices = nullptr;  // where the mean arrived; null: everywhere
  std::size_t count = 0;                  // of them
  std::uint32_t steps = 0;                // made by this tensor, this one included
  std::uint32_t caught_up = 0;            // the step up to which all its weights are decayed
  std::uint32_t end = 0;                  // pay_decay(): the step up to which it decays them
};

// The position of the first tensor whose indices do not increase strictly within its size; -1: all do.
std::int64_t find_bad_indices(std::span<const TensorState> tensors);

// Without a clock (last is null) a step is dense, as all steps before it. A caller may then make its two parts, and
// take the roots of the second moments in between.
void adam_step(std::span<const TensorState> tensors, const AdamStep& step, std::size_t threads,
               AdamPart part = AdamPart::all);
void sgd_step(std::span<const TensorState> tensors, const SgdStep& step, std::size_t threads);

// Pays the weight decay that coordinates owe since they last arrived.
void pay_decay(std::span<const TensorState> tensors, const StepTotals* totals, std::size_t threads);

}  // namespace oktopk
