// SPDX-License-Identifier: Apache-2.0
// The law of fault tolerance ("courage") with short timeouts, on machines that may be busy. A sound exchange of a busy
// machine can take longer than a short timeout, which looks like a fault. A law that is broken is so with a long
// timeout, too: a finding against it counts only if it is found again with ten times the time.
#pragma once

#include <chrono>

#include "oktopk/laws/laws.h"
#include "tests/support/fresh_worlds.h"
#include "tests/support/world.h"

namespace oktopk {

// check(timeout) returns a Finding, the same one on all ranks.
template <class Check>
Finding find_patiently(Communicator::Duration timeout, Check check) {
  const Finding finding = check(timeout);
  return finding.holds ? finding : check(10 * timeout);
}

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
