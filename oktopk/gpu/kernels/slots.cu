// SPDX-License-Identifier: Apache-2.0
// Preset `slots` on the GPU: a whole step without a word from the host (docs/algorithms/slots.md; the format and the
// integer rules are in sparse/slots_format.h; allreduce/slots.cc is the same on the host, bit by bit).
//   send   K1, one pass over n: acc += scale * gradient; entries that reach the local threshold leave the accumulator,
//          which keeps their rounding errors, and go to the message of their owner.
//   own    K2, one pass over the owner's n/P places: adds the P messages in rank order, takes what reaches the global
//          threshold, and writes it to this owner's share.
//   apply  K3, one pass over n: writes the mean of the step, zeros included.
// The caller moves the messages in between: all P messages to their owners, then all shares to everybody. K1 and K2
// write the entries of each block to a list of its own; a plan per message then says which entries fit, and a copy puts
// them there. An entry that does not fit goes back. A rank that meets a value that is not finite says so in its heads:
// then nobody adds, everybody takes back what it sent, and the result is NaN, as it is for dense sums.
//
// COST: 12 B per element of n (K1), 8 B per place (K2), 4 B per element (K3); about 12 B per entry of each message.
#include "oktopk/gpu/kernels/slots.cuh"

namespace oktopk::cuda {
namespace {

using namespace oktopk::slots;

__global__ void set_bound(const SelectionState* found, std::uint32_t* bound) { *bound = max(found->kth, kLeastBound); }

// The first threshold for this k: the k-th magnitude, by three rounds over x.
void find_bound(OktopkCudaContext& context, const float* x, std::uint64_t n, std::uint64_t k, std::uint32_t* bound) {
  const SelectionState* found = find_kth_of(context, x, static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(k));
  set_bound<<<1, 1, 0, context.stream>>>(found, bound);
  check_launch("set_bound");
}

void clear_tail(OktopkCudaContext& context, const OktopkCudaSlots& slots) {
  OKTOPK_CUDA(cudaMemsetAsync(slots.state()->tail, 0, kTail * sizeof(std::uint32_t), context.stream));
}

void own(OktopkCudaContext& context, OktopkCudaSlots& slots, const Messages& in, const Lists& list, std::uint64_t k) {
  slots.was_first = slots.global_k != k;
  if (!slots.was_first) return run_own(context, slots, OwnPass::both, in, list);
  slots.global_k = k;
  run_own(context, slots, OwnPass::adds_only, in, list);
  find_bound(context, slots.memory, slots.deal.places(), divide_up(k, slots.deal.P), &slots.state()->global_bound);
  run_own(context, slots, OwnPass::takes_only, in, list);
}

}  // namespace

std::unique_ptr<OktopkCudaSlots> slots_open(OktopkCudaContext& context, std::uint64_t n, std::uint32_t P,
                                            std::uint32_t tag) {
  auto slots = std::make_unique<OktopkCudaSlots>();
  slots->deal = Deal::of(n, P);
  const Deal& deal = slots->deal;
  const std::size_t blocks = std::size_t{P} * deal.blocks;
  slots->lists.at_least<std::uint32_t>(blocks * kMostOfBlock);
  slots->list_counts.at_least<std::uint16_t>(blocks);
  slots->sent_starts.at_least<std::uint32_t>(blocks);
  slots->starts.at_least<std::uint32_t>(blocks);
  slots->checks.at_least<std::uint32_t>(P);
  const std::size_t published = std::size_t{P} * kOrderThreads * sizeof(unsigned long long);
  OKTOPK_CUDA(cudaMemsetAsync(slots->published.at_least<std::byte>(published), 0, published, context.stream));
  auto* state = slots->state_memory.at_least<SlotsState>(1);
  OKTOPK_CUDA(cudaMemsetAsync(state, 0, sizeof(SlotsState), context.stream));
  OKTOPK_CUDA(cudaMemcpyAsync(&state->tag, &tag, sizeof(tag), cudaMemcpyHostToDevice, context.stream));
  synchronise(context);
  return slots;
}

void slots_send(OktopkCudaContext& context, OktopkCudaSlots& slots, const OktopkCudaPass& pass, std::uint64_t k,
                std::uint32_t* words) {
  const Deal& deal = slots.deal;
  SlotsState* state = slots.state();
  const Messages out = messages(deal, words, k);
  const Lists list{slots.lists.get<std::uint32_t>(), slots.list_counts.get<std::uint16_t>(),
                   slots.sent_starts.get<std::uint32_t>()};
  begin_timing(context);
  clear_tail(context, slots);
  OktopkCudaPass todo = pass;
  if (slots.local_k != k) {
    run_send(context, slots, {pass, true}, list);
    find_bound(context, pass.acc, deal.n, k, &state->local_bound);
    todo.gradient = nullptr;
    slots.local_k = k;
  }
  run_send(context, slots, {todo, false}, list);
  fill_messages(context, slots, kFillMessages, deal.P, deal, &state->local_bound, list, out, pass.acc);
  end_messages(context, slots, k, out);
  end_timing(context);
}

void slots_own(OktopkCudaContext& context, OktopkCudaSlots& slots, float* memory, const std::uint32_t* arrived,
               std::uint64_t k, std::uint32_t* share) {
  slots.memory = memory;
  const Deal& deal = slots.deal;
  SlotsState* state = slots.state();
  const Messages in = messages(deal, arrived, k);
  const Messages out = messages(deal, share, k);
  const Lists list{slots.lists.get<std::uint32_t>(), slots.list_counts.get<std::uint16_t>(),
                   slots.starts.get<std::uint32_t>()};
  begin_timing(context);
  clear_tail(context, slots);
  start_messages(context, slots, kStartMessages, in);
  own(context, slots, in, list, k);
  fill_messages(context, slots, kFillShare, 1, Deal::of(deal.places(), 1), &state->global_bound, list, out, memory);
  end_share(context, slots, in, out);
  end_timing(context);
}

void slots_apply(OktopkCudaContext& context, OktopkCudaSlots& slots, const std::uint32_t* shares,
                 const std::uint32_t* sent, float* acc, std::uint64_t k, float divisor, void* out, std::uint32_t type) {
  const Messages in = messages(slots.deal, shares, k);
  begin_timing(context);
  start_messages(context, slots, kStartShares, in);
  run_apply(context, slots, in, divisor, out, type);
  end_step(context, slots, k, in, messages(slots.deal, sent, k), acc);
  end_timing(context);
}

}  // namespace oktopk::cuda
