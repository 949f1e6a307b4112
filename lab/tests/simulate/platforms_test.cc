// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "lab/simulate/platforms.h"

#include "oktopk/base/error.h"

namespace oktopk::platforms_test {
namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Platforms, have_different_names_and_find_each) {
  for (const Platform& platform : platforms()) EXPECT_EQ(&find_platform(platform.name), &platform);
  EXPECT_THROW(find_platform("moon"), UsageError);
}

TEST(Platforms, flat_ones_give_every_rank_a_duplex_link_of_half_the_latency) {
  const std::string xml = platform_xml(find_platform("flat-25g"), 7);
  EXPECT_EQ(count(xml, "<host id=\"rank-"), 7U);
  EXPECT_EQ(count(xml,
                  "bandwidth=\"3125000000Bps\" latency=\"0.000008000s\" "
                  "sharing_policy=\"SPLITDUPLEX\""),
            7U);
  EXPECT_EQ(count(xml, "<host_link id=\"rank-6\" up=\"link-6_UP\" down=\"link-6_DOWN\"/>"), 1U);
}

TEST(Platforms, state_the_machine_of_the_cost_model) {
  const Machine flat = find_platform("flat-25g").machine();
  EXPECT_DOUBLE_EQ(flat.alpha + flat.overhead, 20e-6);
  EXPECT_DOUBLE_EQ(flat.beta, 1 / 3.125e9);
  const Machine fast = find_platform("flat-100g").machine();
  EXPECT_DOUBLE_EQ(fast.alpha + fast.overhead, 3e-6);
  // Eight ranks share a node's link.
  EXPECT_DOUBLE_EQ(find_platform("gpu-nodes").machine().beta, 8 / 12.5e9);
}

TEST(Platforms, slow_link_is_divided_and_no_other) {
  const std::string xml = platform_xml(find_platform("flat-100g"), 5, {.rank = 3, .factor = 4});
  EXPECT_EQ(count(xml, "\"12500000000Bps\""), 4U);
  EXPECT_EQ(count(xml, "<link id=\"link-3\" bandwidth=\"3125000000Bps\""), 1U);
}

TEST(Platforms, gpu_nodes_have_eight_ranks_and_one_route_each) {
  const std::string xml = platform_xml(find_platform("gpu-nodes"), 19);
  EXPECT_EQ(count(xml, "<zone id=\"node-"), 3U);
  EXPECT_EQ(count(xml, "<zoneRoute "), 3U);
  EXPECT_EQ(count(xml, "<host id="), 19U);
}

TEST(Platforms, have_enough_hosts_and_few_lines_at_any_size) {
  EXPECT_NE(platform_xml(find_platform("fat-tree"), 17).find("radical=\"0-31\""), std::string::npos);
  EXPECT_NE(platform_xml(find_platform("dragonfly"), 385).find("radical=\"0-767\""), std::string::npos);
  for (const Platform& platform : platforms())
    EXPECT_LT(platform_xml(platform, 1024).size(), 1024U * 500) << platform.name;
}

TEST(Platforms, refuse_what_they_cannot_be) {
  EXPECT_THROW(platform_xml(find_platform("flat-25g"), 0), UsageError);
  EXPECT_THROW(platform_xml(find_platform("flat-25g"), 4, {.rank = 4, .factor = 2}), UsageError);
  EXPECT_THROW(platform_xml(find_platform("flat-25g"), 4, {.rank = 1, .factor = 0}), UsageError);
  EXPECT_THROW(platform_xml(find_platform("fat-tree"), 4, {.rank = 1, .factor = 2}), UsageError);
  EXPECT_THROW(platform_xml(find_platform("dragonfly"), 384 * 17), UsageError);
}

TEST(Platforms, slower_links_keep_latency_and_overhead) {
  const Platform slow = find_platform("gpu-nodes").with_slower_links(4);
  EXPECT_DOUBLE_EQ(slow.bandwidth, 12.5e9 / 4);
  EXPECT_DOUBLE_EQ(slow.inside_bandwidth, 200e9 / 4);
  EXPECT_EQ(count(platform_xml(slow, 8), "\"50000000000Bps\""), 8U);
  EXPECT_DOUBLE_EQ(slow.machine().alpha, 3e-6);
  EXPECT_DOUBLE_EQ(slow.machine().overhead, 1e-6);
}

}  // namespace
}  // namespace oktopk::platforms_test
