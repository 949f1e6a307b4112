// SPDX-License-Identifier: Apache-2.0
// MpiOptions::blocking, as a simulator of MPI needs it: the same messages and the same results as
// the polling transport. Checks that need a timeout are left out: blocking has none.
#include <gtest/gtest.h>

#include <tuple>

#include "oktopk/allreduce/presets.h"
#include "oktopk/comm/transports.h"
#include "tests/support/collectives_conformance.h"
#include "tests/support/communicator_conformance.h"

namespace oktopk::blocking_test {
namespace {

using conformance::Check;

class MpiBlocking : public testing::TestWithParam<std::tuple<std::size_t, Check>> {};

TEST_P(MpiBlocking, holds) {
  const auto& [chunk_bytes, check] = GetParam();
  if (check.kills) GTEST_SKIP() << "needs a timeout";
  check.run(*make_mpi_world({.chunk_bytes = chunk_bytes, .blocking = true}));
}

INSTANTIATE_TEST_SUITE_P(All, MpiBlocking,
                         testing::Combine(testing::Values(MpiOptions{}.chunk_bytes, 64U),
                                          testing::ValuesIn(conformance::kChecks)),
                         [](const auto& test) {
                           return "chunk_" + std::to_string(std::get<0>(test.param)) + "_" +
                                  std::get<1>(test.param).name;
                         });

class MpiBlockingCollectives : public testing::TestWithParam<Check> {};

TEST_P(MpiBlockingCollectives, holds) {
  const auto comm = make_mpi_world({.blocking = true});
  GetParam().run(*comm);
}

INSTANTIATE_TEST_SUITE_P(All, MpiBlockingCollectives, testing::ValuesIn(conformance::kCollectiveChecks),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(MpiBlockingResults, equal_those_of_polling_for_every_sparse_preset) {
  constexpr Index n = 3000;
  const auto polling = make_mpi_world();
  const auto blocking = make_mpi_world({.blocking = true});
  SparseVector mine;
  for (Index i = static_cast<Index>(polling->rank()); i < n; i += 31)
    mine.push_back(i, 1.0F + static_cast<float>(i % 97) / 64.0F);
  for (const Preset& preset : presets()) {
    if (preset.name == "dense" || preset.name == "slots") continue;  // slots needs a Reducer
    const std::string name(preset.name);
    const Outcome expected = sparse_allreduce(*polling, mine, n, mine.size(), name);
    const Outcome outcome = sparse_allreduce(*blocking, mine, n, mine.size(), name);
    EXPECT_FALSE(outcome.update.empty()) << name;
    EXPECT_EQ(outcome.update.idx, expected.update.idx) << name;
    EXPECT_EQ(outcome.update.val, expected.update.val) << name;
  }
}

}  // namespace
}  // namespace oktopk::blocking_test
