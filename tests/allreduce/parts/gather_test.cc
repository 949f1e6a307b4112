// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/gather.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

#include "tests/support/message.h"
#include "tests/support/sparse.h"
#include "tests/support/world.h"

namespace oktopk::gather_test {
namespace {

constexpr Range kRange{100, 200};
constexpr std::uint32_t kTag = 77;

Bytes make_frame() {
  Bytes bytes;
  encode_frame({{}, kRange, kTag}, make_sparse({{100, 1}, {199, -2}}), bytes);
  return bytes;
}

std::string refusal(std::span<const std::byte> bytes, std::uint32_t tag, Range range) {
  return message_of<CommError>([&] { expect_frame(bytes, {{}, range, tag}, 5); });
}

TEST(Frames, expect_frame_opens_what_is_due_and_refuses_all_else_with_its_peer) {
  Bytes bytes = make_frame();
  EXPECT_EQ(expect_frame(bytes, {{}, kRange, kTag}, 5).count, 2u);
  const std::string step = refusal(bytes, 78, kRange);
  const std::string range = refusal(bytes, kTag, {100, 201});
  for (const std::string& text : {step, range})
    for (const char* part : {"from rank 5", "another step or with other options, or a damaged one"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_NE(step.find("tag 78"), std::string::npos) << step;
  EXPECT_NE(range.find("[100, 201)"), std::string::npos) << range;
  for (const std::size_t size : {std::size_t{0}, std::size_t{4}, std::size_t{10}, bytes.size() - 1})
    EXPECT_NE(refusal(std::span(bytes).first(size), kTag, kRange).find("rank 5"), std::string::npos);
  for (std::byte& byte : bytes) {
    byte ^= std::byte{0x10};
    EXPECT_NE(refusal(bytes, kTag, kRange).find("rank 5"), std::string::npos);
    byte ^= std::byte{0x10};
  }
}

TEST(Frames, expect_frame_behind_another_head_is_refused) {
  std::array<std::byte, 6> head{};
  Bytes bytes;
  const auto spec = [&] { return FrameSpec{{}, kRange, tag_behind(head, kTag)}; };
  encode_frame(spec(), make_sparse({{100, 1}, {199, -2}}), bytes);
  EXPECT_EQ(expect_frame(bytes, spec(), 5).count, 2u);
  for (std::size_t bit = 0; bit < 8 * head.size(); ++bit) {
    head[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_THROW(expect_frame(bytes, spec(), 5), CommError) << bit;
    head[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  EXPECT_NE(tag_behind(std::span(head).first(5), kTag), tag_behind(head, kTag));
  EXPECT_NE(tag_behind(head, kTag), tag_behind(head, kTag + 1));
}

TEST(Frames, error_sink_is_for_lossy_codecs_only) {
  SparseVector returned;
  EXPECT_EQ(error_sink({}, returned), nullptr);
  EXPECT_EQ(error_sink({IndexCoding::coo32, ValueCoding::log8}, returned), &returned);
}

TEST(ShareGather, run_hands_every_rank_every_share) {
  for (const int P : {1, 2, 3, 5, 8})
    run_world("threads", P, [P](Communicator& comm) {
      const Cuts cuts = equal_cuts(1000, P);
      SparseVector expected;
      for (int r = 0; r < P; ++r) {
        Random random(1, static_cast<std::uint64_t>(r));
        const Range range = region(cuts, r);
        expected.append(random_sparse(random, 10 * static_cast<std::size_t>(r), range.begin, range.end));
      }
      const Range mine = region(cuts, comm.rank());
      const auto device = make_cpu_device();
      const Contribution nothing;
      const Allreduce::Step step{comm, *device, nothing, 1000, 100, {}, kTag, 0};
      const Allreduce::Step other{comm, *device, nothing, 1000, 100, {}, kTag + 1, 0};
      const auto capacity = [](int, std::size_t width) { return max_frame_bytes({}, 100, width); };
      ShareGather gather;
      Workspace work;
      for (int repeat = 0; repeat < 2; ++repeat) {
        encode_frame(step.frame(mine), part(expected, mine), gather.begin());
        gather.run(step, cuts, capacity);
        SparseVector out;
        gather.decode(step, out);
        EXPECT_EQ(list_of(out), list_of(expected));
        SparseVector last;
        decode_frame(gather.open(step, P - 1), last);
        EXPECT_EQ(list_of(last), list_of(part(expected, region(cuts, P - 1))));
        EXPECT_THROW(gather.open(other, 0), CommError);
      }
    });
}

// Without cuts every share may lie anywhere; a head stands before the frame, whose checksum covers it.
TEST(ShareGather, run_without_cuts_takes_shares_behind_a_head) {
  run_world("threads", 3, [](Communicator& comm) {
    const auto device = make_cpu_device();
    const Contribution nothing;
    const Allreduce::Step step{comm, *device, nothing, 1000, 100, {}, kTag, 0};
    ShareGather gather;
    Workspace work;
    Bytes& message = gather.begin();
    message.assign(static_cast<std::size_t>(comm.rank()) + 1, std::byte{7});
    FrameSpec spec = step.frame({0, 1000});
    spec.tag = tag_behind(message, kTag);
    encode_frame(spec, make_sparse({{5, 1.5F}, {900, 2}}), message);
    const auto capacity = [](int, std::size_t width) { return 3 + max_frame_bytes({}, 2, width); };
    gather.run(step, {}, capacity);
    for (int r = 0; r < 3; ++r) {
      EXPECT_EQ(gather.open(step, r, static_cast<std::size_t>(r) + 1).count, 2u);
      EXPECT_THROW(gather.open(step, r), CommError);
    }
  });
}

TEST(ShareGather, cost_counts_the_size_before_the_share) {
  EXPECT_EQ(ShareGather::cost(2, 0, 0).bytes, 1);
  EXPECT_EQ(ShareGather::cost(2, 127, 5).bytes, 128);
  EXPECT_EQ(ShareGather::cost(3, 127.5, 5).bytes, 2 * 129.5);
  EXPECT_EQ(ShareGather::cost(2, 1e6, 0).bytes, 1e6 + 3);
  EXPECT_EQ(ShareGather::cost(5, 9, 4, 2).messages, 3);
  EXPECT_EQ(ShareGather::cost(5, 9, 4, 2).entries, 16);
  EXPECT_EQ(ShareGather::cost(5, 9, 4, 2).values, 8);
}

TEST(Frames, allgather_sizes_gives_all_in_rank_order) {
  run_world("threads", 5, [](Communicator& comm) {
    std::vector<Sizes> all;
    Workspace work;
    const auto rank = static_cast<std::uint64_t>(comm.rank());
    allgather_sizes(comm, {rank << 40, 3 * rank}, all, work);
    ASSERT_EQ(all.size(), 5u);
    for (std::uint64_t r = 0; r < 5; ++r) {
      EXPECT_EQ(all[r].entries, r << 40);
      EXPECT_EQ(all[r].bytes, 3 * r);
    }
  });
}

// ---- Tallies.

ShareTally make_tally() {
  ShareTally tally;
  tally.load = 0x0123456789abcdefU;
  tally.near.arrivals = (std::uint64_t{1} << 40) + 5;
  for (std::uint64_t i = 0; i < NearTail::kBins; ++i) tally.near.below[i] = 1000 * i + 7;
  return tally;
}

void expect_round_trip(const ShareTally& tally) {
  Bytes bytes;
  put(tally, bytes);
  EXPECT_LE(bytes.size(), ShareTally::kMaxBytes);
  bytes.resize(bytes.size() + 10);  // the frame behind it
  std::span<const std::byte> rest = bytes;
  const ShareTally back = take_share_tally(rest, 1);
  EXPECT_EQ(rest.size(), 10u);
  EXPECT_EQ(back.load, tally.load);
  EXPECT_EQ(back.near.arrivals, tally.near.arrivals);
  EXPECT_EQ(back.near.below, tally.near.below);
}

TEST(ShareTally, makes_the_round_trip) {
  expect_round_trip({});
  expect_round_trip(make_tally());
  ShareTally largest;
  largest.load = largest.near.arrivals = std::numeric_limits<std::uint64_t>::max();
  largest.near.below.fill(std::numeric_limits<std::uint64_t>::max());
  expect_round_trip(largest);
}

TEST(ShareTally, of_small_counts_is_short) {
  ShareTally tally;
  tally.load = 300;
  tally.near.arrivals = 40;
  tally.near.below.fill(3);
  Bytes bytes;
  put(tally, bytes);
  EXPECT_EQ(bytes.size(), 2 + 1 + 8u);
  EXPECT_EQ(static_cast<double>(bytes.size()), tally_bytes(tally));
}

TEST(ShareTally, too_short_names_the_peer) {
  Bytes bytes;
  put(make_tally(), bytes);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    // A buffer of exactly that size lets the sanitizer see reads beyond it.
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<long>(size));
    std::span<const std::byte> rest = cut;
    const std::string message = message_of<CommError>([&] { take_share_tally(rest, 6); });
    EXPECT_NE(message.find("rank 6"), std::string::npos) << size << " bytes of " << bytes.size() << ": " << message;
  }
}

TEST(BlockTally, makes_the_round_trip_and_refuses_other_bytes) {
  for (const BlockTally& tally :
       {BlockTally{}, BlockTally{3, 1U << 20, -5000}, BlockTally{0xffffffffU, 7, 1LL << 43}}) {
    Bytes bytes;
    put(tally, bytes);
    EXPECT_LE(bytes.size(), BlockTally::kMaxBytes);
    std::span<const std::byte> rest = bytes;
    const BlockTally back = take_block_tally(rest, 1);
    EXPECT_TRUE(rest.empty());
    EXPECT_EQ(back.contributors, tally.contributors);
    EXPECT_EQ(back.load, tally.load);
    EXPECT_EQ(back.log_threshold, tally.log_threshold);
    rest = std::span(bytes).first(bytes.size() - 1);
    EXPECT_THROW(take_block_tally(rest, 6), CommError);
  }
  Bytes bytes;
  put(BlockTally{1, 1, (1LL << 44) + 1}, bytes);
  std::span<const std::byte> rest = bytes;
  EXPECT_THROW(take_block_tally(rest, 6), CommError);
}

TEST(BlockTally, of_a_selection_has_the_log_of_its_smallest_magnitude) {
  EXPECT_EQ(BlockTally::of({}).contributors, 0u);
  const BlockTally tally = BlockTally::of(make_sparse({{1, -8}, {3, 0.5F}, {9, 2}}));
  EXPECT_EQ(tally.contributors, 1u);
  EXPECT_EQ(tally.log_threshold, -BlockTally::kOctave);
}

}  // namespace
}  // namespace oktopk::gather_test
