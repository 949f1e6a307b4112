// SPDX-License-Identifier: Apache-2.0
// Any words as a message of preset slots. Tag and check are corrected, so that the fuzzer gets past them. A message is
// refused with a reason, or gives entries at increasing places inside the owner's memory.
#include <algorithm>
#include <cmath>
#include <vector>

#include "fuzz/target.h"
#include "oktopk/allreduce/parts/slot_messages.h"
#include "oktopk/sparse/slots_format.h"

namespace {

using namespace oktopk;

// The head as the step expects it, and the check of what follows.
void correct(const SlotStep& step, std::vector<std::uint32_t>& message) {
  slots::Head head;
  std::memcpy(static_cast<void*>(&head), message.data(), sizeof(head));
  head.tag = slots::tag_of(step.tag, step.number);
  const std::size_t counts = slots::count_words(step.deal);
  const std::size_t room = message.size() - slots::kHeadWords - counts;
  const std::uint32_t* at = message.data() + slots::kHeadWords;
  std::uint32_t check = 0;
  for (std::uint32_t b = 0; b < step.deal.blocks; ++b) check += slots::check_of(at[b / 2] >> (b % 2 * 16) & 0xffffU, b);
  for (std::uint32_t i = 0; i < std::min<std::size_t>(head.count, room); ++i)
    check += slots::check_of(at[counts + i], step.deal.blocks + i);
  head.check = check;
  std::memcpy(message.data(), &head, sizeof(head));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::uint64_t n = 1 + input.take<std::uint16_t>();
  const SlotStep step{slots::Deal::of(n, 1 + input.take() % 8), 1 + input.take<std::uint16_t>() % n, input.take(), 5};
  const bool corrects = input.take() % 4 != 0;
  std::vector<std::uint32_t> message(step.words());
  const auto bytes = input.take_bytes(message.size() * sizeof(std::uint32_t));
  if (!bytes.empty()) std::memcpy(message.data(), bytes.data(), bytes.size());
  if (corrects) correct(step, message);
  SparseVector places;
  if (!read_slot(step, message, places).empty()) return 0;
  fuzz::check(is_canonical(places));
  fuzz::check(places.empty() || places.idx.back() < step.deal.places());
  fuzz::check(std::all_of(places.val.begin(), places.val.end(), [](float v) { return std::isfinite(v); }));
  return 0;
}
