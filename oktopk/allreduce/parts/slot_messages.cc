// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/slot_messages.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <sstream>

namespace oktopk {
namespace {

using namespace slots;

float value_in(std::uint32_t entry) { return std::bit_cast<float>(value_bits_of(entry)); }

// The parts of a message behind its head. Counts are 16 bits each, in memory order.
std::uint16_t count_at(std::span<const std::uint32_t> counts, std::uint32_t b) {
  std::uint16_t count = 0;
  std::memcpy(&count, reinterpret_cast<const std::byte*>(counts.data()) + 2 * b, sizeof(count));
  return count;
}

std::uint32_t check_message(const Deal& deal, std::span<const std::uint32_t> counts,
                            std::span<const std::uint32_t> entries) {
  std::uint32_t sum = 0;
  for (std::uint32_t b = 0; b < deal.blocks; ++b) sum += check_of(count_at(counts, b), b);
  for (std::size_t i = 0; i < entries.size(); ++i)
    sum += check_of(entries[i], deal.blocks + static_cast<std::uint32_t>(i));
  return sum;
}

void set_count(SlotWords counts, std::uint32_t b, std::uint32_t count) {
  const auto half = static_cast<std::uint16_t>(count);
  std::memcpy(reinterpret_cast<std::byte*>(counts.data()) + 2 * b, &half, sizeof(half));
}

// Calls visit(block) for all blocks in the order of the step.
template <class Visit>
void in_order(const SlotStep& step, const Visit& visit) {
  const std::uint32_t first = first_block(step.deal, step.number);
  for (std::uint32_t i = 0; i < step.deal.blocks; ++i) visit((first + i) % step.deal.blocks);
}

}  // namespace

SlotTail SlotWriter::write(const SlotStep& step, CooView places, std::uint32_t bound, SlotWords message,
                           SparseVector& rest) {
  const Deal& deal = step.deal;
  const std::uint32_t room = message_room(deal, step.k);
  std::fill(message.begin(), message.end(), 0U);
  const SlotWords counts = message.subspan(kHeadWords, count_words(deal));
  const SlotWords entries = message.subspan(kHeadWords + counts.size(), room);
  starts_.assign(deal.blocks + 1, 0);
  for (const Index place : places.idx) ++starts_[place / kBlock + 1];
  for (std::size_t b = 0; b < deal.blocks; ++b) starts_[b + 1] += starts_[b];

  SlotTail tail{};
  std::uint32_t used = 0;
  rest.clear();
  unfit_.clear();
  in_order(step, [&](std::uint32_t b) {
    const std::uint32_t number = std::min(starts_[b + 1] - starts_[b], kMostOfBlock);
    const std::uint32_t fits = std::min(number, room - used);
    set_count(counts, b, fits);
    for (std::uint32_t i = 0; i < starts_[b + 1] - starts_[b]; ++i) {
      const std::size_t from = starts_[b] + i;
      const float value = places.val[from];
      const std::uint32_t entry = entry_of(places.idx[from] % kBlock, std::bit_cast<std::uint32_t>(value));
      if (i < number) ++tail[std::max(tail_step(value_bits_of(entry) & 0x7fffffffU, bound), kStepsDown)];
      if (i >= fits) {
        unfit_.push_back(places.idx[from], value);
        continue;
      }
      entries[used + i] = entry;
      if (const float left = value - value_in(entry); left != 0) rest.push_back(places.idx[from], left);
    }
    used += fits;
  });
  // The order began in the middle: the entries of the blocks before that came last.
  const std::uint32_t begin = first_block(deal, step.number) * kBlock;
  for (SparseVector* const list : {&rest, &unfit_}) {
    const auto wrapped =
        std::find_if(list->idx.begin(), list->idx.end(), [begin](Index place) { return place < begin; });
    const auto middle = wrapped - list->idx.begin();
    std::rotate(list->idx.begin(), wrapped, list->idx.end());
    std::rotate(list->val.begin(), list->val.begin() + middle, list->val.end());
  }
  Head head;
  head.tag = tag_of(step.tag, step.number);
  head.count = used;
  head.check = check_message(deal, counts, entries.first(used));
  std::memcpy(message.data(), &head, sizeof(head));
  return tail;
}

SlotTail reached_of(const SlotTail& tail) {
  SlotTail reached = tail;
  for (std::size_t j = kTail - 1; j > 0; --j) reached[j - 1] += reached[j];
  return reached;
}

void end_slot(SlotWords message, std::uint32_t bound, const SlotTail& reached) {
  Head head = slot_head(message);
  head.bound = bound;
  for (std::size_t j = 0; j < kTail; ++j) head.reached[j] = static_cast<std::uint32_t>(reached[j]);
  std::memcpy(message.data(), &head, sizeof(head));
}

const Head& slot_head(std::span<const std::uint32_t> message) { return *reinterpret_cast<const Head*>(message.data()); }

std::string read_slot(const SlotStep& step, std::span<const std::uint32_t> message, SparseVector& places) {
  const Deal& deal = step.deal;
  const Head& head = slot_head(message);
  const auto counts = message.subspan(kHeadWords, count_words(deal));
  const auto entries = message.subspan(kHeadWords + counts.size());
  std::ostringstream wrong;
  if (head.tag != tag_of(step.tag, step.number)) {
    wrong << "its tag is that of another step or of other options";
    return wrong.str();
  }
  if (deal.blocks % 2 == 1 && count_at(counts, deal.blocks) != 0) return "bits behind its counts are set";
  std::uint64_t all = 0;
  for (std::uint32_t b = 0; b < deal.blocks; ++b) all += count_at(counts, b);
  if (head.count > entries.size() || all != head.count) {
    wrong << "its blocks count " << all << " entries, its head " << head.count << ", with room for " << entries.size();
    return wrong.str();
  }
  if (head.check != check_message(deal, counts, entries.first(head.count))) return "its check is wrong";
  // The part of the order that begins with block 0 follows the others.
  places.resize(head.count);
  std::size_t from = 0;
  const std::uint32_t first = first_block(deal, step.number);
  std::size_t late = 0;
  for (std::uint32_t b = 0; b < first; ++b) late += count_at(counts, b);
  bool is_sound = true;
  in_order(step, [&](std::uint32_t b) {
    std::size_t to = b >= first ? late + from : from - (head.count - late);
    for (std::uint32_t i = 0, before = 0; i < count_at(counts, b); ++i, ++from, ++to) {
      const std::uint32_t entry = entries[from];
      is_sound &= (i == 0 || place_of(entry) > before) && (value_bits_of(entry) & 0x7f800000U) != 0x7f800000U;
      before = place_of(entry);
      places.idx[to] = b * kBlock + place_of(entry);
      places.val[to] = value_in(entry);
    }
  });
  return is_sound ? "" : "an entry is out of order or not finite";
}

}  // namespace oktopk
