// SPDX-License-Identifier: Apache-2.0
// The platforms of `oktopk-lab simulate`, as SimGrid reads them: one XML text for P ranks, a host each, in O(P) lines.
// The processor time of a message is no property of a link, so it stands beside the XML.
//   flat-*      a private full-duplex link per rank and nothing between: alpha and beta exactly
//   fat-tree    two levels, 16 ranks per switch, as many links up as down, fixed routes
//   dragonfly   Aries-like: 4 ranks per router, 16 routers per chassis, 6 chassis per group; only
//               minimal routes, and one link between two groups, so no machine that exists
//   gpu-nodes   8 ranks on a fast link each share their node's network link
// The numbers are round; no platform is calibrated against a machine.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "oktopk/tune/cost.h"

namespace oktopk {

// One rank's uplink with its bandwidth divided by the factor.
struct SlowLink {
  int rank = -1;  // none
  double factor = 1;
};

struct Platform {
  std::string_view name;
  std::string_view summary;
  double latency = 0;    // seconds on the wire between two ranks, on the longest route
  double bandwidth = 0;  // bytes per second of one rank's link, each direction
  double overhead = 0;   // seconds per message, of the sender's processor and again of the receiver's
  std::string (*make_zone)(const Platform& platform, int P, const SlowLink& slow) = nullptr;
  bool has_private_links = true;  // a SlowLink can be made
  double sharers = 1;             // ranks behind one such link, which are a node
  double inside_latency = 0;      // between two ranks of a node
  double inside_bandwidth = 0;

  // The nominal machine, for predict(); gamma and delta are the caller's.
  Machine machine() const;
  // All links so many times slower.
  Platform with_slower_links(double factor) const;
};

std::span<const Platform> platforms();
const Platform& find_platform(std::string_view name);  // UsageError lists the names that exist

// The platform file; hosts are rank-0, rank-1, ... UsageError where P < 1, or the platform cannot have that slow link.
std::string platform_xml(const Platform& platform, int P, const SlowLink& slow = {});

}  // namespace oktopk
