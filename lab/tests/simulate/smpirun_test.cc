// SPDX-License-Identifier: Apache-2.0
#include "lab/simulate/smpirun.h"

#include <gtest/gtest.h>

namespace oktopk::smpirun_test {
namespace {

// Its exit code is 0 after these.
TEST(Smpirun, knows_what_the_simulator_prints_when_it_fails) {
  EXPECT_FALSE(reports_failure("[0.1] [smpi/WARNING] something harmless\n"));
  EXPECT_TRUE(reports_failure("[ker_engine/CRITICAL] Oops! Deadlock detected\n"));
  EXPECT_TRUE(reports_failure("[smpi_pmpi/WARNING] MPI_Abort was called, something\n"));
}

}  // namespace
}  // namespace oktopk::smpirun_test
