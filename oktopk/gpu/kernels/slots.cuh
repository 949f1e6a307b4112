// SPDX-License-Identifier: Apache-2.0
// The state of preset `slots` on the GPU, between its kernels and between steps, and the parts of a step. Included by
// .cu files only.
#pragma once

#include "oktopk/gpu/kernels/context.cuh"
#include "oktopk/sparse/slots_format.h"

namespace oktopk::cuda {

// In GPU memory: no step needs the host to know it.
struct SlotsState {
  std::uint64_t step;
  std::uint32_t tag;
  std::uint32_t local_bound;
  std::uint32_t global_bound;
  std::uint32_t bad;      // in this step a rank met a value that is not finite
  std::uint32_t was_bad;  // so many steps were void
  std::uint32_t wrong;    // a SlotsFault that was found, ever
  std::uint32_t sent;     // entries of this rank in its last messages, and of the last step's result
  std::uint32_t applied;
  std::uint32_t tail[slots::kTail];
};

constexpr unsigned kOrderThreads =
    512;  // of the kernels that put a message in order; at most so many blocks of threads

enum SlotsFault : std::uint32_t { kNoFault, kWrongTag, kWrongCount, kWrongCheck, kSumOverflow };

// Kernels that are launched in a step, for their stamps.
enum Phase : std::uint32_t { kFillMessages, kStartMessages, kFillShare, kStartShares };

// One message, or P of them one behind the other.
struct Messages {
  std::uint32_t* words;
  std::uint32_t stride;  // words per message
  std::uint32_t counts;  // words of counts
  std::uint32_t room;    // entries

  __device__ std::uint32_t* of(std::uint32_t q) const { return words + std::size_t{stride} * q; }
  __device__ slots::Head* head(std::uint32_t q) const { return reinterpret_cast<slots::Head*>(of(q)); }
  __device__ std::uint16_t* count(std::uint32_t q) const {
    return reinterpret_cast<std::uint16_t*>(of(q) + slots::kHeadWords);
  }
  __device__ std::uint32_t* entries(std::uint32_t q) const { return of(q) + slots::kHeadWords + counts; }
};

// Entries of a pass before they go to their message: those of block b of message q begin at
// (q * blocks + b) * kMostOfBlock.
struct Lists {
  std::uint32_t* entries;
  std::uint16_t* counts;
  std::uint32_t* starts;  // where the block begins in its message
};

}  // namespace oktopk::cuda

struct OktopkCudaSlots {
  oktopk::slots::Deal deal;
  std::uint64_t local_k = 0;  // the k that the thresholds are for; another one needs new thresholds
  std::uint64_t global_k = 0;
  bool was_first = false;  // the global threshold of this step is each owner's own
  oktopk::cuda::Scratch state_memory;
  float* memory = nullptr;            // of the owner, by places; the caller's
  oktopk::cuda::Scratch lists;        // entries of a pass, block by block
  oktopk::cuda::Scratch list_counts;  // of each block
  oktopk::cuda::Scratch sent_starts;  // of each block in its message
  oktopk::cuda::Scratch starts;
  oktopk::cuda::Scratch checks;     // of what arrived: P parts, of which only the sum counts
  oktopk::cuda::Scratch published;  // sums of the blocks of threads that put a message in order

  oktopk::cuda::SlotsState* state() const { return state_memory.get<oktopk::cuda::SlotsState>(); }
};

namespace oktopk::cuda {

__device__ inline float value_in(std::uint32_t entry) { return __uint_as_float(slots::value_bits_of(entry)); }

// slots_passes.cu: the passes over n and over the owner's places.
struct SendPass {
  const OktopkCudaPass& pass;
  bool adds_only;
};
void run_send(OktopkCudaContext& context, const OktopkCudaSlots& slots, const SendPass& send, const Lists& out);
enum class OwnPass { both, adds_only, takes_only };
void run_own(OktopkCudaContext& context, const OktopkCudaSlots& slots, OwnPass what, const Messages& in,
             const Lists& out);
void run_apply(OktopkCudaContext& context, const OktopkCudaSlots& slots, const Messages& in, float divisor, void* out,
               std::uint32_t type);

// slots_messages.cu: from lists to messages and back, and what the heads say.
Messages messages(const slots::Deal& deal, const std::uint32_t* words, std::uint64_t k);
// Fills `count` messages from the lists; what does not fit goes back to `from`, which is laid out as `home` says.
void fill_messages(OktopkCudaContext& context, const OktopkCudaSlots& slots, Phase phase, std::uint32_t count,
                   const slots::Deal& home, const std::uint32_t* bound, const Lists& list, const Messages& out,
                   float* from);
// Finds the begin of each block in all P messages, and marks messages that make no sense.
void start_messages(OktopkCudaContext& context, const OktopkCudaSlots& slots, Phase phase, const Messages& in);
// Complete the heads and steer the thresholds.
void end_messages(OktopkCudaContext& context, const OktopkCudaSlots& slots, std::uint64_t k, const Messages& out);
void end_share(OktopkCudaContext& context, const OktopkCudaSlots& slots, const Messages& arrived, const Messages& out);
// Takes back what was sent if the step is void, and ends the step.
void end_step(OktopkCudaContext& context, const OktopkCudaSlots& slots, std::uint64_t k, const Messages& shares,
              const Messages& sent, float* acc);

}  // namespace oktopk::cuda
