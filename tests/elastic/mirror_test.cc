// SPDX-License-Identifier: Apache-2.0
// After every committed step the copy has the bits of the owner's memory.
#include "oktopk/elastic/mirror.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/comm/decorators.h"
#include "oktopk/elastic/elastic_reducer.h"
#include "oktopk/tune/cost.h"
#include "tests/support/elastic_threads.h"
#include "tests/support/training.h"

namespace oktopk::elastic_mirror_test {
namespace {

constexpr Index n = 9000;
constexpr std::size_t k = 60;
constexpr std::uint64_t kSteps = 48;

struct Memory {
  MemoryLayout layout;
  std::vector<float> values;
};

// By step.
struct Record {
  std::vector<Memory> own, copy;
};

// In the second half everything is in the first eighth: circulant takes new cuts.
std::vector<float> gradient_at(MemberId id, std::uint64_t step, Input input) {
  std::vector<float> gradient = make_input(input, n, static_cast<int>(id), step, 1);
  if (step >= kSteps / 2) std::fill(gradient.begin() + n / 8, gradient.end(), 0.0F);
  return gradient;
}

Record train(ElasticThreads& world, MemberId id, int P, const ReducerOptions& options, Input input) {
  Record record;
  const auto member = world.found(id, P);
  ElasticReducer elastic(*member, n, options);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    step % 16 == 9 ? elastic.flush() : elastic.step(gradient_at(id, step, input));
    const OwnerMemory memory = state_of(elastic.reducer()).unsent.memory();
    record.own.push_back({memory, {memory.values.begin(), memory.values.end()}});
    record.copy.push_back({elastic.mirror().layout(), elastic.mirror().values()});
  }
  return record;
}

// Returns how often a region changed.
std::size_t expect_mirrored(int P, const ReducerOptions& options, Input input) {
  ElasticThreads world;
  std::vector<Record> records(static_cast<std::size_t>(P));
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < records.size(); ++r)
      threads.emplace_back([&, r] { records[r] = train(world, r + 1, P, options, input); });
  }
  std::size_t remembered = 0, regions = 0;
  for (std::size_t r = 0; r < records.size(); ++r)
    for (std::size_t step = 0; step < kSteps; ++step) {
      const Memory& own = records[r].own[step];
      const Memory& copy = records[(r + 1) % records.size()].copy[step];
      const bool is_same = own.values.size() == copy.values.size() && own.layout.region == copy.layout.region &&
                           (own.values.empty() ||
                            std::memcmp(own.values.data(), copy.values.data(), own.values.size() * sizeof(float)) == 0);
      EXPECT_TRUE(is_same) << "rank " << r << ", step " << step;
      for (const float x : own.values) remembered += x != 0 ? 1 : 0;
      regions += step > 0 && own.layout.region != records[r].own[step - 1].layout.region ? 1 : 0;
    }
  EXPECT_GT(remembered, 0U);
  return regions;
}

class Mirrors : public testing::TestWithParam<TestedMethod> {};

TEST_P(Mirrors, have_the_bits_of_the_memory_after_each_commit) {
  std::size_t regions = 0;
  for (const int P : {2, 3, 5})
    for (const Input input : {Input::skewed, Input::dyadic}) {
      ReducerOptions options = GetParam().options(k);
      regions += expect_mirrored(P, options, input);
      options.warmup = {{2, 1.0}, {3, 0.1}};
      options.decay = 0.75F;
      regions += expect_mirrored(P, options, input);
    }
  // Each rank of a world has its first region by then.
  if (GetParam().preset == "circulant") {
    EXPECT_GT(regions, 12U) << "no new cuts were tested";
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, Mirrors,
                         testing::Values(TestedMethod{"circulant", ResidualKind::owner_memory},
                                         TestedMethod{"circulant", ResidualKind::owner_memory, ValueCoding::bf16},
                                         TestedMethod{"slots", ResidualKind::owner_memory}),
                         [](const auto& method) { return method.param.name(); });

TEST(OwnerMirror, is_off_where_owners_do_not_remember_or_the_caller_does_not_want_it) {
  ElasticThreads world;
  std::vector<std::jthread> threads;
  for (MemberId id = 1; id <= 3; ++id)
    threads.emplace_back([&, id] {
      const auto member = world.found(id, 3);
      ElasticReducer without(*member, n, TestedMethod{"circulant", ResidualKind::sender_keeps}.options(k));
      without.step(make_input(Input::skewed, n, static_cast<int>(id), 0, 1));
      EXPECT_TRUE(without.mirror().values().empty());
      ElasticReducer off(*member, n, preset_options("circulant", k), {}, {.mirror = false});
      off.step(make_input(Input::skewed, n, static_cast<int>(id), 0, 1));
      EXPECT_TRUE(off.mirror().values().empty());
      ElasticReducer differs(*member, n, preset_options("circulant", k), {}, {.mirror = id != 2});
      EXPECT_THROW(differs.step(make_input(Input::skewed, n, static_cast<int>(id), 0, 1)), UsageError);
    });
}

// Flips one bit of a message, if it is so long.
class Flipping final : public ForwardingCommunicator {
 public:
  Flipping(Communicator& inner, std::size_t bit) : ForwardingCommunicator(inner), bit_(bit) {}
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    if (sends.empty() || bit_ / 8 >= sends[0].bytes.size()) return inner().begin(sends, recvs);
    copy_.assign(sends[0].bytes.begin(), sends[0].bytes.end());
    copy_[bit_ / 8] ^= std::byte{1} << (bit_ % 8);
    has_flipped_ = true;
    const Send damaged{sends[0].peer, copy_};
    return inner().begin({&damaged, 1}, recvs);
  }
  std::unique_ptr<Communicator> split(int color, int key) override { return inner().split(color, key); }
  bool has_flipped() const { return has_flipped_; }

 private:
  std::size_t bit_;
  bool has_flipped_ = false;
  Bytes copy_;
};

TEST(OwnerMirror, damaged_message_is_an_error_and_changes_nothing) {
  const auto device = make_cpu_device();
  std::size_t flipped = 0, refused = 0;  // one rank writes each
  for (std::size_t bit = 0; bit < 900; bit += 7) {
    run_world("threads", 2, [&](Communicator& comm) {
      const auto owner = make_allreduce(find_preset("slots"), {});
      owner->open(*device, n, comm.rank(), 2);
      std::vector<float> values(owner->memory().values.size(), 0.0F);
      values[3] = 1, values[70] = -2;
      owner->load_memory(*device, values);
      OwnerMirror mirror;
      Flipping flipping(comm, comm.rank() == 0 ? bit : std::size_t{1} << 40U);
      const OwnerMirror::Step step{.device = *device, .owner = *owner, .n = n, .number = 7};
      try {
        mirror.exchange(flipping, step);
      } catch (const CommError&) {
        if (comm.rank() == 1) ++refused;
        EXPECT_TRUE(mirror.values().empty());
      }
      if (flipping.has_flipped()) ++flipped;
    });
  }
  EXPECT_GT(flipped, 80U);
  EXPECT_EQ(flipped, refused);
}

TEST(OwnerMirror, predicts_one_message) {
  const Prediction cost = OwnerMirror::predict({.n = 1e6, .k = 1e4, .P = 5});
  EXPECT_EQ(cost.expected.messages, 1);
  EXPECT_GT(cost.expected.bytes, 6 * 1e4 * 0.9);
  EXPECT_LT(cost.expected.bytes, cost.bound.bytes);
  EXPECT_EQ(OwnerMirror::predict({.n = 1e6, .k = 1e4, .P = 1}).expected.messages, 0);
}

}  // namespace
}  // namespace oktopk::elastic_mirror_test
