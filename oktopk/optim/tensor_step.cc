// SPDX-License-Identifier: Apache-2.0
#include "oktopk/optim/tensor_step.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "oktopk/base/simd.h"
#include "oktopk/optim/tensor_kernels.h"

namespace oktopk {
namespace {

constexpr std::size_t kBlockSize = 1U << 14U;     // coordinates, or indices of those that arrive
constexpr std::size_t kThreadsWorth = 1U << 17U;  // coordinates that make up for a thread's start

// Runs the kernel that pick(TensorKernels) names over all blocks, each on the next free thread. Threads live for one
// call: their start is cheap beside the work that they are started for. Every level above scalar has FMA (base/simd.h).
template <class Pick, class Step>
void run(const Pick& pick, std::span<const TensorState> tensors, const Step& step, std::size_t threads) {
  std::vector<std::pair<const TensorState*, Block>> all;
  std::size_t total = 0;
  for (const TensorState& tensor : tensors) {
    const std::size_t size = tensor.indices == nullptr ? tensor.size : tensor.count;
    for (std::size_t begin = 0; begin < size; begin += kBlockSize)
      all.emplace_back(&tensor, Block{begin, std::min(begin + kBlockSize, size)});
    total += size;
  }
  const TensorKernels* kernels = simd_level() == SimdLevel::scalar ? kTensorKernels : tensor_kernels_avx2();
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < all.size(); i = next++) {
      const auto& [tensor, block] = all[i];
      pick(kernels[static_cast<std::size_t>(tensor->type)])(*tensor, step, block);
    }
  };
  std::vector<std::jthread> helpers;
  const std::size_t wanted = std::min(threads, total / kThreadsWorth);
  try {
    while (helpers.size() + 1 < wanted) helpers.emplace_back(work);
  } catch (const std::system_error&) {  // no more threads to be had: the started ones do the work
  }
  work();
}

}  // namespace

std::int64_t find_bad_indices(std::span<const TensorState> tensors) {
  const auto is_good = [](const TensorState& tensor) {
    const std::span indices(tensor.indices, tensor.count);
    return indices.empty() || (indices.front() >= 0 && indices.back() < static_cast<std::int64_t>(tensor.size) &&
                               std::ranges::adjacent_find(indices, std::greater_equal()) == indices.end());
  };
  const auto bad = std::ranges::find_if_not(tensors, is_good);
  return bad == tensors.end() ? -1 : bad - tensors.begin();
}

void adam_step(std::span<const TensorState> tensors, const AdamStep& step, std::size_t threads, AdamPart part) {
  run([part](const TensorKernels& k) { return k.adam[static_cast<std::size_t>(part)]; }, tensors, step, threads);
}

void sgd_step(std::span<const TensorState> tensors, const SgdStep& step, std::size_t threads) {
  run([](const TensorKernels& k) { return k.sgd; }, tensors, step, threads);
}

void pay_decay(std::span<const TensorState> tensors, const StepTotals* totals, std::size_t threads) {
  run([](const TensorKernels& k) { return k.pay_decay; }, tensors, totals, threads);
}

}  // namespace oktopk
