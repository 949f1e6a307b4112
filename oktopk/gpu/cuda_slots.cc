// SPDX-License-Identifier: Apache-2.0
#include "oktopk/gpu/cuda_slots.h"

#include "oktopk/base/error.h"
#include "oktopk/gpu/cuda_gpu.h"

namespace oktopk {

CudaSlots::CudaSlots(const Device& device, std::uint64_t n, int P, std::uint32_t tag) : gpu_(gpu_of(device)), n_(n) {
  gpu_->call(&OktopkCudaApi::slots_open, "slots", n, static_cast<std::uint32_t>(P), tag, &slots_);
}

CudaSlots::~CudaSlots() { gpu_->api().slots_close(gpu_->context(), slots_); }

void CudaSlots::use(void* stream) const { gpu_->call(&OktopkCudaApi::set_stream, "slots", stream); }

void CudaSlots::check(const Gradient& gradient) const {
  require(gradient.size() == n_, "slots on the GPU: a gradient of ", gradient.size(), " values, but n = ", n_);
  require(n_ == 0 || gpu_->has(gradient.as<void>()),
          "slots on the GPU: the gradient lies in host memory, but it must lie on GPU ", gpu_->ordinal());
}

void CudaSlots::send(const Accumulation& in, std::uint64_t k, std::uint32_t* messages, void* stream) {
  check(in.gradient);
  use(stream);
  const OktopkCudaPass pass{.acc = in.acc.data(),
                            .n = n_,
                            .gradient = in.gradient.as<void>(),
                            .gradient_type = static_cast<std::uint32_t>(in.gradient.type()),
                            .scale = in.scale,
                            .cleared = nullptr,
                            .cleared_count = 0};
  gpu_->call(&OktopkCudaApi::slots_send, "slots: send", slots_, &pass, k, messages);
}

void CudaSlots::own(float* memory, const std::uint32_t* arrived, std::uint64_t k, std::uint32_t* share, void* stream) {
  use(stream);
  gpu_->call(&OktopkCudaApi::slots_own, "slots: own", slots_, memory, arrived, k, share);
}

void CudaSlots::apply(const std::uint32_t* shares, const std::uint32_t* sent, float* acc, std::uint64_t k,
                      const Result& result, void* stream) {
  require(n_ == 0 || gpu_->has(result.out), "slots on the GPU: the result lies in host memory, but it must lie on GPU ",
          gpu_->ordinal());
  use(stream);
  gpu_->call(&OktopkCudaApi::slots_apply, "slots: apply", slots_, shares, sent, acc, k, result.divisor, result.out,
             static_cast<std::uint32_t>(result.type));
}

OktopkCudaSlotsState CudaSlots::state() const {
  OktopkCudaSlotsState state{};
  gpu_->call(&OktopkCudaApi::slots_state, "slots: state", slots_, &state);
  return state;
}

void CudaSlots::set_state(const OktopkCudaSlotsState& state) {
  gpu_->call(&OktopkCudaApi::slots_set_state, "slots: state", slots_, &state);
}

}  // namespace oktopk
