// SPDX-License-Identifier: Apache-2.0
// The times of a member's link to the arbiter (member.cc) and of the server that has the arbiter (server.cc). The
// simulation of faults (tests/faults) runs with the same ones.
#pragma once

#include "oktopk/comm/communicator.h"

namespace oktopk::rendezvous {

// A member says that it is here so often, for each 64 members.
inline constexpr Communicator::Duration kWordPause = std::chrono::milliseconds(250);
// It pauses for so long between two tries to reach the arbiter: first, and at most.
inline constexpr Communicator::Duration kFirstPause = std::chrono::milliseconds(20);
inline constexpr Communicator::Duration kLongestPause = std::chrono::milliseconds(500);
// An arbiter that has not answered for so long is tried again over a new connection.
inline constexpr Communicator::Duration kReplyTime = std::chrono::seconds(5);

// The server waits for events for so long at most. Half a handshake is dropped at its deadline, without an event.
inline constexpr Communicator::Duration kTurn = std::chrono::milliseconds(250);
// A turn that took so much longer: the process was stopped.
inline constexpr Communicator::Duration kStall = std::chrono::seconds(1);
// How long a member that waits gets no answer: it then asks again, and knows that the server is there.
inline constexpr Communicator::Duration kHold = std::chrono::milliseconds(200);

}  // namespace oktopk::rendezvous
