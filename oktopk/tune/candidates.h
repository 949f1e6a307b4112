// SPDX-License-Identifier: Apache-2.0
// The candidates of preset auto: the predict() of every preset, priced by a profile, the best first. Pure arithmetic of
// values that are equal on all ranks, so all ranks choose alike without a message. dense is always among them; an
// external dense (docs/tuning.md) takes the place of ours in fp32.
#pragma once

#include <string>
#include <vector>

#include "oktopk/comm/skips.h"
#include "oktopk/tune/cost.h"
#include "oktopk/tune/profile.h"

namespace oktopk {

struct Method {
  std::string preset = "circulant";
  Codec codec = {};
  std::string skips = "halving";  // circulant
  int group = 1;                  // ranks that sum densely before the sparse part

  // `base` with this codec and these skips.
  AllreduceOptions options(const AllreduceOptions& base) const;
  friend bool operator==(const Method&, const Method&) = default;
};
// "circulant elias_fano+bf16 skips 64,8,2,1", "dense fp32", "topka coo32+fp32 group 8".
std::string to_string(const Method& method);

struct Candidate {
  Method method;
  Cost cost;                // outside the groups
  double compute = 0;       // seconds over n values: accumulate, and select unless it is dense
  double inside = 0;        // seconds inside the groups
  double seconds = 0;       // of a step in all, with its share of the refreshes
  bool overridden = false;  // an override rule asks for it
  bool external = false;    // the caller makes it
};

// The candidate to take first, then the others by predicted time. Never empty.
std::vector<Candidate> rank_candidates(const Problem& problem, const Profile& profile, const ChoiceOptions& options);

// The best schedule and coding, where `wanted` leaves them open.
Candidate best_of(const PartialMethod& wanted, const Problem& problem, const Profile& profile,
                  const ChoiceOptions& options);

// The price of a method as it is given.
Candidate price(const Method& method, const Problem& problem, const Profile& profile, const ChoiceOptions& options);

// The skip list of least predicted time for a circulant reduce-scatter, by dynamic programming:
//   best(S) = min over T < S of phase(S, T) + best(T),   best(1) = 0,
// where phase(S, T) is the time in which ranks that hold S blocks come to hold T of them (comm/skips.h). COST: O(P^2).
Skips best_skips(const Problem& problem, Codec codec, const Machine& machine);

}  // namespace oktopk
