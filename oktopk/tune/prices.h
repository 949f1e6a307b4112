// SPDX-License-Identifier: Apache-2.0
// The two halves of calibrate(): timed rounds of messages, and timed kernels of a step.
#pragma once

#include <span>
#include <vector>

#include "oktopk/tune/profile.h"

namespace oktopk {

// Prices of a network, by timed rounds of messages among all ranks at once:
//   small       one message of a few bytes to the rank 1 further, and to the rank P/2 further
//   overhead    the slope over 1, 2, 4, 8 and 16 such messages in one round
//   beta        the slope over one message of 16 KiB ... 1 MiB, at distances 1 and P/2
//   alpha       small - overhead
//   contention  the slope over the bytes of a round in which every rank sends to every other, over beta
// The dearer of two distances counts, the slowest rank of a batch of rounds, the median of the batches, and the median
// slope. Collective over `all`, which agrees on times and on numbers of rounds; the rounds themselves are among `part`,
// all parts at once. Gives alpha, beta, overhead and contention, equal on all ranks of `all`; the rest is 0. All are 0
// where no part has two ranks. COST: about `budget` seconds, 2 MiB.
Machine measure_network(Communicator& all, Communicator& part, const Clock& now, double budget);

// Prices of the processor, while all ranks compute at once, into `profile`:
//   gamma   coo32+fp32 frames of 4 peers' shares (1% of 512 Ki positions) encoded, opened, decoded and summed with this
//           rank's share, per entry of the five
//   index_seconds, value_seconds   time of another coding for the same entries, beyond coo32 and fp32
//   delta   acc += x, per value
//   sigma   the same with the selection of 1% in one pass, per value
// The fastest repetition counts, and the slowest rank. Collective; equal on all ranks. COST: about `budget` seconds,
// and as long again to fill 2 * options.values floats.
void measure_kernels(Communicator& comm, const Clock& now, double budget, const CalibrateOptions& options,
                     Profile& profile);

double median(std::vector<double> values);  // 0 if there are none
// The median of the slopes between all pairs of points (Theil and Sen): any one of five points may be arbitrarily
// wrong. REQUIRES: as many y as x, no two x equal.
double median_slope(std::span<const double> x, std::span<const double> y);

}  // namespace oktopk
