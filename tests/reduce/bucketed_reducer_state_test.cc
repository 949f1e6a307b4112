// SPDX-License-Identifier: Apache-2.0
// Saved states of all buckets in one, refused as a whole.
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

TEST(BucketedReducerState, state_of_other_buckets_is_refused_on_all_ranks) {
  run_world("threads", 3, [](Communicator& comm) {
    BucketedReducer bucketed(comm, kTensors, options_for("circulant"), kSize);
    BucketedReducer other(comm, kTensors, options_for("circulant"), kPerTensor);
    for (BucketedReducer* each : {&bucketed, &other}) each->step(gradient_of(comm, 0));
    const Bytes before = bucketed.save();
    const std::string message = message_of([&] { bucketed.load(comm.rank() == 1 ? other.save() : before); });
    EXPECT_NE(message.find("saved with buckets from"), std::string::npos) << message;
    EXPECT_NE(message.find("search and optimal plan buckets for P ranks"), std::string::npos) << message;
    EXPECT_EQ(bucketed.save(), before);
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
