// SPDX-License-Identifier: Apache-2.0
// Failures in one bucket or on one rank: a step is all or nothing, errors come from wait()
// on every rank, and nothing ever hangs.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <limits>
#include <memory>
#include <thread>

#include "oktopk/comm/collectives.h"
#include "oktopk/laws/faults.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "oktopk/tune/tuner.h"
#include "tests/reduce/bucketed.h"
#include "tests/support/child.h"

namespace oktopk::bucketed_failure_test {
namespace {

constexpr std::array<Index, 3> kInBucket = {250, 150, 20};  // an index of each bucket of kSize

// Huge but finite in all other buckets, so that undoing by arithmetic would lose the residuals.
std::vector<float> exploded(const Communicator& comm, std::size_t bucket, int culprit) {
  auto gradient = gradient_of(comm, 99);
  for (float& x : gradient) x *= 1e30F;
  if (comm.rank() == culprit) gradient[kInBucket[bucket]] = std::numeric_limits<float>::quiet_NaN();
  return gradient;
}

// Preset auto without a profile: the first step measures one, be it skipped or not, and no other.
TEST(BucketedReducerFailure, skipped_steps_calibrate_once) {
  for (const NanPolicy policy : {NanPolicy::skip, NanPolicy::error})
    for (std::size_t bucket = 0; bucket < 3; ++bucket)
      run_world("threads", 2, [&](Communicator& comm) {
        CountingCommunicator counting(comm);
        ReducerOptions options;
        options.nan_policy = policy;
        BucketedReducer bucketed(counting, kTensors, options, kSize);
        std::vector<std::uint64_t> messages;
        for (int step = 0; step < 5; ++step) {
          counting.reset();
          const auto bad = exploded(comm, bucket, 1);
          const auto good = gradient_of(comm, 1);
          if (step == 4)
            bucketed.step(good);
          else if (policy == NanPolicy::skip)
            EXPECT_TRUE(bucketed.step(bad).skipped);
          else
            EXPECT_THROW(bucketed.step(bad), UsageError);
          messages.push_back(counting.traffic().messages_sent);
          EXPECT_TRUE(state_of(bucketed.reducer(0)).tuner->is_calibrated());
        }
        for (std::size_t step = 1; step < messages.size(); ++step)
          EXPECT_LT(messages[step], 100U) << "bucket " << bucket << ", step " << step;
        EXPECT_GT(messages[0], 100U);
      });
}

TEST(BucketedReducerFailure, lone_rank_can_go_on_under_any_policy) {
  run_world("threads", 1, [&](Communicator& comm) {
    ReducerOptions options = preset_options("topka", 30);
    options.nan_policy = NanPolicy::local;
    BucketedReducer bucketed(comm, kTensors, only_used(options), kSize);
    const Bytes before = bucketed.save();
    EXPECT_THROW(bucketed.step(exploded(comm, 2, 0)), UsageError);
    EXPECT_EQ(bucketed.save(), before);
    EXPECT_FALSE(bucketed.step(gradient_of(comm, 0)).sparse.empty());
  });
}

TEST(BucketedReducerFailure, ranks_with_other_tensors_or_buckets_refuse_all) {
  const auto refuses = [](const std::function<std::vector<Index>(int)>& tensors,
                          const std::function<FusionOptions(int)>& fusion) {
    run_world("threads", 3, [&](Communicator& comm) {
      BucketedReducer bucketed(comm, tensors(comm.rank()), {}, fusion(comm.rank()));
      const std::vector<float> gradient(bucketed.n(), 1.0F);
      for (int time = 0; time < 2; ++time) {
        const std::string message = message_of([&] { bucketed.step(gradient); });
        EXPECT_NE(message.find("bucketed reducer: rank 2 has "), std::string::npos) << message;
      }
      barrier(comm);
    });
  };
  refuses(
      [](int rank) {
        return rank == 2 ? std::vector<Index>{20, 10} : std::vector<Index>{10, 20};
      },
      [](int) { return kPerTensor; });
  refuses([](int) { return kTensors; }, [](int rank) { return rank == 2 ? kSize : FusionOptions{}; });
}

TEST(BucketedReducerFailure, dead_rank_is_an_error_everywhere_and_for_good) {
  for (const char* preset : {"dense", "circulant"})
    for (const std::uint64_t message : {0, 3, 9, 14, 20})
      run_world("threads", 3, [&](Communicator& comm) {
        FaultyCommunicator faulty(comm, {comm.rank() == 1 ? FaultKind::die : FaultKind::none, message, 1});
        BucketedReducer bucketed(faulty, kTensors, preset_options(preset, 30), kSize);
        const auto steps = [&] {
          for (std::uint64_t step = 0; step < 10; ++step) bucketed.step(gradient_of(comm, step));
        };
        EXPECT_THROW(steps(), CommError);
        const auto gradient = gradient_of(comm, 0);
        EXPECT_THROW(bucketed.begin(gradient), CommError);
        EXPECT_THROW(bucketed.flush(), CommError);
      });
}

TEST(BucketedReducerFailure, silent_rank_is_an_error_within_the_timeout) {
  std::atomic<int> errors = 0;
  run_world(
      "threads", 3,
      [&](Communicator& comm) {
        BucketedReducer bucketed(comm, kTensors, preset_options("circulant", 30), kSize);
        const auto gradient = gradient_of(comm, 0);
        bucketed.begin(gradient);
        if (comm.rank() == 1) {
          bucketed.ready(5);  // and no more
          while (errors < 2) std::this_thread::yield();
          return;
        }
        for (std::size_t t = 0; t < kTensors.size(); ++t) bucketed.ready(t);
        EXPECT_THROW(bucketed.wait(), CommError);
        ++errors;
      },
      std::chrono::milliseconds(300));
}

TEST(BucketedReducerFailure, destruction_in_flight_ends_the_others_too) {
  for (const std::size_t ready : {0, 1, 3})
    run_world("threads", 3, [&](Communicator& comm) {
      const auto gradient = gradient_of(comm, 0);
      {
        BucketedReducer bucketed(comm, kTensors, preset_options("oktopk", 30), kSize);
        bucketed.begin(gradient);
        const std::size_t mine = comm.rank() == 1 ? ready : kTensors.size();
        for (std::size_t t = 0; t < mine; ++t) bucketed.ready(kTensors.size() - 1 - t);
        if (comm.rank() == 1) return;
        EXPECT_THROW(bucketed.wait(), CommError);
      }
      EXPECT_THROW(barrier(comm), CommError);
    });
}

TEST(BucketedReducerFailure, destruction_of_an_exchanged_step_harms_nobody) {
  run_world("threads", 3, [&](Communicator& comm) {
    const auto gradient = gradient_of(comm, 0);
    {
      BucketedReducer bucketed(comm, kTensors, preset_options("oktopk", 30), kSize);
      bucketed.begin(gradient);
      for (std::size_t t = 0; t < kTensors.size(); ++t) bucketed.ready(t);
      while (bucketed.exchanged() < bucketed.buckets().size()) std::this_thread::yield();
    }
    barrier(comm);
  });
}

// The exchange in flight would wait for rank 0 until the timeout.
TEST(BucketedReducerFailure, destruction_in_flight_waits_for_nobody) {
  for (const std::string_view transport : kTransports) {
    std::atomic<bool> is_destroyed = false;
    run_world(transport, 2, [&](Communicator& comm) {
      BucketedReducer other(comm, kTensors, preset_options("topka", 30), kSize);
      if (comm.rank() == 0) {
        while (!is_destroyed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        EXPECT_THROW(other.step(gradient_of(comm, 0)), CommError);
        return;
      }
      const auto gradient = gradient_of(comm, 0);
      auto bucketed = std::make_unique<BucketedReducer>(comm, kTensors, preset_options("topka", 30), kSize);
      bucketed->begin(gradient);
      for (std::size_t t = 0; t < kTensors.size(); ++t) bucketed->ready(t);
      const auto begin = std::chrono::steady_clock::now();
      bucketed.reset();
      EXPECT_LT(std::chrono::steady_clock::now() - begin, kTestTimeout / 2);
      is_destroyed = true;
    });
  }
}

// The thread that exchanges is not there: neither a step nor the destructor may wait for it.
TEST(BucketedReducerFailure, child_of_fork_is_refused) {
  run_world("threads", 2, [&](Communicator& comm) {
    auto bucketed = std::make_unique<BucketedReducer>(comm, kTensors, preset_options("topka", 30), kSize);
    bucketed->step(gradient_of(comm, 0));
    if (comm.rank() == 1) {
      EXPECT_TRUE(holds_in_child([&] {
        const std::string message = message_of([&] { bucketed->step(gradient_of(comm, 1)); });
        bucketed.reset();
        return message.find("this process was forked from rank 1") != std::string::npos;
      }));
    }
    bucketed->step(gradient_of(comm, 1));
  });
}

}  // namespace
}  // namespace oktopk::bucketed_failure_test
