// SPDX-License-Identifier: Apache-2.0
// Saved states of all buckets in one: continued bitwise, refused as a whole.
#include <gtest/gtest.h>

#include "oktopk/reduce/reducer_options.h"
#include "tests/reduce/bucketed.h"

namespace oktopk::bucketed_reducer_state_test {
namespace {

ReducerOptions options_for(const std::string& preset) {
  ReducerOptions options = preset_options(preset, 30);
  options.allreduce.tau_prime = 3;
  options.warmup = {{1, 1.0}, {2, 0.25}};
  return only_used(options);
}

TEST(BucketedReducerState, loaded_it_continues_bitwise) {
  for (const std::string& preset : preset_names())
    run_world("threads", 3, [&](Communicator& comm) {
      BucketedReducer first(comm, kTensors, options_for(preset), kSize);
      for (std::uint64_t step = 0; step < 4; ++step) first.step(gradient_of(comm, step));
      BucketedReducer second(comm, kTensors, options_for(preset), kSize);
      second.step(gradient_of(comm, 50));
      second.load(first.save());
      EXPECT_EQ(second.save(), first.save());
      for (std::uint64_t step = 4; step < 9; ++step) {
        const auto gradient = gradient_of(comm, step);
        const Result got = result_of(second.step(gradient));
        ASSERT_EQ(got, result_of(first.step(gradient))) << preset << ", step " << step;
      }
    });
}

// refusal() is what load() says to a bad state that only rank 1 has. Afterwards all ranks go on as before.
std::string refusal(Communicator& comm, BucketedReducer& bucketed, const Bytes& good, const Bytes& bad) {
  const Bytes before = bucketed.save();
  std::string message = message_of([&] { bucketed.load(comm.rank() == 1 ? bad : good); });
  EXPECT_EQ(bucketed.save(), before);
  return message;
}

TEST(BucketedReducerState, bad_state_on_one_rank_changes_nothing_on_any) {
  run_world("threads", 3, [&](Communicator& comm) {
    const auto expect = [](const std::string& message, const std::string& part) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    };
    BucketedReducer bucketed(comm, kTensors, options_for("circulant"), kSize);
    BucketedReducer other_buckets(comm, kTensors, options_for("circulant"), kPerTensor);
    BucketedReducer other_options(comm, kTensors, options_for("topka"), kSize);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const auto gradient = gradient_of(comm, step);
      for (BucketedReducer* each : {&bucketed, &other_buckets, &other_options}) each->step(gradient);
    }
    const Bytes good = bucketed.save();
    bucketed.step(gradient_of(comm, 3));
    Bytes damaged = good;
    damaged[damaged.size() / 2] ^= std::byte{4};
    expect(refusal(comm, bucketed, good, damaged), "rank 1: state: damaged");
    expect(refusal(comm, bucketed, good, {}), "rank 1: state: 0 bytes");
    expect(refusal(comm, bucketed, good, other_buckets.save()), "saved with buckets from");
    expect(refusal(comm, bucketed, good, other_buckets.save()), "search and optimal plan buckets for P ranks");
    expect(refusal(comm, bucketed, good, other_options.save()), "rank 1: state: saved with preset topka");
    expect(refusal(comm, bucketed, good, bucketed.save()), "different numbers of steps");
    bucketed.load(good);
    EXPECT_EQ(bucketed.save(), good);
  });
}

// All is well but the last bucket: those before it were loaded already and go back.
TEST(BucketedReducerState, bad_bucket_at_the_end_takes_the_others_back) {
  run_world("threads", 3, [&](Communicator& comm) {
    BucketedReducer bucketed(comm, kTensors, options_for("oktopk"), kSize);
    for (std::uint64_t step = 0; step < 3; ++step) bucketed.step(gradient_of(comm, step));
    const Bytes saved = bucketed.save();
    StateReader reader(saved);
    StateWriter writer;
    writer.put_text(reader.take_text());
    for (std::size_t b = 0; b < 3; ++b) {
      std::string state = reader.take_text();
      if (b == 2 && comm.rank() == 1) state.back() ^= 1;
      writer.put_text(state);
    }
    bucketed.step(gradient_of(comm, 3));
    const Bytes before = bucketed.save();
    const Bytes bad = writer.seal();
    EXPECT_NE(message_of([&] { bucketed.load(bad); }).find("rank 1: state: damaged"), std::string::npos);
    EXPECT_EQ(bucketed.save(), before);
    EXPECT_FALSE(bucketed.step(gradient_of(comm, 4)).sparse.empty());
  });
}

}  // namespace
}  // namespace oktopk::bucketed_reducer_state_test
