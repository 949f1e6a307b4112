// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/frames.h"

#include <gtest/gtest.h>

#include <array>

#include "oktopk/base/error.h"
#include "tests/support/sparse.h"
#include "tests/support/world.h"

namespace oktopk::frames_test {
namespace {

constexpr Range kRange{100, 200};
constexpr std::uint32_t kTag = 77;

Bytes make_frame() {
  Bytes bytes;
  encode_frame({{}, kRange, kTag}, make_sparse({{100, 1}, {199, -2}}), bytes);
  return bytes;
}

std::string refusal(std::span<const std::byte> bytes, std::uint32_t tag, Range range) {
  try {
    expect_frame(bytes, {{}, range, tag}, 5);
  } catch (const CommError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Frames, expect_frame_that_is_due_opens_it) {
  const Frame frame = expect_frame(make_frame(), {{}, kRange, kTag}, 5);
  EXPECT_EQ(frame.count, 2u);
}

TEST(Frames, expect_frame_of_another_step_or_range_names_peer_and_what_was_due) {
  const std::string step = refusal(make_frame(), 78, kRange);
  for (const char* part : {"from rank 5", "another step, problem or range, or damaged", "tag 78"})
    EXPECT_NE(step.find(part), std::string::npos) << step;
  const std::string range = refusal(make_frame(), kTag, {100, 201});
  for (const char* part : {"from rank 5", "another step, problem or range", "[100, 201)"})
    EXPECT_NE(range.find(part), std::string::npos) << range;
}

TEST(Frames, expect_frame_behind_other_notes_is_refused) {
  std::array<std::byte, 6> notes{};
  Bytes bytes;
  const auto spec = [&] { return FrameSpec{{}, kRange, tag_behind(notes, kTag)}; };
  encode_frame(spec(), make_sparse({{100, 1}, {199, -2}}), bytes);
  EXPECT_EQ(expect_frame(bytes, spec(), 5).count, 2u);
  for (std::size_t bit = 0; bit < 8 * notes.size(); ++bit) {
    notes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_THROW(expect_frame(bytes, spec(), 5), CommError) << bit;
    notes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  EXPECT_NE(tag_behind(std::span(notes).first(5), kTag), tag_behind(notes, kTag));
  EXPECT_NE(tag_behind(notes, kTag), tag_behind(notes, kTag + 1));
}

TEST(Frames, expect_frame_damaged_or_short_names_the_peer) {
  Bytes bytes = make_frame();
  for (const std::size_t size : {std::size_t{0}, std::size_t{4}, std::size_t{10}, bytes.size() - 1})
    EXPECT_NE(refusal(std::span(bytes).first(size), kTag, kRange).find("rank 5"), std::string::npos);
  for (std::byte& byte : bytes) {
    byte ^= std::byte{0x10};
    EXPECT_NE(refusal(bytes, kTag, kRange).find("rank 5"), std::string::npos);
    byte ^= std::byte{0x10};
  }
}

TEST(Frames, error_sink_is_for_lossy_codecs_only) {
  SparseVector returned;
  EXPECT_EQ(error_sink({}, returned), nullptr);
  EXPECT_EQ(error_sink({IndexCoding::coo32, ValueCoding::log8}, returned), &returned);
}

TEST(FrameGather, run_hands_every_rank_every_frame) {
  for (const int P : {1, 2, 3, 5, 8})
    run_world("threads", P, [P](Communicator& comm) {
      const Cuts cuts = equal_cuts(1000, P);
      SparseVector expected;
      std::vector<std::size_t> capacities;
      for (int r = 0; r < P; ++r) {
        Random random(1, static_cast<std::uint64_t>(r));
        const Range range = region(cuts, r);
        expected.append(random_sparse(random, 10 * static_cast<std::size_t>(r), range.begin, range.end));
        capacities.push_back(max_frame_bytes({}, 100, range.width()));
      }
      const Range mine = region(cuts, comm.rank());
      Bytes frame;
      encode_frame({{}, mine, kTag}, part(expected, mine), frame);
      FrameGather gather;
      Workspace work;
      for (int repeat = 0; repeat < 2; ++repeat) {
        gather.run(comm, frame, capacities, work);
        SparseVector out;
        gather.decode_all(cuts, {}, kTag, out);
        EXPECT_EQ(list_of(out), list_of(expected));
        SparseVector last;
        gather.decode(P - 1, {{}, region(cuts, P - 1), kTag}, last);
        EXPECT_EQ(list_of(last), list_of(part(expected, region(cuts, P - 1))));
        EXPECT_THROW(gather.decode(0, {{}, region(cuts, 0), kTag + 1}, last), CommError);
      }
    });
}

TEST(Frames, gathered_bytes_counts_the_size_before_the_block) {
  EXPECT_EQ(gathered_bytes(0), 1);
  EXPECT_EQ(gathered_bytes(127), 128);
  EXPECT_EQ(gathered_bytes(127.5), 129.5);
  EXPECT_EQ(gathered_bytes(1e6), 1e6 + 3);
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

}  // namespace
}  // namespace oktopk::frames_test
