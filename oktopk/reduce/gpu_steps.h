// SPDX-License-Identifier: Apache-2.0
// Steps that stay on the GPU, for a Reducer with preset slots and a CUDA device. The host only queues kernels: it waits
// for nothing, and learns no counts. A step is send(), the messages to their owners, own(), the shares to all ranks,
// and apply(). step() makes all of it with a GpuExchange; other callers move the messages themselves, as a framework
// does with its own collectives. Results and states have the bits of the same steps on the host.
//
// The Reducer's other calls may come between two steps: its residual, owner memory, schedules and saved states are the
// same. Values that are not finite: if a rank brings one, the step is void on all ranks. Its result is NaN everywhere,
// as of a dense sum; nothing is sent, and gradients stay in the residuals, without the elements that were not finite.
// NanPolicy is not used.
// COST: 16 B of GPU memory traffic per element and 8 B per element of owner memory; no wait for the GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "oktopk/base/gradient.h"
#include "oktopk/comm/gpu_exchange.h"

namespace oktopk {

class Reducer;

struct GpuReport {
  std::uint64_t void_steps = 0;  // steps that a value that is not finite made void
  std::uint64_t sent = 0;        // entries of this rank in the last step
  std::uint64_t applied = 0;     // entries of its result
};

class GpuSteps {
 public:
  // REQUIRES: the reducer outlives the object. UsageError unless its preset is slots and its device is a CUDA device.
  explicit GpuSteps(Reducer& reducer);
  ~GpuSteps();

  // Collective in the first call: the ranks compare their options. False: the next step belongs to a dense stage of
  // the warm-up, and the Reducer makes it.
  bool prepare();
  // 32-bit words of each message and share of the next step.
  std::size_t words() const;

  // scale * gradient is added to the residual. `messages`: room for P messages, one behind the other.
  void send(Gradient gradient, float scale, std::uint32_t* messages, void* stream);
  // `arrived`: the P messages for this rank, in rank order.
  void own(const std::uint32_t* arrived, std::uint32_t* share, void* stream);
  // `shares`: of all ranks, in rank order; `messages`: those that send() wrote. `out` gets the mean over the ranks, all
  // n values.
  void apply(const std::uint32_t* shares, const std::uint32_t* messages, void* out, FloatType type, void* stream);

  // A whole step; collective. After a CommError the reducer's unsent values are lost.
  void step(Gradient gradient, float scale, void* out, FloatType type, GpuExchange& exchange, void* stream);

  // Waits for the GPU. CommError when messages made no sense, SumOverflow when a sum overflowed: no step can follow.
  GpuReport report();

 private:
  friend class Reducer;  // with options.exchange
  struct Memory;         // of the GPU
  struct Step;

  // For Reducer::step(): the gradient may lie in host memory, and the reducer gets the sum.
  void make_step(Gradient gradient, float scale, GpuExchange& exchange);
  // After make_step(): the entries that this rank sent, and their number, which is known without them.
  void fetch_selection();
  std::uint64_t sent() const { return sent_; }

  void queue_send(Gradient gradient, float scale, std::uint32_t* messages, void* stream);
  void queue(const Step& step);

  Reducer& reducer_;
  std::size_t k_ = 0;  // of the step that has begun; 0: none has
  std::unique_ptr<Memory> memory_;
  std::uint64_t sent_ = 0;  // by make_step()
};

}  // namespace oktopk
