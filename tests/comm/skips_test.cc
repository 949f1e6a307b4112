// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/skips.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "oktopk/base/error.h"

namespace oktopk::skips_test {
namespace {

std::vector<Skips> named_skips(int P) {
  return {direct_skips(P), halving_skips(P), power_skips(P), grid_skips(P), radix_skips(P, 3), radix_skips(P, 100)};
}

TEST(Skips, named_lists_have_their_shape) {
  EXPECT_EQ(direct_skips(8), (Skips{8, 1}));
  EXPECT_EQ(halving_skips(11), (Skips{11, 6, 3, 2, 1}));
  EXPECT_EQ(power_skips(11), (Skips{11, 8, 4, 2, 1}));
  EXPECT_EQ(power_skips(8), (Skips{8, 4, 2, 1}));
  EXPECT_EQ(grid_skips(12), (Skips{12, 4, 1}));
  EXPECT_EQ(grid_skips(16), (Skips{16, 4, 1}));
  EXPECT_EQ(radix_skips(10, 3), (Skips{10, 4, 2, 1}));
  for (const Skips& skips : named_skips(1)) EXPECT_EQ(skips, Skips{1});
  for (const Skips& skips : named_skips(2)) EXPECT_EQ(skips, (Skips{2, 1}));
}

TEST(Skips, named_lists_are_valid_for_every_size) {
  for (int P = 1; P <= 200; ++P) {
    for (const Skips& skips : named_skips(P)) EXPECT_NO_THROW(check_skips(skips, P));
  }
}

TEST(Skips, halving_takes_log2_messages) {
  for (int P = 1; P <= 200; ++P) {
    int log2_P = 0;
    while ((1 << log2_P) < P) ++log2_P;
    EXPECT_EQ(message_count(halving_skips(P)), log2_P);
    EXPECT_EQ(message_count(power_skips(P)), log2_P);
    EXPECT_EQ(message_count(direct_skips(P)), P - 1);
  }
}

TEST(Skips, phases_move_every_block_to_its_region_once) {
  for (int P = 1; P <= 40; ++P) {
    for (const Skips& skips : named_skips(P)) {
      int messages = 0;
      int held = P;
      for (const Phase& phase : circulant_phases(skips)) {
        EXPECT_EQ(phase.from_blocks, held);
        int next = phase.to_blocks;
        for (const Hop& hop : phase.hops) {
          EXPECT_EQ(hop.shift, hop.first);
          EXPECT_EQ(hop.first, next);
          EXPECT_LE(hop.count, phase.to_blocks);
          next += hop.count;
          ++messages;
        }
        EXPECT_EQ(next, held);
        held = phase.to_blocks;
      }
      EXPECT_EQ(held, 1);
      EXPECT_EQ(messages, message_count(skips));
    }
  }
}

TEST(Skips, parse_reads_names_and_lists) {
  EXPECT_EQ(parse_skips("direct", 6), direct_skips(6));
  EXPECT_EQ(parse_skips("halving", 6), halving_skips(6));
  EXPECT_EQ(parse_skips("power", 6), power_skips(6));
  EXPECT_EQ(parse_skips("grid", 6), grid_skips(6));
  EXPECT_EQ(parse_skips("radix:4", 6), radix_skips(6, 4));
  EXPECT_EQ(parse_skips("8,4,2,1", 8), (Skips{8, 4, 2, 1}));
  EXPECT_EQ(parse_skips("1", 1), Skips{1});
  for (const Skips& skips : named_skips(12)) EXPECT_EQ(parse_skips(to_string(skips), 12), skips);
}

TEST(Skips, parse_bad_text_names_it) {
  for (const char* text : {"", "fast", "radix:", "radix:1", "radix:x", "radix:2 ", "8,4,,1", "8,4,", "4,2,1", "8,2",
                           "8,8,1", "8,1,2,1", "8,4,2,1,0", "99999999999,1", "8, 4,1", "-8,1"}) {
    try {
      parse_skips(text, 8);
      ADD_FAILURE() << "accepted \"" << text << "\"";
    } catch (const UsageError& error) {
      EXPECT_FALSE(std::string(error.what()).empty());
    }
  }
  EXPECT_THROW(parse_skips("direct", 0), UsageError);
  EXPECT_THROW(circulant_phases({}), UsageError);
}

}  // namespace
}  // namespace oktopk::skips_test
