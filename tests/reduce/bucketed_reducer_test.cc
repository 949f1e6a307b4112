// SPDX-License-Identifier: Apache-2.0
// The BucketedReducer is its buckets' Reducers, bit by bit, whatever the order and the time in
// which tensors get ready, and it does overlap. Failures: bucketed_failure_test.
#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/fusion.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "oktopk/laws/faults.h"
#include "tests/reduce/bucketed.h"

namespace oktopk::bucketed_reducer_test {
namespace {

class BucketedReducerOfPreset : public testing::TestWithParam<std::string> {};

// What BucketedReducer does, one bucket after the other.
class ByHand {
 public:
  ByHand(Communicator& comm, const std::vector<Bucket>& buckets, const ReducerOptions& options) : buckets_(buckets) {
    for (const Bucket& bucket : buckets) {
      ReducerOptions own = options;
      own.k = share_of_k(options.k, kValues, bucket.range);
      reducers_.push_back(bucket.range.width() == 0 ? nullptr
                                                    : std::make_unique<Reducer>(comm, bucket.range.width(), own));
    }
  }

  Result step(std::span<const float> gradient, float scale) {
    return join([&](std::size_t b) {
      const Range range = buckets_[b].range;
      return reducers_[b] ? reducers_[b]->step(gradient.subspan(range.begin, range.width()), scale) : Update{};
    });
  }
  Result flush() {
    return join([&](std::size_t b) { return reducers_[b] ? reducers_[b]->flush() : Update{}; });
  }
  const Reducer& reducer(std::size_t b) const { return *reducers_[b]; }

 private:
  template <class Make>
  Result join(Make make) {
    Result all;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      Result one = result_of(make(b));
      for (auto& [i, mean] : one.sparse) i += buckets_[b].range.begin;
      all.sparse.insert(all.sparse.begin(), one.sparse.begin(), one.sparse.end());
      all.dense.insert(all.dense.begin(), one.dense.begin(), one.dense.end());
    }
    return all;
  }
  std::vector<Bucket> buckets_;
  std::vector<std::unique_ptr<Reducer>> reducers_;  // null: an empty bucket
};

TEST_P(BucketedReducerOfPreset, steps_equal_reducers_by_hand) {
  for (const int P : {1, 3, 4})
    for (const FusionOptions& fusion : {kSize, kPerTensor, FusionOptions{}})
      run_world("threads", P, [&](Communicator& comm) {
        ReducerOptions options = preset_options(GetParam(), 30);
        options.warmup = {{1, 1.0}, {1, 0.25}};
        options = only_used(options);
        BucketedReducer bucketed(comm, kTensors, options, fusion);
        const auto buckets = bucketed.buckets();
        ByHand by_hand(comm, {buckets.begin(), buckets.end()}, options);
        for (std::uint64_t step = 0; step < 5; ++step) {
          const auto gradient = gradient_of(comm, step);
          const Result got = result_of(bucketed.step(gradient, 0.3F));
          ASSERT_EQ(got, by_hand.step(gradient, 0.3F)) << "P = " << P << ", step " << step;
          std::vector<float> x(kValues, 0.0F);
          bucketed.subtract_unsent(x);
          EntryList sent;
          for (std::size_t b = buckets.size(); b-- > 0;) {
            for (std::size_t i = 0; i < buckets[b].range.width(); ++i)
              ASSERT_EQ(-x[buckets[b].range.begin + i], state_of(by_hand.reducer(b)).unsent.values()[i]);
            if (buckets[b].range.width() == 0) continue;
            for (const auto& [i, v] : list_of(by_hand.reducer(b).sent()))
              sent.emplace_back(i + buckets[b].range.begin, v);
          }
          ASSERT_EQ(list_of(bucketed.sent()), sent);
        }
        EXPECT_EQ(result_of(bucketed.flush()), by_hand.flush());
        EXPECT_EQ(bucketed.unsent_norm(), 0);
      });
}

// Producers get tensors ready in a random order, each after a random pause.
void produce(BucketedReducer& bucketed, std::uint64_t seed) {
  std::vector<std::size_t> order(kTensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937_64 random(seed);
  std::shuffle(order.begin(), order.end(), random);
  const auto part = [&](std::size_t first, std::uint64_t pause) {
    for (std::size_t j = first; j < order.size(); j += 2) {
      std::this_thread::sleep_for(std::chrono::microseconds(pause));
      bucketed.ready(order[j]);
    }
  };
  std::thread other(part, 1, random() % 200);
  part(0, random() % 200);
  other.join();
}

TEST_P(BucketedReducerOfPreset, order_and_delays_change_nothing) {
  constexpr int P = 3;
  const auto run = [&](bool disturbed) {
    return gather_world("threads", P, [&](Communicator& comm) {
      JitterCommunicator jitter(comm, 5, std::chrono::microseconds(disturbed ? 100 : 0));
      BucketedReducer bucketed(jitter, kTensors, preset_options(GetParam(), 30), kPerTensor);
      std::vector<Result> results;
      for (std::uint64_t step = 0; step < 4; ++step) {
        const auto gradient = gradient_of(comm, step);
        if (disturbed) {
          bucketed.begin(gradient);
          produce(bucketed, step * P + static_cast<std::uint64_t>(comm.rank()));
          results.push_back(result_of(bucketed.wait()));
        } else {
          results.push_back(result_of(bucketed.step(gradient)));
        }
      }
      return results;
    });
  };
  const auto calm = run(false);
  EXPECT_EQ(run(true), calm);
  for (const auto& rank : calm) EXPECT_EQ(rank, calm[0]);
}

std::string preset_name(const testing::TestParamInfo<std::string>& info) { return info.param; }

INSTANTIATE_TEST_SUITE_P(Presets, BucketedReducerOfPreset, testing::ValuesIn(preset_names()), preset_name);

// Tensor 0 does not exist before the exchange of tensor 1 is over, on any rank.
TEST(BucketedReducer, buckets_are_exchanged_before_the_last_tensor_is_ready) {
  for (const char* preset : {"dense", "circulant"})
    run_world("threads", 3, [&](Communicator& comm) {
      const std::vector<Index> tensors = {100, 50};
      BucketedReducer bucketed(comm, tensors, preset_options(preset, 15), kPerTensor);
      BucketedReducer reference(comm, tensors, preset_options(preset, 15), kPerTensor);
      const auto final = make_input(Input::gaussian, 150, comm.rank(), 0, 1);
      std::vector<float> gradient(150, -1.0F);
      std::copy(final.begin() + 100, final.end(), gradient.begin() + 100);
      bucketed.begin(gradient);
      bucketed.ready(1);
      while (bucketed.exchanged() == 0) std::this_thread::yield();
      std::copy(final.begin(), final.begin() + 100, gradient.begin());
      bucketed.ready(0);
      const Result got = result_of(bucketed.wait());
      EXPECT_EQ(got, result_of(reference.step(final)));
    });
}

TEST(BucketedReducer, wrong_use_is_refused_and_harmless) {
  run_world("threads", 2, [](Communicator& comm) {
    BucketedReducer bucketed(comm, kTensors, preset_options("oktopk", 30), kSize);
    const auto gradient = gradient_of(comm, 0);
    const auto expect = [](const std::string& message, const std::string& part) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    };
    expect(message_of([&] { bucketed.ready(0); }), "no step is in flight");
    expect(message_of([&] { bucketed.wait(); }), "no step is in flight");
    // A gradient of the wrong size on one rank is refused on all, and the next step is as if nothing had been.
    const std::size_t size = comm.rank() == 0 ? 290 : gradient.size();
    expect(message_of([&] { bucketed.step(std::span(gradient).first(size)); }), "290");
    bucketed.begin(gradient);
    expect(message_of([&] { bucketed.begin(gradient); }), "in flight");
    expect(message_of([&] { bucketed.flush(); }), "in flight");
    expect(message_of([&] { bucketed.save(); }), "in flight");
    expect(message_of([&] { bucketed.unsent_norm(); }), "in flight");
    expect(message_of([&] { bucketed.metrics(); }), "in flight");
    expect(message_of([&] { bucketed.ready(6); }), "tensor 6");
    for (const std::size_t t : {5, 4, 2, 1, 0}) bucketed.ready(t);
    expect(message_of([&] { bucketed.ready(4); }), "tensor 4 was ready");
    expect(message_of([&] { bucketed.wait(); }), "tensor 3 is not ready");
    bucketed.ready(3);
    EXPECT_FALSE(bucketed.wait().sparse.empty());
    expect(message_of([&] { BucketedReducer(comm, {}, {}); }), "no tensors");
    expect(message_of([&] { BucketedReducer(comm, {5, 5}, preset_options("topka", 11)); }), "k = 11");
  });
}

TEST(BucketedReducer, communicator_of_one_thread_is_refused) {
  class OneThread final : public ForwardingCommunicator {
   public:
    using ForwardingCommunicator::ForwardingCommunicator;
    std::unique_ptr<Communicator> split(int color, int key) override { return inner().split(color, key); }
    void require_any_thread() const override { fail<UsageError>("one thread only"); }
  };
  run_threads(2, [](Communicator& comm) {
    OneThread inner(comm);
    JitterCommunicator decorated(inner, 1);
    EXPECT_EQ(message_of([&] {
                const BucketedReducer reducer(decorated, {60, 40}, preset_options("circulant", 10));
              }),
              "one thread only");
    const BucketedReducer reducer(comm, {60, 40}, preset_options("circulant", 10));
  });
}

TEST(BucketedReducer, density_is_each_buckets_own_and_k_is_divided) {
  run_world("threads", 1, [](Communicator& comm) {
    BucketedReducer by_density(comm, {1000, 10, 200}, {.density = 0.01}, kPerTensor);
    EXPECT_EQ(by_density.reducer(0).k(), 2u);
    EXPECT_EQ(by_density.reducer(1).k(), 1u);
    EXPECT_EQ(by_density.reducer(2).k(), 10u);
    BucketedReducer divided(comm, {600, 100, 300}, preset_options("topka", 10), kPerTensor);
    EXPECT_EQ(divided.reducer(0).k(), 3u);
    EXPECT_EQ(divided.reducer(1).k(), 1u);
    EXPECT_EQ(divided.reducer(2).k(), 6u);
    EXPECT_EQ(divided.n(), 1000u);
  });
}

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
}  // namespace oktopk::bucketed_reducer_test
