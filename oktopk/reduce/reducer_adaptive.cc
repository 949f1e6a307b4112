// SPDX-License-Identifier: Apache-2.0
// A Reducer's part in an adaptive density (adaptive_density.h): what this rank sent of its
// accumulator, compared with the other ranks.
// COST: every `interval` steps a pass over n that only reads, and ceil(log2 P) messages of 24 B.
#include <array>

#include "oktopk/reduce/reducer.h"

namespace oktopk {

// After the selection, before anything is settled. An accumulator that overflowed was refused
// before: all numbers are finite, and their squares are, in double.
SentShare Reducer::sent_share() const {
  const auto acc = residual_.values();
  const Moments moments = device_->moments(acc);
  const double mean_square = moments.mean * moments.mean + moments.standard_deviation * moments.standard_deviation;
  double sent = 0;
  for (const float x : selection_.val) sent += double{x} * double{x};
  return SentShare::of(sent, mean_square * static_cast<double>(acc.size()));
}

// Collective when it is due, which depends on the number of sparse steps alone.
void Reducer::steer_density() {
  const bool is_due = adaptive_.is_due();
  adaptive_.count();
  if (!is_due) return;
  const SentShare mine = sent_share();
  std::array<std::uint64_t, 2> sum = {mine.units, mine.ranks};
  allreduce_small(comm_, std::span<std::uint64_t>(sum), Reduction::sum, work_);
  const SentShare all{sum[0], sum[1]};
  last_.share = all.mean();
  adaptive_.observe(all);
}

}  // namespace oktopk
