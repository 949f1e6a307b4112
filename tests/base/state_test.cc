// SPDX-License-Identifier: Apache-2.0
// Saved state: what was put comes back; any damage is a UsageError that says what is wrong, before
// anything of the promised size is allocated.
#include "oktopk/base/state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "oktopk/base/hash.h"
#include "tests/support/message.h"

namespace oktopk::state_test {
namespace {

constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kSizeAt = 16;
constexpr std::size_t kChecksumAt = 24;

Bytes small_state() {
  StateWriter state;
  state.put(std::uint32_t{7});
  state.put_text("seven");
  state.put_all(std::span<const float>(std::vector<float>{1.5F, -2}));
  return state.seal();
}

void read_small(std::span<const std::byte> bytes) {
  StateReader state(bytes);
  EXPECT_EQ(state.take<std::uint32_t>(), 7u);
  EXPECT_EQ(state.take_text(), "seven");
  EXPECT_EQ(state.take_all<float>(), (std::vector<float>{1.5F, -2}));
  state.finish();
}

template <class T>
void overwrite(Bytes& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

void expect_refusal(std::span<const std::byte> bytes, const std::string& part) {
  const std::string message = message_of([&] { read_small(bytes); });
  EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_EQ(message.find("state: "), 0u) << message;
}

TEST(State, take_after_put_gives_every_kind_back) {
  StateWriter writer;
  writer.put(true);
  writer.put(false);
  writer.put(std::int8_t{-5});
  writer.put(std::numeric_limits<std::uint64_t>::max());
  writer.put(std::numeric_limits<std::int64_t>::min());
  writer.put(-0.0F);
  writer.put(std::numeric_limits<double>::denorm_min());
  writer.put_text("");
  writer.put_text(std::string_view("a\0b", 3));
  const std::vector<std::uint32_t> some = {3, 1, 2};
  writer.put_all(std::span<const std::uint32_t>(some));
  writer.put_all(std::span<const double>());
  const Bytes sealed = writer.seal();
  StateReader reader(sealed);
  EXPECT_TRUE(reader.take<bool>());
  EXPECT_FALSE(reader.take<bool>());
  EXPECT_EQ(reader.take<std::int8_t>(), -5);
  EXPECT_EQ(reader.take<std::uint64_t>(), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(reader.take<std::int64_t>(), std::numeric_limits<std::int64_t>::min());
  EXPECT_TRUE(std::signbit(reader.take<float>()));
  EXPECT_EQ(reader.take<double>(), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(reader.take_text(), "");
  EXPECT_EQ(reader.take_text(), std::string("a\0b", 3));
  EXPECT_EQ(reader.take_all<std::uint32_t>(), some);
  EXPECT_TRUE(reader.take_all<double>().empty());
  reader.finish();
}

TEST(State, seal_of_nothing_is_read_as_nothing) {
  const Bytes sealed = StateWriter().seal();
  EXPECT_EQ(sealed.size(), kStateHeadBytes);
  StateReader(sealed).finish();
}

TEST(State, seal_does_not_end_the_writing) {
  StateWriter writer;
  writer.put(1);
  const Bytes first = writer.seal();
  writer.put(2);
  EXPECT_EQ(writer.seal().size(), first.size() + sizeof(int));
  EXPECT_EQ(StateReader(first).take<int>(), 1);
}

// No byte is copied twice: room is made once, and what was written is what is returned.
TEST(State, write_state_makes_room_once_and_seals_in_place) {
  const std::vector<float> values(1000, 1.5F);
  const auto write = [&](StateWriter& out) {
    out.put_text("outer");
    out.put_state([&](StateWriter& inner) { inner.put_all(std::span<const float>(values)); });
    out.put(7);
  };
  const Bytes state = write_state(write);
  EXPECT_EQ(state.capacity(), state.size());
  StateWriter again;
  write(again);
  EXPECT_EQ(again.size(), state.size());
  EXPECT_EQ(again.seal(), state);
  StateReader reader(state);
  EXPECT_EQ(reader.take_text(), "outer");
  const auto nested = reader.take_view();
  EXPECT_EQ(reader.take<int>(), 7);
  reader.finish();
  EXPECT_EQ(StateReader(nested).take_all<float>(), values);
}

TEST(State, take_finite_refuses_what_is_not_and_says_where) {
  StateWriter writer;
  writer.put(std::numeric_limits<float>::infinity());
  writer.put(-1.0F);
  writer.put_all(std::span<const float>(std::vector<float>{1, std::nanf(""), 3}));
  const Bytes state = writer.seal();
  StateReader reader(state);
  const auto message = [](auto act) { return message_of(act); };
  EXPECT_NE(message([&] { reader.take_finite<float>("a"); }).find("a is inf"), std::string::npos);
  EXPECT_NE(message([&] { reader.take_finite<float>("b", 0); }).find("not negative"), std::string::npos);
  EXPECT_NE(message([&] { reader.take_all_finite<float>("c"); }).find("c[1] is nan"), std::string::npos);
}

TEST(State, read_cut_short_anywhere_is_refused) {
  const Bytes whole = small_state();
  for (std::size_t size = 0; size < whole.size(); ++size)
    expect_refusal(std::span(whole).first(size), size < kStateHeadBytes ? "at least" : "were saved");
}

TEST(State, read_with_any_bit_flipped_is_refused) {
  const Bytes whole = small_state();
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      Bytes damaged = whole;
      damaged[at] ^= std::byte{1} << bit;
      expect_refusal(damaged, "");
    }
  Bytes damaged = whole;
  damaged.back() ^= std::byte{1};
  expect_refusal(damaged, "checksum");
}

TEST(State, read_of_another_file_version_or_length_says_which) {
  Bytes other = small_state(), newer = other, longer = other;
  overwrite(other, 0, std::uint64_t{0x1234});
  overwrite(newer, kVersionAt, std::uint32_t{4});
  longer.push_back(std::byte{0});
  expect_refusal(other, "not a saved state");
  expect_refusal(newer, "format 4");
  expect_refusal(newer, "format 3");
  expect_refusal(longer, "were saved");
}

TEST(State, finish_too_early_and_take_beyond_the_end_are_refused) {
  const Bytes sealed = small_state();
  StateReader reader(sealed);
  reader.take<std::uint32_t>();
  EXPECT_NE(message_of([&] { reader.finish(); }).find("left over"), std::string::npos);
  reader.take_text();
  reader.take_all<float>();
  EXPECT_NE(message_of([&] { reader.take<double>(); }).find("8 more bytes"), std::string::npos);
}

// The lengths would overflow size_t, or all memory, if anyone believed them.
TEST(State, take_of_an_array_longer_than_the_state_is_refused_without_allocating) {
  for (const std::uint64_t count :
       {std::uint64_t{3}, std::uint64_t{1} << 40, std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
    StateWriter writer;
    writer.put(count);
    writer.put(std::uint64_t{0});
    const Bytes sealed = writer.seal();
    const auto expect = [&](const std::string& message) {
      EXPECT_NE(message.find(std::to_string(count) + " values"), std::string::npos) << message;
    };
    expect(message_of([&] { StateReader(sealed).take_all<float>(); }));
    expect(message_of([&] { StateReader(sealed).take_all<double>(); }));
    if (count > 8) expect(message_of([&] { StateReader(sealed).take_text(); }));
  }
}

TEST(State, take_of_a_bool_that_is_neither_is_refused) {
  StateWriter writer;
  writer.put(std::uint8_t{2});
  const Bytes sealed = writer.seal();
  EXPECT_THROW(StateReader(sealed).take<bool>(), UsageError);
}

TEST(State, head_is_laid_out_as_documented) {
  const Bytes sealed = small_state();
  EXPECT_EQ(std::memcmp(sealed.data(), "KTOPKST1", 8), 0);
  std::uint64_t size = 0;
  std::uint64_t checksum = 0;
  std::memcpy(&size, sealed.data() + kSizeAt, sizeof(size));
  std::memcpy(&checksum, sealed.data() + kChecksumAt, sizeof(checksum));
  EXPECT_EQ(size, sealed.size() - kStateHeadBytes);
  EXPECT_EQ(checksum, hash_bytes(std::span(sealed).subspan(kStateHeadBytes), 3));
}

}  // namespace
}  // namespace oktopk::state_test
