// SPDX-License-Identifier: Apache-2.0
// The messages of preset `slots` on the host (sparse/slots_format.h has the format): entries go in as indices and
// values, messages of a fixed size come out, and back. gpu/kernels/slots.cu writes the same bytes.
// COST: O(entries + blocks) per message.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "oktopk/sparse/coo.h"
#include "oktopk/sparse/slots_format.h"

namespace oktopk {

using SlotWords = std::span<std::uint32_t>;
using SlotTail = std::array<std::uint64_t, slots::kTail>;

// The numbers that are equal in all messages of a step.
struct SlotStep {
  slots::Deal deal;
  std::uint64_t k = 0;
  std::uint64_t number = 0;  // of the step
  std::uint32_t tag = 0;

  std::size_t words() const { return slots::message_words(deal, k); }
};

class SlotWriter {
 public:
  // Writes entries, whose indices are places and increase, to a message. Rounding errors go to `rest`, in order, and
  // entries that do not fit to unfit(). Returns the counts of the tail: entries per step above `bound`.
  SlotTail write(const SlotStep& step, CooView places, std::uint32_t bound, SlotWords message, SparseVector& rest);

  // The entries that did not fit into the last message, in order.
  const SparseVector& unfit() const { return unfit_; }

 private:
  SparseVector unfit_;
  std::vector<std::uint32_t> starts_;  // in `places`, by blocks
};

// Completes the head.
void end_slot(SlotWords message, std::uint32_t bound, const SlotTail& reached);

// From counts per step to counts of all that reach a step.
SlotTail reached_of(const SlotTail& tail);

// Decodes the entries of a message, by place. Returns why the message makes no sense; empty: it does.
std::string read_slot(const SlotStep& step, std::span<const std::uint32_t> message, SparseVector& places);
const slots::Head& slot_head(std::span<const std::uint32_t> message);

}  // namespace oktopk
