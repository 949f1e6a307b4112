// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/gpu_steps.h"

#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/gpu/cuda_gpu.h"
#include "oktopk/reduce/gpu_step_maker.h"
#include "oktopk/reduce/reducer_state.h"
#include "oktopk/sparse/slots_format.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

std::size_t message_words_of(const ReducerState& state, std::size_t k) {
  const ReducerSetting& setting = state.setting;
  return slots::message_words(slots::Deal::of(setting.n, static_cast<std::uint32_t>(setting.P)), k);
}

std::span<float> residual_of(ReducerState& state) {
  state.unsent.values();  // entries that are to be cleared are cleared
  return state.unsent.residual().begin({}, 1).acc;
}

// Calls read(state) with what `from` saves.
template <class From, class Read>
void read_saved(const From& from, const Read& read) {
  StateWriter saved;
  from.save(saved);
  const Bytes bytes = saved.seal();
  StateReader state(bytes);
  read(state);
}

template <class Load>
void load_from(const StateWriter& written, const Load& load) {
  const Bytes bytes = written.seal();
  StateReader state(bytes);
  load(state);
}

std::uint32_t* words_in(const DeviceFloats& memory) { return reinterpret_cast<std::uint32_t*>(memory.get()); }

}  // namespace

// ---- ReducerState: thresholds and the number of steps move between host and GPU as saved states do ----

CudaSlots& ReducerState::on_gpu() {
  if (gpu_ == nullptr) {
    const Device& device = *setting.options.device;
    if (allreduce->memory().values.empty()) allreduce->open(device, setting.n, setting.rank, setting.P);
    gpu_ = std::make_unique<CudaSlots>(device, setting.n, setting.P, gpu_tag());
    OktopkCudaSlotsState now{};
    read_saved(*selector, [&](StateReader& state) {
      now.local_k = state.take<std::uint64_t>();
      now.local_bound = state.take<std::uint32_t>();
    });
    read_saved(*allreduce, [&](StateReader& state) {
      now.step = state.take<std::uint64_t>();
      if (now.step == 0) return;
      now.global_k = state.take<std::uint64_t>();
      now.global_bound = state.take<std::uint32_t>();
    });
    gpu_->set_state(now);
  }
  is_gpu_ahead_ = true;
  return *gpu_;
}

void ReducerState::settle_gpu() const {
  if (!is_gpu_ahead_) return;
  is_gpu_ahead_ = false;
  const OktopkCudaSlotsState now = gpu_->state();
  StateWriter local;
  local.put(std::uint64_t{now.local_k}, now.local_bound);
  load_from(local, [&](StateReader& state) { selector->load(state); });
  if (now.step == 0) return;
  StateWriter global;
  global.put(std::uint64_t{now.step}, std::uint64_t{now.global_k}, now.global_bound);
  load_from(global, [&](StateReader& state) { allreduce->load(state, setting.n, setting.rank, setting.P); });
}

void ReducerState::leave_gpu() {
  settle_gpu();
  gpu_.reset();
}

void ReducerState::note_gpu_messages(std::size_t k) {
  const auto peers = static_cast<std::uint64_t>(setting.P - 1);
  log.besides = {2 * peers, 2 * peers * sizeof(std::uint32_t) * message_words_of(*this, k)};
}

// Counts of entries stay on the GPU.
void ReducerState::end_gpu_step(std::size_t k) {
  is_prepared = false;
  selection.clear();
  outcome = {};
  density.count_step();
  note_gpu_messages(k);
  log.last.step = density.steps();
  log.last.k = k;
  log.last.messages = log.besides.messages;
  log.last.wire_bytes = log.besides.bytes;
}

std::uint32_t ReducerState::gpu_tag() const { return static_cast<std::uint32_t>(hash_text(setting.description)); }

// ---- GpuStepMaker ----

GpuStepMaker::GpuStepMaker(Reducer& reducer) : reducer_(reducer) {
  const ReducerState& state = state_of(reducer);
  require(state.allreduce->name() == "slots", "steps on the GPU: preset ", state.allreduce->name(),
          ", but only slots makes them");
  require(state.setting.options.device->name() == "cuda", "steps on the GPU: the reducer's device is ",
          state.setting.options.device->name(), ", but it must be cuda");
}

bool GpuStepMaker::prepare() {
  reducer_.prepare();
  return !state_of(reducer_).density.is_dense();
}

std::size_t GpuStepMaker::words() const {
  const ReducerState& state = state_of(reducer_);
  return message_words_of(state, state.density.entries());
}

void GpuStepMaker::send(Gradient gradient, float scale, std::uint32_t* messages, void* stream) {
  require(k_ == 0, "steps on the GPU: send() again before apply()");
  require(prepare(), "steps on the GPU: this step is a dense one of the warm-up: the reducer makes it");
  queue_send(gradient, scale, messages, stream);
}

void GpuStepMaker::queue_send(Gradient gradient, float scale, std::uint32_t* messages, void* stream) {
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

void GpuStepMaker::own(const std::uint32_t* arrived, std::uint32_t* share, void* stream) {
  require(k_ != 0, "steps on the GPU: own() before send()");
  ReducerState& state = state_of(reducer_);
  auto* memory = const_cast<float*>(state.unsent.memory().values.data());
  state.on_gpu().own(memory, arrived, k_, share, stream);
}

void GpuStepMaker::apply(const std::uint32_t* shares, const std::uint32_t* messages, void* out, FloatType type,
                         void* stream) {
  require(k_ != 0, "steps on the GPU: apply() before send()");
  ReducerState& state = state_of(reducer_);
  const auto divisor = static_cast<float>(state.setting.divisor);
  state.on_gpu().apply(shares, messages, residual_of(state).data(), k_, {out, type, divisor}, stream);
  state.end_gpu_step(k_);
  k_ = 0;
}

void GpuStepMaker::step(Gradient gradient, float scale, void* out, FloatType type, GpuExchange& exchange,
                        void* stream) {
  require(prepare(), "steps on the GPU: this step is a dense one of the warm-up: the reducer makes it");
  const auto divisor = static_cast<float>(state_of(reducer_).setting.divisor);
  queue_step(gradient, scale, {out, type, divisor}, exchange, stream);
  state_of(reducer_).end_gpu_step(std::exchange(k_, 0));
}

void GpuStepMaker::queue_step(Gradient gradient, float scale, const CudaSlots::Result& result, GpuExchange& exchange,
                              void* stream) {
  ReducerState& state = state_of(reducer_);
  const auto P = static_cast<std::size_t>(state.setting.P);
  const auto rank = static_cast<std::size_t>(state.setting.rank);
  require(exchange.size() == state.setting.P && exchange.rank() == state.setting.rank, "steps on the GPU: rank ",
          exchange.rank(), " of ", exchange.size(), " exchanges, but the reducer is rank ", rank, " of ", P);
  const std::size_t each = words();
  made_.reset();
  if (each > room_) {
    for (DeviceFloats* memory : {&messages_, &arrived_, &shares_})
      *memory = state.setting.options.device->allocate(P * each);
    room_ = each;
  }
  queue_send(gradient, scale, words_in(messages_), stream);
  std::uint32_t* share = words_in(shares_) + rank * each;
  try {
    exchange.check();
    exchange.all_to_all(messages_.get(), arrived_.get(), each * sizeof(float), stream);
    own(words_in(arrived_), share, stream);
    exchange.all_gather(share, shares_.get(), each * sizeof(float), stream);
    state.on_gpu().apply(words_in(shares_), words_in(messages_), residual_of(state).data(), k_, result, stream);
  } catch (...) {
    k_ = 0;
    reducer_.fail_external();
    throw;
  }
}

void GpuStepMaker::make_step(Gradient gradient, float scale, GpuExchange& exchange) {
  ReducerState& state = state_of(reducer_);
  const Device& device = *state.setting.options.device;
  const Index n = state.setting.n;
  if (!sum_) sum_ = device.allocate(n);
  if (!gpu_of(device)->has(gradient.as<void>())) {
    if (!gradient_) gradient_ = device.allocate(n);
    std::vector<float> on_host(n, 0.0F);
    for (std::size_t i = 0; i < gradient.size(); ++i) on_host[i] = gradient[i];
    device.write({gradient_.get(), n}, on_host);
    gradient = Gradient(gradient_.get(), n, FloatType::fp32);
  }
  state.outcome = {};
  state.outcome.refreshed = state.density.steps() == 0;
  state.selection.clear();
  queue_step(gradient, scale, {sum_.get(), FloatType::fp32, 1}, exchange, nullptr);
  exchange.wait(nullptr);
  const OktopkCudaSlotsState now = checked_state();
  device.select_at_least({sum_.get(), n}, 0, 0.0F, state.outcome.update);
  const bool is_void = first_nonfinite(state.outcome.update.val) < state.outcome.update.size();
  require(!is_void, "slots: an accumulator overflowed: scale the gradient down");
  state.note_gpu_messages(k_);
  sent_ = now.sent;
  const auto deal = slots::Deal::of(n, static_cast<std::uint32_t>(state.setting.P));
  made_ = SlotStep{deal, std::exchange(k_, 0), now.step - 1, state.gpu_tag()};
}

// The messages hold what was sent, with the bits that travelled.
void GpuStepMaker::fetch_selection() {
  if (!made_) return;
  const SlotStep step = *std::exchange(made_, std::nullopt);
  ReducerState& state = state_of(reducer_);
  std::vector<std::uint32_t> sent(step.deal.P * step.words());
  state.setting.options.device->read(std::span<const float>(messages_.get(), sent.size()), sent.data());
  SparseVector places;
  for (std::uint32_t q = 0; q < step.deal.P; ++q) {
    const std::string wrong = read_slot(step, std::span(sent).subspan(q * step.words(), step.words()), places);
    require(wrong.empty(), "slots: a message of this rank makes no sense: ", wrong);
    for (std::size_t i = 0; i < places.size(); ++i)
      state.selection.push_back(static_cast<Index>(step.deal.index(q, places.idx[i])), places.val[i]);
  }
  make_canonical(state.selection, runs_);
}

OktopkCudaSlotsState GpuStepMaker::checked_state() {
  constexpr std::string_view kFaults[] = {"", "is of another step or of other options", "has wrong counts",
                                          "arrived damaged"};
  ReducerState& state = state_of(reducer_);
  const OktopkCudaSlotsState is = state.on_gpu().state();
  if (is.fault == 4) {
    state.unsent.spoil(false);
    fail<SumOverflow>("slots: a sum over the ranks overflowed: scale the gradients down");
  }
  if (is.fault != 0) {
    reducer_.fail_external();
    fail<CommError>("slots: a message that this rank received ", kFaults[is.fault]);
  }
  return is;
}

GpuReport GpuStepMaker::report() {
  if (!state_of(reducer_).has_gpu_steps()) return {};
  const OktopkCudaSlotsState is = checked_state();
  return {is.void_steps, is.sent, is.applied};
}

// ---- GpuSteps ----

GpuSteps::GpuSteps(Reducer& reducer) : maker_(std::make_unique<GpuStepMaker>(reducer)) {}
GpuSteps::~GpuSteps() = default;
bool GpuSteps::prepare() { return maker_->prepare(); }
std::size_t GpuSteps::words() const { return maker_->words(); }
void GpuSteps::send(Gradient gradient, float scale, std::uint32_t* messages, void* stream) {
  maker_->send(gradient, scale, messages, stream);
}
void GpuSteps::own(const std::uint32_t* arrived, std::uint32_t* share, void* stream) {
  maker_->own(arrived, share, stream);
}
void GpuSteps::apply(const std::uint32_t* shares, const std::uint32_t* messages, void* out, FloatType type,
                     void* stream) {
  maker_->apply(shares, messages, out, type, stream);
}
void GpuSteps::step(Gradient gradient, float scale, void* out, FloatType type, GpuExchange& exchange, void* stream) {
  maker_->step(gradient, scale, out, type, exchange, stream);
}
GpuReport GpuSteps::report() { return maker_->report(); }

}  // namespace oktopk
