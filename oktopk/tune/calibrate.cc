// SPDX-License-Identifier: Apache-2.0
// Joins the prices of network and processor (prices.h) to a profile. Every number is reduced over the ranks, so that
// all ranks hold the same bits and decide alike.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <iomanip>
#include <limits>
#include <sstream>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/tune/prices.h"

namespace oktopk {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void check(const CalibrateOptions& o) {
  require(std::isfinite(o.budget) && o.budget > 0, "calibrate: budget = ", o.budget,
          " seconds, but it must be positive");
  require(o.ranks_per_host >= 1, "calibrate: ranks_per_host = ", o.ranks_per_host,
          ", but a host has at least one rank");
  const ExternalPrice external = o.external_dense.value_or(ExternalPrice{});
  require(external.latency >= 0 && external.per_byte >= 0, "calibrate: an external dense of ", external.latency,
          " s and ", external.per_byte, " s per byte, but neither may be negative");
}

// Ranks with different options would wait for each other in vain, or choose different methods: this is found before
// anything is measured.
void agree(Communicator& comm, const CalibrateOptions& o, Workspace& work) {
  std::ostringstream text;
  text << std::setprecision(std::numeric_limits<double>::max_digits10) << "budget = " << o.budget
       << ", kernels = " << o.kernels << ", ranks_per_host = " << o.ranks_per_host << ", values = " << o.values
       << ", external_dense = " << o.external_dense.has_value();
  if (!o.kernels) {
    const Machine& m = o.assumed.machine;
    text << ", gamma = " << m.gamma << ", delta = " << m.delta << ", sigma = " << m.sigma;
    for (const double seconds : o.assumed.index_seconds) text << ", index_seconds " << seconds;
    for (const double seconds : o.assumed.value_seconds) text << ", value_seconds " << seconds;
  }
  require_equal(comm, "calibrate", text.str(), work);
}

}  // namespace

Profile calibrate(Communicator& comm, const CalibrateOptions& options) {
  const int P = comm.size();
  const Clock now = options.now ? options.now : Clock(steady_seconds);
  Workspace work;
  agree(comm, options, work);
  check(options);
  const int g = std::min(options.ranks_per_host, P);
  Profile profile{
      .name = "measured: " + std::string(comm.transport()) + ", " + std::to_string(P) + (P == 1 ? " rank" : " ranks"),
      .machine = options.assumed.machine,
      .ranks_per_host = g,
      .index_seconds = options.assumed.index_seconds,
      .value_seconds = options.assumed.value_seconds};
  if (options.external_dense) {
    std::array<double, 2> dearest = {options.external_dense->latency, options.external_dense->per_byte};
    allreduce_small(comm, std::span<double>(dearest), Reduction::max, work);
    profile.external_dense = {.latency = dearest[0], .per_byte = dearest[1]};
  }
  const double budget = options.kernels ? options.budget / 2 : options.budget;
  if (options.kernels) measure_kernels(comm, now, budget, options, profile);
  if (g == 1 || g == P) {
    profile.machine = measure_network(comm, comm, now, budget, profile.machine);
    return profile;
  }
  const int rank = comm.rank();
  const auto among = [&](int color) {
    const auto part = comm.split(color, rank);
    return measure_network(comm, *part, now, budget / 3, profile.machine);
  };
  profile.machine = among(rank % g);  // between hosts
  profile.inside = among(rank / g);
  profile.leaders = among(rank % g == 0 ? 0 : 1 + rank);
  return profile;
}

}  // namespace oktopk
