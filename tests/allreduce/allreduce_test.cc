// SPDX-License-Identifier: Apache-2.0
// Tests that run() refuses bad input before anything is sent, and that ranks find out when they do not agree. topka
// stands for all sparse algorithms: the checks are in the base class.
#include "oktopk/allreduce/allreduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "oktopk/base/error.h"
#include "tests/support/message.h"
#include "tests/support/runs.h"

namespace oktopk::allreduce_test {
namespace {

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// The error text of one bad call on rank 0 of two; checks that nothing was sent and that a good call works afterwards.
std::string refusal(const Contribution& bad, Index n, std::size_t k, const std::string& preset) {
  std::string message;
  run_world("threads", 2, [&](Communicator& comm) {
    CountingCommunicator counting(comm);
    const auto device = make_cpu_device();
    const auto allreduce = make_allreduce(find_preset(preset), {});
    Outcome out;
    if (comm.rank() == 0) message = message_of([&] { allreduce->run(counting, *device, bad, n, k, out); });
    EXPECT_EQ(counting.traffic().messages_sent, 0u);
    const SparseVector good = make_sparse({{3, 1}, {7, 2}});
    const std::vector<float> all(20, 1.0F);
    allreduce->run(counting, *device, {good, all}, 20, 2, out);
    EXPECT_EQ(out.update.size() + out.dense_update.size(), allreduce->is_dense() ? 20u : 2u);
  });
  return message;
}

TEST(Allreduce, run_refuses_bad_input_before_anything_is_sent) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const SparseVector one = make_sparse({{3, 1}});
  const SparseVector infinite = make_sparse({{1, 1}, {2, kInf}});
  const std::vector<float> sound(20, 1.0F);
  std::vector<float> broken = sound, dense = sound;
  broken[2] = kInf;
  dense[19] = kNan;
  const struct {
    SparseVector selection;
    Index n;
    std::size_t k;
    std::vector<std::string> words;
    std::vector<float> gradient = {};
    std::vector<float> dense = {};  // for preset dense
  } rows[] = {
      {one, 20, 0, {"k = 0"}},
      {one, 20, 21, {"k = 21", "n = 20"}},
      {{}, 0, 1, {"n = 0"}},
      {make_sparse({{5, 1}, {3, 1}}), 20, 2, {"increasing"}},
      {make_sparse({{5, 1}, {5, 1}}), 20, 2, {"increasing"}},
      {make_sparse({{5, 1}, {20, 1}}), 20, 2, {"index 20", "n = 20"}},
      {make_sparse({{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}}), 20, 2, {"5 entries", "k = 2 allows at most 4"}},
      {make_sparse({{1, 1}, {2, kNan}}), 20, 2, {"index 2 "}},
      {infinite, 20, 2, {"index 2 "}},
      {infinite, 20, 2, {"overflowed at index 2"}, sound},
      {infinite, 20, 2, {"gradient[2] = inf"}, broken},
      {{}, 20, 1, {"19"}, {}, std::vector<float>(19, 1.0F)},
      {{}, 20, 1, {"index 19 "}, {}, dense},
  };
  for (const auto& row : rows) {
    const Contribution mine{.selection = row.selection, .dense = row.dense, .gradient = row.gradient};
    const std::string message = refusal(mine, row.n, row.k, row.dense.empty() ? "topka" : "dense");
    for (const std::string& word : row.words) expect_contains(message, word);
  }
}

TEST(Allreduce, run_of_nothing_gives_nothing) {
  for (const Preset& preset : presets())
    run_world("threads", 3, [&](Communicator& comm) {
      const auto allreduce = make_allreduce(preset, {});
      Outcome out;
      for (int step = 0; step < 3; ++step) {
        allreduce->run(comm, *make_cpu_device(), {}, 0, 0, out);
        EXPECT_TRUE(out.update.empty() && out.dense_update.empty()) << preset.name;
      }
    });
}

// Rank 2 of 3 differs; every rank must be told, and agree in a second try on the same objects.
TEST(Allreduce, run_with_another_n_or_k_on_one_rank_tells_every_rank_and_recovers) {
  for (const Preset& preset : presets())
    for (const bool differ_in_n : {true, false})
      run_world("threads", 3, [&](Communicator& comm) {
        const auto device = make_cpu_device();
        const auto allreduce = make_allreduce(preset, {});
        Outcome out;
        const SparseVector v = make_sparse({{13 * static_cast<Index>(comm.rank()), 1}});
        const bool odd = comm.rank() == 2;
        const Index n = differ_in_n && odd ? 41 : 40;
        const std::size_t k = !differ_in_n && odd ? 5 : 4;
        const std::vector<float> values(n, 1.0F);
        const std::string message = message_of([&] { allreduce->run(comm, *device, {v, values}, n, k, out); });
        expect_contains(message, "rank 2");
        expect_contains(message, differ_in_n ? "n = 41" : "k = 5");
        const std::vector<float> good(40, 1.0F);
        allreduce->run(comm, *device, {v, good}, 40, 4, out);
        EXPECT_EQ(out.update.size() + out.dense_update.size(), allreduce->is_dense() ? 40u : 3u) << preset.name;
      });
}

TEST(Allreduce, run_with_any_other_option_on_one_rank_tells_every_rank) {
  const std::function<void(AllreduceOptions&)> changes[] = {
      [](AllreduceOptions& o) { o.codec = parse_codec("elias_fano+fp32"); },
      [](AllreduceOptions& o) { o.codec = parse_codec("coo32+bf16"); },
      [](AllreduceOptions& o) { o.skips = "direct"; },
      [](AllreduceOptions& o) { o.residual = ResidualKind::sender_keeps; },
      [](AllreduceOptions& o) { o.tau = 63; },
      [](AllreduceOptions& o) { o.tau_prime = 31; },
      [](AllreduceOptions& o) { o.bucket = 5; },
      [](AllreduceOptions& o) { o.balance_trigger = 4.0001; },
      [](AllreduceOptions& o) { o.dense = DenseSchedule::ring; },
  };
  for (const auto& change : changes)
    run_world("threads", 3, [&](Communicator& comm) {
      const auto device = make_cpu_device();
      AllreduceOptions options;
      if (comm.rank() == 1) change(options);
      const auto differing = make_allreduce(find_preset("circulant"), options);
      const auto same = make_allreduce(find_preset("circulant"), {});
      Outcome out;
      const SparseVector v = make_sparse({{1, 1}});
      expect_contains(message_of([&] { differing->run(comm, *device, {v}, 40, 4, out); }), "rank 1");
      same->run(comm, *device, {v}, 40, 4, out);
      EXPECT_EQ(list_of(out.update), (EntryList{{1, 3}}));
    });
}

TEST(Allreduce, run_with_another_preset_on_one_rank_tells_every_rank) {
  run_world("threads", 2, [&](Communicator& comm) {
    const auto allreduce = make_allreduce(find_preset(comm.rank() == 0 ? "topka" : "gtopk"), {});
    Outcome out;
    expect_contains(message_of([&] { allreduce->run(comm, *make_cpu_device(), {}, 40, 4, out); }), "preset");
  });
}

TEST(Allreduce, run_with_another_k_on_one_rank_in_a_later_step_is_an_error_on_both) {
  std::vector<int> refused(2, 0);
  run_world("threads", 2, [&](Communicator& comm) {
    const auto device = make_cpu_device();
    const auto allreduce = make_allreduce(find_preset("topka"), {});
    Outcome out;
    const SparseVector v = make_sparse({{1, 1}});
    allreduce->run(comm, *device, {v}, 40, 4, out);
    const std::string message =
        message_of<std::exception>([&] { allreduce->run(comm, *device, {v}, 40, comm.rank() == 0 ? 4 : 3, out); });
    refused[static_cast<std::size_t>(comm.rank())] = message != "accepted" ? 1 : 0;
  });
  EXPECT_EQ(refused, (std::vector<int>{1, 1}));
}

// All ranks turn to a longer vector: refused, or right; never entries that vanish.
TEST(Allreduce, run_with_another_n_on_all_ranks_in_a_later_step_loses_nothing) {
  for (const Preset& preset : presets())
    run_world("threads", 3, [&](Communicator& comm) {
      const auto device = make_cpu_device();
      const auto allreduce = make_allreduce(preset, {});
      Outcome out;
      const SparseVector before = make_sparse({{1, 1}, {20, 1}, {39, 1}});
      const std::vector<float> values(40, 1.0F);
      allreduce->run(comm, *device, {before, values}, 40, 9, out);
      const SparseVector after = make_sparse({{1, 2}, {70, 2}, {79, 2}});
      std::vector<float> longer(80, 0.0F);
      for (const auto& [i, v] : list_of(after)) longer[i] = v;
      const std::string message = message_of([&] { allreduce->run(comm, *device, {after, longer}, 80, 9, out); });
      if (message != "accepted") return;
      if (allreduce->is_dense()) {
        EXPECT_EQ(out.dense_update[79], 6);
      } else {
        EXPECT_EQ(list_of(out.update), (EntryList{{1, 6}, {70, 6}, {79, 6}})) << preset.name;
      }
    });
}

TEST(Allreduce, run_lists_as_shared_what_it_sent_and_was_applied) {
  const SparseVector brought[] = {make_sparse({{1, 5}, {4, 1}}), make_sparse({{2, 4}, {4, 1}})};
  AllreduceOptions options;
  options.residual = ResidualKind::sender_keeps;
  const History run = run_selections(2, "gtopk", options, 10, 2, 1,
                                     [&](int rank, int) { return brought[static_cast<std::size_t>(rank)]; });
  EXPECT_EQ(list_of(run[0][0].outcome.shared), (EntryList{{1, 5}}));
  EXPECT_EQ(list_of(run[1][0].outcome.shared), (EntryList{{2, 4}}));
}

// The values are finite and their sum is not. Ranks that see it name it; no rank gets an update, no rank hangs.
TEST(Allreduce, run_whose_sum_overflows_is_an_error_on_every_rank) {
  for (const Preset& preset : presets())
    for (const std::string codec : {"coo32+fp32", "coo32+bf16"}) {
      const auto ends = gather_world("threads", 3, [&](Communicator& comm) -> std::string {
        const auto allreduce = make_allreduce(preset, {.codec = parse_codec(codec)});
        const SparseVector v = make_sparse({{7, 2e38F}});
        std::vector<float> values(40, 0.0F);
        values[7] = 2e38F;
        Outcome out;
        const auto run = [&] { allreduce->run(comm, *make_cpu_device(), {v, values}, 40, 4, out); };
        std::string end = "none";
        try {
          run();
        } catch (const UsageError& error) {
          end = error.what();
          expect_contains(end, "overflowed");
        } catch (const CommError&) {
          end = "comm";
        }
        EXPECT_ANY_THROW(run()) << preset.name;
        return end;
      });
      EXPECT_EQ(std::count(ends.begin(), ends.end(), "none"), 0) << preset.name << ", " << codec;
      EXPECT_LT(std::count(ends.begin(), ends.end(), "comm"), 3) << preset.name << ", " << codec;
    }
}

TEST(Allreduce, run_first_step_costs_the_agreement_and_later_ones_do_not) {
  const History run = run_input(5, preset_options("topka", 20), 1000, 2, Input::dyadic);
  for (const auto& rank : run) {
    EXPECT_EQ(rank[0].traffic.messages_sent - rank[1].traffic.messages_sent, 3u);
    EXPECT_EQ(rank[0].traffic.bytes_sent - rank[1].traffic.bytes_sent, 4 * kAgreementBytes);
  }
}

TEST(Allreduce, describe_nonfinite_tells_a_bad_gradient_from_an_overflow) {
  const auto device = make_cpu_device();
  const std::vector<float> gradient = {1, 3e38F};
  expect_contains(describe_nonfinite(*device, gradient, 1), "overflowed at index 1");
  expect_contains(describe_nonfinite(*device, {}, 4), "overflowed at index 4");
  const std::vector<Fp16> halves = {Fp16{0x3c00}, Fp16{0x7c00}};  // 1, infinity
  EXPECT_EQ(describe_nonfinite(*device, halves, 1), "gradient[1] = inf, but all entries must be finite");
}

}  // namespace
}  // namespace oktopk::allreduce_test
