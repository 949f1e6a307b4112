// SPDX-License-Identifier: Apache-2.0
// What a network charges, by timed rounds of messages among all ranks at once:
//
//   small      one message of a few bytes to the rank 1, and to the rank P/2 further
//   overhead   the slope over 1, 2, 4, 8 and 16 such messages in one round
//   beta       the slope over one message of 16 KiB ... 1 MiB, likewise at distances 1 and P/2
//   alpha      small - overhead
//   contention the slope over the bytes of a round in which everyone sends to everyone, over beta
//
// Of two distances the dearer counts; of the ranks' times of a batch of rounds, the longest; of the
// batches the median; of slopes the median over all pairs of points. COST: about `budget` seconds,
// 2 MiB.
#pragma once

#include "oktopk/comm/communicator.h"
#include "oktopk/tune/cost.h"
#include "oktopk/tune/robust.h"

namespace oktopk {

// Collective over `all`, which agrees on times and on the number of rounds; the rounds themselves
// are among `part`, all parts at once. Gives alpha, beta, overhead and contention, equal on all
// ranks of `all`; the rest is 0. All 0 where no part has two ranks.
Machine measure_network(Communicator& all, Communicator& part, const Clock& now, double budget);

}  // namespace oktopk
