// SPDX-License-Identifier: Apache-2.0
// EqualRegions through the smallest algorithm that uses it: scatter, one sparse frame per region,
// gather.
#include "oktopk/allreduce/parts/equal_regions.h"

#include <gtest/gtest.h>

#include "tests/support/runs.h"

namespace oktopk::equal_regions_test {
namespace {

class Probe final : public EqualRegions {
 public:
  Probe(Skips (*skips)(int P), std::size_t quota) : EqualRegions(AllreduceOptions{}), skips_(skips), quota_(quota) {}
  std::string_view name() const override { return "probe"; }
  Prediction predict(const Problem& problem) const override {
    const Cost cost = predict_gather(problem.P, expected_frame_bytes({}, 0, 0), 0, 0);
    return {cost, cost};
  }
  std::vector<float> dense;  // of this rank's region, after the last step
  Range region_of_mine;

 protected:
  void do_run(const Step& step, Outcome& out) override {
    scatter(step, skips_, quota_, out);
    region_of_mine = mine(step);
    const auto values = dense_sums(step);
    dense.assign(values.begin(), values.end());
    frame_.clear();
    encode_frame(frame_spec(step), sums(), frame_);
    gather(
        step, [&](int, std::size_t width) { return max_frame_bytes(options().codec, width, width); }, out);
  }

 private:
  Skips (*skips_)(int P);
  std::size_t quota_;
};

SparseVector selection_of(int rank, int step) {
  Random random(8, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(step));
  return random_sparse(random, 60, 0, 500);
}

TEST(EqualRegions, scatter_and_gather_give_the_sum_of_all_selections) {
  for (const int P : {1, 2, 3, 5, 8})
    for (const auto skips : {direct_skips, halving_skips})
      run_world("threads", P, [&](Communicator& comm) {
        Probe probe(skips, 0);
        Outcome out;
        for (int step = 0; step < 2; ++step) {
          std::vector<Entries> all;
          for (int r = 0; r < P; ++r) all.push_back(entries_of(selection_of(r, step)));
          const Entries sums = oracle_sum(all);
          probe.run(comm, *make_cpu_device(), {selection_of(comm.rank(), step)}, 500, 30, out);
          EXPECT_EQ(entries_of(out.update), sums);
          EXPECT_EQ(probe.region_of_mine, region(equal_cuts(500, P), comm.rank()));
          ASSERT_EQ(probe.dense.size(), probe.region_of_mine.width());
          for (std::size_t i = 0; i < probe.dense.size(); ++i) {
            const auto at = sums.find(probe.region_of_mine.begin + static_cast<Index>(i));
            EXPECT_EQ(probe.dense[i], at == sums.end() ? 0 : at->second);
          }
        }
      });
}

TEST(EqualRegions, scatter_with_a_quota_bounds_every_region) {
  run_world("threads", 4, [](Communicator& comm) {
    Probe probe(halving_skips, 3);
    Outcome out;
    probe.run(comm, *make_cpu_device(), {selection_of(comm.rank(), 0)}, 500, 30, out);
    const Cuts cuts = equal_cuts(500, 4);
    for (int r = 0; r < 4; ++r) EXPECT_EQ(part(out.update, region(cuts, r)).size(), 3u);
    EXPECT_FALSE(out.dropped.empty());
  });
}

TEST(EqualRegions, predict_gather_is_what_empty_frames_cost) {
  for (const int P : {1, 2, 5, 8})
    run_world("threads", P, [P](Communicator& comm) {
      CountingCommunicator counting(comm);
      Probe probe(direct_skips, 0);
      Outcome out;
      probe.run(counting, *make_cpu_device(), {}, 500, 30, out);
      counting.reset();
      probe.run(counting, *make_cpu_device(), {}, 500, 30, out);
      const Problem nothing{.n = 500, .k = 0, .P = P};
      const Cost scatter = SparseReduceScatter::predict(direct_skips(P), nothing, {}, false);
      const Cost gather = probe.predict(nothing).expected;
      EXPECT_EQ(static_cast<double>(counting.traffic().messages_sent), scatter.messages + gather.messages);
      EXPECT_EQ(static_cast<double>(counting.traffic().bytes_sent), scatter.bytes + gather.bytes);
    });
}

}  // namespace
}  // namespace oktopk::equal_regions_test
