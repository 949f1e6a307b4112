// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/slot_messages.h"

#include <gtest/gtest.h>

#include <bit>
#include <map>

#include "oktopk/base/random.h"

namespace oktopk {
namespace {

SparseVector random_entries(std::uint64_t places, std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::map<Index, float> entries;
  while (entries.size() < count)
    entries[static_cast<Index>(random.below(places))] = 1 + static_cast<float>(random.normal());
  SparseVector v;
  for (const auto& [place, value] : entries)
    if (value != 0) v.push_back(place, value);
  return v;
}

SlotStep step_of(std::uint64_t n, std::uint32_t P, std::uint64_t k, std::uint64_t number) {
  return {slots::Deal::of(n, P), k, number, 42};
}

TEST(SlotsFormat, every_element_has_one_owner_and_one_place) {
  for (const std::uint64_t n : {1, 255, 256, 257, 5000, 70000})
    for (const std::uint32_t P : {1, 2, 3, 8}) {
      const auto deal = slots::Deal::of(n, P);
      std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> homes;
      for (std::uint64_t i = 0; i < n; ++i) {
        EXPECT_LT(deal.place(i), deal.places());
        EXPECT_EQ(deal.index(deal.owner(i), deal.place(i)), i);
        homes[{deal.owner(i), deal.place(i)}] = i;
      }
      EXPECT_EQ(homes.size(), n);
    }
}

TEST(SlotsFormat, a_value_keeps_its_sign_and_twelve_bits_of_precision) {
  Random random(1);
  for (int i = 0; i < 10000; ++i) {
    const float x = static_cast<float>(random.normal()) * std::exp2(static_cast<float>(random.below(200)) - 100.0F);
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const float decoded = std::bit_cast<float>(slots::float_bits_of(slots::value_of(bits)));
    EXPECT_LE(std::fabs(decoded - x), std::fabs(x) / 4096) << x;
    EXPECT_EQ(decoded + (x - decoded), x);  // what stays is exact
  }
  const auto largest = std::bit_cast<std::uint32_t>(std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(std::bit_cast<float>(slots::float_bits_of(slots::value_of(largest)))));
}

// From any start the count comes near the aim, on tails from flat to steep.
TEST(SlotsFormat, a_steered_threshold_finds_its_aim) {
  for (const double power : {1.5, 3.0, 8.0})
    for (const float start : {1e-3F, 1.0F, 1e3F}) {
      // A million values with P(|x| >= t) = t^-power, t >= 1.
      const auto count = [&](float t) { return static_cast<std::uint64_t>(1e6 * std::pow(std::max(t, 1.0F), -power)); };
      auto bound = std::bit_cast<std::uint32_t>(start);
      for (int step = 0; step < 60; ++step) {
        std::uint64_t reached[slots::kTail];
        for (std::uint32_t j = 0; j < slots::kTail; ++j)
          reached[j] = count(std::bit_cast<float>(bound + (j - slots::kStepsDown) * slots::kQuarterOctave));
        bound = slots::steered(bound, reached, 10000);
      }
      EXPECT_NEAR(static_cast<double>(count(std::bit_cast<float>(bound))), 10000, 500) << power << " " << start;
    }
}

TEST(SlotMessages, what_is_read_and_what_stays_are_what_was_written) {
  SlotWriter writer;
  for (const std::uint64_t n : {300, 5000, 100000})
    for (const std::uint32_t P : {1, 3})
      for (const std::size_t count : {0, 1, 40, 250})
        for (std::uint64_t number = 0; number < 5; ++number) {
          const SlotStep step = step_of(n, P, 100, number);
          const SparseVector entries = random_entries(step.deal.places(), std::min<std::size_t>(count, n / P / 2), n);
          std::vector<std::uint32_t> message(step.words());
          SparseVector rest, read;
          writer.write(step, entries, slots::kLeastBound, message, rest);
          EXPECT_EQ(read_slot(step, message, read), "");
          EXPECT_LE(read.size(), slots::message_room(step.deal, step.k));
          EXPECT_TRUE(is_canonical(read));
          EXPECT_TRUE(is_canonical(rest));
          std::map<Index, float> sum;
          for (std::size_t i = 0; i < read.size(); ++i) sum[read.idx[i]] += read.val[i];
          for (std::size_t i = 0; i < rest.size(); ++i) sum[rest.idx[i]] += rest.val[i];
          EXPECT_TRUE(is_canonical(writer.unfit()));
          for (std::size_t i = 0; i < writer.unfit().size(); ++i) sum[writer.unfit().idx[i]] += writer.unfit().val[i];
          EXPECT_EQ(read.size() + writer.unfit().size(), entries.size());
          EXPECT_EQ(sum.size(), entries.size());
          for (std::size_t i = 0; i < entries.size(); ++i) EXPECT_EQ(sum[entries.idx[i]], entries.val[i]);
        }
}

// More entries than fit, at every step: every block gets its turn.
TEST(SlotMessages, no_block_waits_for_ever) {
  SlotWriter writer;
  std::vector<bool> was_sent(slots::Deal::of(100000, 1).blocks, false);
  for (std::uint64_t number = 0; number < 200; ++number) {
    const SlotStep step = step_of(100000, 1, 500, number);
    std::vector<std::uint32_t> message(step.words());
    SparseVector rest, read;
    writer.write(step, random_entries(step.deal.places(), 5000, number), slots::kLeastBound, message, rest);
    EXPECT_EQ(read_slot(step, message, read), "");
    EXPECT_EQ(read.size(), slots::message_room(step.deal, step.k));
    for (const Index place : read.idx) was_sent[place / slots::kBlock] = true;
  }
  EXPECT_EQ(std::count(was_sent.begin(), was_sent.end(), false), 0);
}

TEST(SlotMessages, a_damaged_message_or_one_of_another_step_is_refused) {
  SlotWriter writer;
  const SlotStep step = step_of(5000, 2, 100, 3);
  std::vector<std::uint32_t> message(step.words());
  SparseVector rest, read;
  writer.write(step, random_entries(step.deal.places(), 60, 1), slots::kLeastBound, message, rest);
  ASSERT_EQ(read_slot(step, message, read), "");
  EXPECT_NE(read_slot(step_of(5000, 2, 100, 4), message, read), "");
  const std::size_t used = slots::kHeadWords + slots::count_words(step.deal) + slot_head(message).count;
  for (std::size_t word = 0; word < used; ++word) {
    if (word >= 3 && word < slots::kHeadWords) continue;  // the rest of the head only steers
    std::vector<std::uint32_t> damaged = message;
    damaged[word] ^= 1U << (word % 32);
    EXPECT_NE(read_slot(step, damaged, read), "") << word;
  }
}

}  // namespace
}  // namespace oktopk
