// SPDX-License-Identifier: Apache-2.0
#include "lab/simulate/platforms.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"

namespace oktopk {
namespace {

constexpr int kRanksPerNode = 8;
constexpr double kNodeLinkLatency = 0.5e-6;
constexpr int kRanksPerSwitch = 16;

std::string link(const std::string& id, double bandwidth, double latency) {
  return fmt::format(R"(  <link id="{}" bandwidth="{:.0f}Bps" latency="{:.9f}s" sharing_policy="SPLITDUPLEX"/>)", id,
                     bandwidth, latency) +
         "\n";
}

// A host and its private link.
std::string linked_host(int rank, double bandwidth, double latency) {
  return fmt::format("  <host id=\"rank-{}\" speed=\"1Gf\"/>\n", rank) +
         link(fmt::format("link-{}", rank), bandwidth, latency) +
         fmt::format("  <host_link id=\"rank-{0}\" up=\"link-{0}_UP\" down=\"link-{0}_DOWN\"/>\n", rank);
}

double divisor(const SlowLink& slow, int rank) { return slow.rank == rank ? slow.factor : 1.0; }

std::string make_flat(const Platform& p, int P, const SlowLink& slow) {
  std::string xml = "<zone id=\"world\" routing=\"Cluster\">\n";
  for (int r = 0; r < P; ++r) xml += linked_host(r, p.bandwidth / divisor(slow, r), p.latency / 2);
  return xml + "  <router id=\"switch\"/>\n</zone>\n";
}

// Each node is a zone of its own behind its router; their links meet in the zone "core".
std::string make_gpu_nodes(const Platform& p, int P, const SlowLink& slow) {
  std::string zones;
  std::string links;
  std::string routes;
  const double network_latency = p.latency / 2 - kNodeLinkLatency;
  const int nodes = (P + kRanksPerNode - 1) / kRanksPerNode;
  for (int node = 0; node < nodes; ++node) {
    zones += fmt::format("<zone id=\"node-{}\" routing=\"Cluster\">\n", node);
    for (int r = node * kRanksPerNode; r < std::min(P, (node + 1) * kRanksPerNode); ++r)
      zones += linked_host(r, p.inside_bandwidth / divisor(slow, r), kNodeLinkLatency);
    zones += fmt::format("  <router id=\"router-{}\"/>\n</zone>\n", node);
    links += link(fmt::format("network-{}", node), p.bandwidth, network_latency);
    routes += fmt::format(
        "  <zoneRoute src=\"node-{0}\" dst=\"core\" gw_src=\"router-{0}\" gw_dst=\"switch\">\n"
        "    <link_ctn id=\"network-{0}\" direction=\"UP\"/>\n  </zoneRoute>\n",
        node);
  }
  return "<zone id=\"world\" routing=\"Floyd\">\n" + zones +
         "<zone id=\"core\" routing=\"Cluster\">\n  <router id=\"switch\"/>\n</zone>\n" + links + routes + "</zone>\n";
}

// SimGrid's own topologies: their hosts are as many as the parameters say, at least P.
std::string make_topology(const Platform& p, std::string_view topology, const std::string& parameters, int hosts,
                          double link_latency) {
  return fmt::format(
      "<cluster id=\"world\" prefix=\"rank-\" suffix=\"\" radical=\"0-{}\" speed=\"1Gf\"\n"
      "  bw=\"{:.0f}Bps\" lat=\"{:.9f}s\" sharing_policy=\"SPLITDUPLEX\" topology=\"{}\" "
      "topo_parameters=\"{}\"/>\n",
      hosts - 1, p.bandwidth, link_latency, topology, parameters);
}

// The longest route goes up two links and down two.
std::string make_fat_tree(const Platform& p, int P, const SlowLink&) {
  const int switches = (P + kRanksPerSwitch - 1) / kRanksPerSwitch;
  return make_topology(p, "FAT_TREE", fmt::format("2;{0},{1};1,{0};1,1", kRanksPerSwitch, switches),
                       kRanksPerSwitch * switches, p.latency / 4);
}

// The longest route: host, two hops inside the group, one between groups, two inside, host.
std::string make_dragonfly(const Platform& p, int P, const SlowLink&) {
  constexpr int kChassis = 6;
  constexpr int kRouters = 16;
  constexpr int kHosts = 4;
  constexpr int kPerGroup = kChassis * kRouters * kHosts;
  const int groups = (P + kPerGroup - 1) / kPerGroup;
  require(groups <= kRouters, "platform dragonfly: ", P, " ranks are ", groups, " groups, but there can be at most ",
          kRouters);
  return make_topology(p, "DRAGONFLY", fmt::format("{},1;{},1;{},1;{}", groups, kChassis, kRouters, kHosts),
                       groups * kPerGroup, p.latency / 7);
}

// name, summary, latency, bandwidth, overhead, zone; what else differs.
constexpr std::array<Platform, 6> kPlatforms = {{
    {"flat-100g", "100 Gbit/s, 3 us with overheads (RDMA), no contention", 2e-6, 12.5e9, 0.5e-6, make_flat},
    {"flat-25g", "25 Gbit/s, 20 us with overheads (TCP), no contention", 16e-6, 3.125e9, 2e-6, make_flat},
    {"dragonfly", "Aries-like: groups of 384 ranks, minimal routes", 1.4e-6, 10e9, 0.5e-6, make_dragonfly, false},
    {"fat-tree", "100 Gbit/s, two levels, 16 ranks per switch, fixed routes", 2e-6, 12.5e9, 0.5e-6, make_fat_tree,
     false},
    {"gpu-nodes", "nodes of 8 ranks, 200 GB/s inside, one 100 Gbit/s link each between", 3e-6, 12.5e9, 0.5e-6,
     make_gpu_nodes, true, kRanksPerNode, 2 * kNodeLinkLatency, 200e9},
    {"wan", "100 Mbit/s, 100 ms: ranks far apart", 100e-3, 12.5e6, 2e-6, make_flat},
}};

}  // namespace

std::span<const Platform> platforms() { return kPlatforms; }

const Platform& find_platform(std::string_view name) { return find_row(kPlatforms, "platform", name); }

Machine Platform::machine() const { return {.alpha = latency, .beta = sharers / bandwidth, .overhead = 2 * overhead}; }

Platform Platform::with_slower_links(double factor) const {
  Platform slower = *this;
  slower.bandwidth /= factor;
  slower.inside_bandwidth /= factor;
  return slower;
}

std::string platform_xml(const Platform& platform, int P, const SlowLink& slow) {
  require(P >= 1, "platform ", platform.name, ": ", P, " ranks, but there must be at least 1");
  require(slow.rank < 0 || platform.has_private_links, "platform ", platform.name,
          ": a slow link needs links of single ranks, which flat platforms and gpu-nodes have");
  require(slow.rank < P, "slow link of rank ", slow.rank, ", but there are ", P, " ranks");
  require(slow.factor > 0, "slow link: factor ", slow.factor, ", but it must be positive");
  return "<?xml version='1.0'?>\n"
         "<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
         "<platform version=\"4.1\">\n" +
         platform.make_zone(platform, P, slow) + "</platform>\n";
}

}  // namespace oktopk
