// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/gpu_steps.h"

#include <optional>
#include <utility>
#include <vector>

#include "oktopk/allreduce/parts/slot_messages.h"
#include "oktopk/base/error.h"
#include "oktopk/gpu/cuda_gpu.h"
#include "oktopk/gpu/cuda_slots.h"
#include "oktopk/reduce/reducer_state.h"
#include "oktopk/sparse/slots_format.h"
#include "oktopk/sparse/sum.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

std::span<float> residual_of(ReducerState& state) {
  state.unsent.values();  // entries that are to be cleared are cleared
  return state.unsent.residual().begin({}, 1).acc;
}

std::uint32_t* words_in(const DeviceFloats& memory) { return reinterpret_cast<std::uint32_t*>(memory.get()); }

// CommError when messages made no sense, SumOverflow when a sum overflowed. Waits for the GPU.
OktopkCudaSlotsState checked_state(Reducer& reducer) {
  constexpr std::string_view kFaults[] = {"", "is of another step or of other options", "has wrong counts",
                                          "arrived damaged"};
  ReducerState& state = state_of(reducer);
  const OktopkCudaSlotsState is = state.on_gpu().state();
  if (is.fault == 4) {
    state.unsent.spoil(false);
    fail<SumOverflow>("slots: a sum over the ranks overflowed: scale the gradients down");
  }
  if (is.fault != 0) {
    reducer.fail_external();
    fail<CommError>("slots: a message that this rank received ", kFaults[is.fault]);
  }
  return is;
}

}  // namespace

struct GpuSteps::Memory {
  DeviceFloats messages, arrived, shares;
  std::size_t room = 0;          // words of each of them, for one rank
  DeviceFloats gradient, sum;    // of make_step()
  std::optional<SlotStep> made;  // by make_step(): its messages are still there
  RunScratch runs;
};

struct GpuSteps::Step {
  Gradient gradient;
  float scale;
  CudaSlots::Result result;
  GpuExchange& exchange;
  void* stream;
};

GpuSteps::GpuSteps(Reducer& reducer) : reducer_(reducer), memory_(std::make_unique<Memory>()) {
  const ReducerState& state = state_of(reducer);
  require(state.allreduce->name() == "slots", "steps on the GPU: preset ", state.allreduce->name(),
          ", but only slots makes them");
  require(state.setting.options.device->name() == "cuda", "steps on the GPU: the reducer's device is ",
          state.setting.options.device->name(), ", but it must be cuda");
}

GpuSteps::~GpuSteps() = default;

bool GpuSteps::prepare() {
  reducer_.prepare();
  return !state_of(reducer_).density.is_dense();
}

std::size_t GpuSteps::words() const {
  const ReducerState& state = state_of(reducer_);
  return state.gpu_words(state.density.entries());
}

void GpuSteps::send(Gradient gradient, float scale, std::uint32_t* messages, void* stream) {
  require(k_ == 0, "steps on the GPU: send() again before apply()");
  require(prepare(), "steps on the GPU: this step is a dense one of the warm-up: the reducer makes it");
  queue_send(gradient, scale, messages, stream);
}

void GpuSteps::queue_send(Gradient gradient, float scale, std::uint32_t* messages, void* stream) {
  ReducerState& state = state_of(reducer_);
  const float decay = state.setting.options.decay;
  CudaSlots& kernels = state.on_gpu();
  kernels.check(gradient);  // before anything changes
  if (decay != 1) state.unsent.multiply(decay);
  state.unsent.set_may_exist(true);
  const std::size_t k = state.density.entries();
  kernels.send({residual_of(state), gradient, scale}, k, messages, stream);
  k_ = k;
}

void GpuSteps::own(const std::uint32_t* arrived, std::uint32_t* share, void* stream) {
  require(k_ != 0, "steps on the GPU: own() before send()");
  ReducerState& state = state_of(reducer_);
  CudaSlots& kernels = state.on_gpu();
  kernels.own(state.open_memory().data(), arrived, k_, share, stream);
}

void GpuSteps::apply(const std::uint32_t* shares, const std::uint32_t* messages, void* out, FloatType type,
                     void* stream) {
  require(k_ != 0, "steps on the GPU: apply() before send()");
  ReducerState& state = state_of(reducer_);
  const auto divisor = static_cast<float>(state.setting.divisor);
  state.on_gpu().apply(shares, messages, residual_of(state).data(), k_, {out, type, divisor}, stream);
  state.end_gpu_step(k_);
  k_ = 0;
}

void GpuSteps::step(Gradient gradient, float scale, void* out, FloatType type, GpuExchange& exchange, void* stream) {
  require(prepare(), "steps on the GPU: this step is a dense one of the warm-up: the reducer makes it");
  const auto divisor = static_cast<float>(state_of(reducer_).setting.divisor);
  queue({gradient, scale, {out, type, divisor}, exchange, stream});
  state_of(reducer_).end_gpu_step(std::exchange(k_, 0));
}

void GpuSteps::queue(const Step& step) {
  ReducerState& state = state_of(reducer_);
  GpuExchange& exchange = step.exchange;
  const auto P = static_cast<std::size_t>(state.setting.P);
  const auto rank = static_cast<std::size_t>(state.setting.rank);
  require(exchange.size() == state.setting.P && exchange.rank() == state.setting.rank, "steps on the GPU: rank ",
          exchange.rank(), " of ", exchange.size(), " exchanges, but the reducer is rank ", rank, " of ", P);
  const std::size_t each = words();
  auto& [messages, arrived, shares, room, gradient, sum, made, runs] = *memory_;
  made.reset();
  if (each > room) {
    for (DeviceFloats* memory : {&messages, &arrived, &shares})
      *memory = state.setting.options.device->allocate(P * each);
    room = each;
  }
  queue_send(step.gradient, step.scale, words_in(messages), step.stream);
  std::uint32_t* share = words_in(shares) + rank * each;
  try {
    exchange.check();
    exchange.all_to_all(messages.get(), arrived.get(), each * sizeof(float), step.stream);
    own(words_in(arrived), share, step.stream);
    exchange.all_gather(share, shares.get(), each * sizeof(float), step.stream);
    state.on_gpu().apply(words_in(shares), words_in(messages), residual_of(state).data(), k_, step.result, step.stream);
  } catch (...) {
    k_ = 0;
    reducer_.fail_external();
    throw;
  }
}

void GpuSteps::make_step(Gradient gradient, float scale, GpuExchange& exchange) {
  ReducerState& state = state_of(reducer_);
  const Device& device = *state.setting.options.device;
  const Index n = state.setting.n;
  DeviceFloats& sum = memory_->sum;
  if (!sum) sum = device.allocate(n);
  if (!gpu_of(device)->has(gradient.as<void>())) {
    DeviceFloats& copy = memory_->gradient;
    if (!copy) copy = device.allocate(n);
    std::vector<float> on_host(n, 0.0F);
    for (std::size_t i = 0; i < gradient.size(); ++i) on_host[i] = gradient[i];
    device.write({copy.get(), n}, on_host);
    gradient = Gradient(copy.get(), n, FloatType::fp32);
  }
  state.outcome = {};
  state.outcome.refreshed = state.density.steps() == 0;
  state.selection.clear();
  queue({gradient, scale, {sum.get(), FloatType::fp32, 1}, exchange, nullptr});
  exchange.wait(nullptr);
  const OktopkCudaSlotsState now = checked_state(reducer_);
  device.select_at_least({sum.get(), n}, 0, 0.0F, state.outcome.update);
  const bool is_void = first_nonfinite(state.outcome.update.val) < state.outcome.update.size();
  require(!is_void, "slots: an accumulator overflowed: scale the gradient down");
  state.note_gpu_messages(k_);
  sent_ = now.sent;
  const auto deal = slots::Deal::of(n, static_cast<std::uint32_t>(state.setting.P));
  memory_->made = SlotStep{deal, std::exchange(k_, 0), now.step - 1, state.gpu_tag()};
}

// The messages hold what was sent, with the bits that travelled.
void GpuSteps::fetch_selection() {
  if (!memory_->made) return;
  const SlotStep step = *std::exchange(memory_->made, std::nullopt);
  ReducerState& state = state_of(reducer_);
  std::vector<std::uint32_t> sent(step.deal.P * step.words());
  state.setting.options.device->read(std::span<const float>(memory_->messages.get(), sent.size()), sent.data());
  SparseVector places;
  for (std::uint32_t q = 0; q < step.deal.P; ++q) {
    const std::string wrong = read_slot(step, std::span(sent).subspan(q * step.words(), step.words()), places);
    require(wrong.empty(), "slots: a message of this rank makes no sense: ", wrong);
    for (std::size_t i = 0; i < places.size(); ++i)
      state.selection.push_back(static_cast<Index>(step.deal.index(q, places.idx[i])), places.val[i]);
  }
  make_canonical(state.selection, memory_->runs);
}

GpuReport GpuSteps::report() {
  if (!state_of(reducer_).has_gpu_steps()) return {};
  const OktopkCudaSlotsState is = checked_state(reducer_);
  return {is.void_steps, is.sent, is.applied};
}

}  // namespace oktopk
