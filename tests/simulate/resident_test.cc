// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tools/simulate/resident.h"

#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"

namespace oktopk::resident_test {
namespace {

constexpr double kN = 1 << 24;
constexpr double kK = 1 << 18;

TEST(Resident, knows_every_preset) {
  for (const Preset& preset : presets()) EXPECT_GT(resident_bytes(preset.name, kN, kK, 8), 8 * kK);
  EXPECT_THROW(resident_bytes("nothing", kN, kK, 8), UsageError);
  EXPECT_THROW(resident_bytes("topka", 10, 11, 8), UsageError);
  EXPECT_THROW(resident_bytes("topka", 10, 0, 8), UsageError);
  EXPECT_THROW(resident_bytes("topka", 10, 1, 0), UsageError);
}

TEST(Resident, grows_with_all_selections_where_all_are_gathered) {
  for (const char* preset : {"topka", "gaussiank"}) {
    EXPECT_GT(resident_bytes(preset, kN, kK, 1024), 1024 * 8 * kK);
    EXPECT_NEAR(resident_bytes(preset, kN, kK, 1024) / resident_bytes(preset, kN, kK, 512), 2, 0.1);
  }
}

TEST(Resident, approaches_all_values_where_unions_are_gathered) {
  for (const char* preset : {"dense", "topkdsa", "topka2a", "oktopk_refresh"}) {
    EXPECT_GT(resident_bytes(preset, kN, kK, 1024), 8 * kN) << preset;
    EXPECT_LT(resident_bytes(preset, kN, kK, 1024), 20 * kN) << preset;
  }
}

TEST(Resident, stays_with_k_where_k_are_gathered) {
  for (const char* preset : {"gtopk", "spardl", "circulant"}) {
    EXPECT_LT(resident_bytes(preset, kN, kK, 1024), 20 * 8 * kK) << preset;
    EXPECT_GT(resident_bytes(preset, kN, kK, 1024), 5 * 8 * kK) << preset;
  }
  // A page for every peer's message.
  EXPECT_LT(resident_bytes("oktopk", kN, kK, 1024), 8 * 8 * kK + 1024 * 4096);
}

}  // namespace
}  // namespace oktopk::resident_test
