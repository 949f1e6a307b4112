// SPDX-License-Identifier: Apache-2.0
// The maker of steps that stay on the GPU (gpu_steps.h says what its calls do), for GpuSteps and for a Reducer with
// options.exchange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "oktopk/allreduce/parts/slot_messages.h"
#include "oktopk/comm/gpu_exchange.h"
#include "oktopk/gpu/cuda_slots.h"
#include "oktopk/reduce/gpu_steps.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/sparse/sum.h"

namespace oktopk {

class GpuStepMaker {
 public:
  // As in GpuSteps.
  explicit GpuStepMaker(Reducer& reducer);
  bool prepare();
  std::size_t words() const;
  void send(Gradient gradient, float scale, std::uint32_t* messages, void* stream);
  void own(const std::uint32_t* arrived, std::uint32_t* share, void* stream);
  void apply(const std::uint32_t* shares, const std::uint32_t* messages, void* out, FloatType type, void* stream);
  void step(Gradient gradient, float scale, void* out, FloatType type, GpuExchange& exchange, void* stream);
  GpuReport report();

  // For Reducer::step(): the gradient may lie in host memory, and the reducer gets the sum.
  void make_step(Gradient gradient, float scale, GpuExchange& exchange);
  // After make_step(): the entries that this rank sent, and their number, which is known without them.
  void fetch_selection();
  std::uint64_t sent() const { return sent_; }

 private:
  void queue_send(Gradient gradient, float scale, std::uint32_t* messages, void* stream);
  void queue_step(Gradient gradient, float scale, const CudaSlots::Result& result, GpuExchange& exchange, void* stream);
  OktopkCudaSlotsState checked_state();

  Reducer& reducer_;
  std::size_t k_ = 0;  // of the step that has begun; 0: none has
  DeviceFloats messages_, arrived_, shares_;
  std::size_t room_ = 0;          // words of each of them, for one rank
  DeviceFloats gradient_, sum_;   // of make_step()
  std::optional<SlotStep> made_;  // by make_step(): its messages are still there
  std::uint64_t sent_ = 0;
  RunScratch runs_;
};

}  // namespace oktopk
