// SPDX-License-Identifier: Apache-2.0
// The collectives on the transport "mpi", for the size this program was started with.
#include <gtest/gtest.h>

#include "oktopk/comm/transports.h"
#include "oktopk/laws/faults.h"
#include "tests/support/collectives_conformance.h"

namespace oktopk::collectives_test {
namespace {

using conformance::Check;

class MpiCollectives : public testing::TestWithParam<Check> {};

TEST_P(MpiCollectives, holds) {
  const auto comm = make_mpi_world();
  GetParam().run(*comm);
}

TEST_P(MpiCollectives, holds_in_chunks) {
  const auto comm = make_mpi_world({.chunk_bytes = 100});
  GetParam().run(*comm);
}

TEST_P(MpiCollectives, holds_with_jitter) {
  const auto comm = make_mpi_world();
  JitterCommunicator jitter(*comm, 23, std::chrono::microseconds(20));
  GetParam().run(jitter);
}

INSTANTIATE_TEST_SUITE_P(All, MpiCollectives, testing::ValuesIn(conformance::kCollectiveChecks),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace oktopk::collectives_test
