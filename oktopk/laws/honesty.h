// SPDX-License-Identifier: Apache-2.0
// Law 4: counted messages and bytes against predict() of n, k, P and the options alone. Only one flag of the run enters
// the bound: whether a step says that it refreshed something. check_steps() judges a few steps, each by its flag.
// check_volume() judges streams with error feedback: no step takes more bytes than one that refreshes, and the mean
// step takes no more than one that does not, so refreshes must be rare.
#pragma once

#include <span>
#include <string>

#include "oktopk/comm/decorators.h"
#include "oktopk/laws/inputs.h"
#include "oktopk/laws/laws.h"
#include "oktopk/laws/subject.h"
#include "oktopk/tune/cost.h"

namespace oktopk {

// How the large entries of the data lie over the regions: bounds assume evenly filled ones.
enum class Spread {
  even,    // a rank exceeds a bound by chance only
  uneven,  // the mean over the ranks does not exceed it
  tied,    // equal magnitudes: where a threshold decides, no count is controlled
};
Spread spread_of(Input data);

// The bounds of a run's cost.
struct VolumePromise {
  Prediction steady;   // a step that refreshes nothing
  Prediction refresh;  // a step that refreshes all there is
  double k = 0;
  int P = 1;
  bool holds_bytes = true;     // Allreduce::promises_volume()
  double slack = 1;            // factor of the bound of a stream's mean
  bool sized_by_count = true;  // the size of a frame depends on its count alone, not on the gaps between indices
};
VolumePromise promise_of(const Subject& subject, const ReducerOptions& options);

enum class Judged { steps, stream };

class Honesty {
 public:
  Honesty(const VolumePromise& promise, Spread spread, Judged judged)
      : promise_(promise), spread_(spread), judged_(judged) {}

  // Adds the next step: the counts of each rank, and whether the step says that it refreshed something.
  void add(std::span<const Traffic> ranks, bool refreshed);

  // The finding of all steps so far. The detail is the first violation or, where bytes are not judged, the observed
  // words.
  Finding finding(const std::string& law);

 private:
  template <class... Parts>
  void violate(const Parts&... parts);
  void judge_bytes(std::span<const Traffic> ranks, double bound);
  void judge_mean();
  std::string seen() const;
  double words(double bytes) const { return bytes / (4 * std::max(1.0, promise_.k)); }

  VolumePromise promise_;
  Spread spread_;
  Judged judged_;
  int steps_ = 0;
  double sent_ = 0;  // bytes, by the mean rank, in all steps
  double most_ = 0;  // bytes, by the mean rank, in one step
  std::string broken_;
};

}  // namespace oktopk
