// SPDX-License-Identifier: Apache-2.0
// Transport "threads": P ranks inside one process. It needs nothing installed. A message is copied once, from the
// sender's buffer into the receiver's, by the side that comes second.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "oktopk/comm/communicator.h"

namespace oktopk {

// The P communicators of a new world, one per rank, each for one thread. When one of them fails or is destroyed with
// exchanges in flight, the waits of all others throw CommError at once, in the world and in the parts split from it; a
// part that dies does not kill the whole. A rank may be destroyed early: only a wait for it fails.
std::vector<std::unique_ptr<Communicator>> make_thread_world(
    int P, Communicator::Duration timeout = Communicator::kDefaultTimeout);

// Runs `body` on P threads, one rank each, and joins them; a rank's communicator ends with its body. If a rank throws,
// the world dies so that the others end promptly, and the first error that is not a consequence is rethrown.
void run_threads(int P, const std::function<void(Communicator&)>& body,
                 Communicator::Duration timeout = Communicator::kDefaultTimeout);

}  // namespace oktopk
