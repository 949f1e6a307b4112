// SPDX-License-Identifier: Apache-2.0
// The collective alone, against the oracle.
#include "oktopk/allreduce/presets.h"

#include <gtest/gtest.h>

#include "tests/support/message.h"
#include "tests/support/runs.h"

namespace oktopk::sparse_allreduce_test {
namespace {

constexpr Index n = 400;
constexpr std::size_t k = 20;

SparseVector selection_of(int rank) {
  Random random(77, static_cast<std::uint64_t>(rank));
  return random_sparse(random, k, 0, n);
}

std::vector<Outcome> run_all(int P, const std::string& preset, const AllreduceOptions& options) {
  return gather_world("threads", P, [&](Communicator& comm) {
    return sparse_allreduce(comm, selection_of(comm.rank()), n, k, preset, options);
  });
}

Entries truth(const std::string& preset, const std::vector<Entries>& selections) {
  if (preset == "gtopk") return oracle_gtopk(selections, k);
  if (preset == "spardl") return oracle_spardl(selections, n, k);
  const Entries sum = oracle_sum(selections);
  return preset == "oktopk" || preset == "circulant" ? oracle_top(sum, k) : sum;
}

TEST(SparseAllreduce, result_equals_the_oracle_s_on_every_rank) {
  for (const Preset& preset : presets()) {
    if (preset.name == "dense" || preset.name == "slots") continue;  // refused, below
    for (const int P : {1, 3, 4}) {
      const std::string name(preset.name);
      std::vector<Entries> selections;
      for (int r = 0; r < P; ++r) selections.push_back(entries_of(selection_of(r)));
      const Entries expected = truth(name, selections);
      for (const Outcome& out : run_all(P, name, {}))
        EXPECT_EQ(entries_of(out.update), expected) << name << ", P = " << P;
    }
  }
}

TEST(SparseAllreduce, calls_in_a_row_are_independent) {
  run_world("threads", 3, [](Communicator& comm) {
    const SparseVector mine = selection_of(comm.rank());
    const Outcome first = sparse_allreduce(comm, mine, n, k);
    sparse_allreduce(comm, mine, n, 2 * k, "oktopk");
    const Outcome again = sparse_allreduce(comm, mine, n, k);
    EXPECT_EQ(list_of(first.update), list_of(again.update));
    EXPECT_EQ(first.update.size(), k);
  });
}

TEST(SparseAllreduce, nothing_to_send_is_nothing_received) {
  run_world("threads", 3, [](Communicator& comm) {
    EXPECT_TRUE(sparse_allreduce(comm, {}, n, k).update.empty());
    EXPECT_TRUE(sparse_allreduce(comm, {}, 0, 0).update.empty());
  });
}

void expect_refusal(const std::string& part, const std::function<void(Communicator&)>& act) {
  run_world("threads", 3, [&](Communicator& comm) {
    const std::string message = message_of([&] { act(comm); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
    // Nothing was sent: the world works on.
    EXPECT_EQ(sparse_allreduce(comm, selection_of(comm.rank()), n, k).update.size(), k);
  });
}

TEST(SparseAllreduce, what_it_cannot_do_is_refused_by_name) {
  AllreduceOptions owner;
  owner.residual = ResidualKind::owner_memory;
  expect_refusal("owner memory", [&](Communicator& c) { sparse_allreduce(c, {}, n, k, "circulant", owner); });
  expect_refusal("preset dense", [](Communicator& c) { sparse_allreduce(c, {}, n, k, "dense"); });
  expect_refusal("'best'", [](Communicator& c) { sparse_allreduce(c, {}, n, k, "best"); });
}

}  // namespace
}  // namespace oktopk::sparse_allreduce_test
