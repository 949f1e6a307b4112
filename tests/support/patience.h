// SPDX-License-Identifier: Apache-2.0
// The law of fault tolerance ("courage") with short timeouts, on machines that may be busy. A sound exchange of a busy
// machine can take longer than a short timeout, which looks like a fault. A law that is broken is so with a long
// timeout, too: a finding against it counts only if it is found again with ten times the time.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "oktopk/comm/transports.h"
#include "oktopk/laws/laws.h"
#include "tests/support/world.h"

namespace oktopk {

// check(timeout) returns a Finding, the same one on all ranks.
template <class Check>
Finding find_patiently(Communicator::Duration timeout, Check check) {
  const Finding finding = check(timeout);
  return finding.holds ? finding : check(10 * timeout);
}

// Worlds to be ruined, one after the other: check_courage asks for a fresh one per fault. A rank's communicator must be
// made before its peers use theirs, so all worlds are made first.
class FreshWorlds {
 public:
  FreshWorlds(int P, std::size_t count, Communicator::Duration timeout) : used_(static_cast<std::size_t>(P), 0) {
    for (std::size_t i = 0; i < count; ++i) worlds_.push_back(make_thread_world(P, timeout));
  }
  std::unique_ptr<Communicator> take(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    return std::move(worlds_.at(used_[r]++).at(r));
  }

 private:
  std::vector<std::vector<std::unique_ptr<Communicator>>> worlds_;
  std::vector<std::size_t> used_;
};

// Of P ranks that are threads.
inline Finding find_courage(int P, const Trial& trial) {
  return find_patiently(std::chrono::milliseconds(500), [&](Communicator::Duration timeout) {
    FreshWorlds worlds(P, 10, timeout);
    Finding finding;
    run_world("threads", P, [&](Communicator& comm) {
      const Finding found = check_courage(
          comm, [&] { return worlds.take(comm.rank()); }, trial);
      if (comm.rank() == 0) finding = found;
    });
    return finding;
  });
}

}  // namespace oktopk
