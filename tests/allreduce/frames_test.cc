// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/frames.h"

#include <gtest/gtest.h>

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
    expect_frame(bytes, tag, range, 5);
  } catch (const CommError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Frames, expect_frame_that_is_due_opens_it) {
  const Frame frame = expect_frame(make_frame(), kTag, kRange, 5);
  EXPECT_EQ(frame.count, 2u);
}

TEST(Frames, expect_frame_of_another_step_names_peer_and_tags) {
  const std::string message = refusal(make_frame(), 78, kRange);
  for (const char* part : {"rank 5", "77", "78"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(Frames, expect_frame_of_another_range_names_peer_and_ranges) {
  const std::string message = refusal(make_frame(), kTag, {100, 201});
  for (const char* part : {"rank 5", "[100, 200)", "[100, 201)"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(Frames, expect_frame_damaged_or_short_names_the_peer) {
  Bytes bytes = make_frame();
  for (const std::size_t size : {std::size_t{0}, std::size_t{10}, bytes.size() - 1})
    EXPECT_NE(refusal(std::span(bytes).first(size), kTag, kRange).find("rank 5"),
              std::string::npos);
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
        expected.append(
            random_sparse(random, 10 * static_cast<std::size_t>(r), range.begin, range.end));
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
        gather.decode_all(cuts, kTag, out);
        EXPECT_EQ(list_of(out), list_of(expected));
        SparseVector last;
        gather.decode(P - 1, region(cuts, P - 1), kTag, last);
        EXPECT_EQ(list_of(last), list_of(part(expected, region(cuts, P - 1))));
        EXPECT_THROW(gather.decode(0, region(cuts, 0), kTag + 1, last), CommError);
      }
    });
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
