// SPDX-License-Identifier: Apache-2.0
// Which preset, schedule and coding a problem should be solved with: every candidate's predict(),
// priced by a profile, the best first. Pure arithmetic of values that are equal on all ranks, so
// all ranks choose alike without a message. dense (fp32 and, if allowed, bf16) is always among
// them. An external dense is one in fp32 that the caller makes himself, such as the all_reduce of a
// torch process group: it takes the place of ours, which has no way to be faster.
#pragma once

#include <string>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/tune/overrides.h"
#include "oktopk/tune/profile.h"

namespace oktopk {

// What a choice fixes.
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
  double compute = 0;       // seconds over n: accumulate and select, or accumulate
  double inside = 0;        // seconds inside the groups
  double seconds = 0;       // of a step, all together; a refresh shared among the steps it serves
  bool overridden = false;  // a rule of the user's asks for it
  bool external = false;    // the caller makes it
};

struct ChoiceOptions {
  std::vector<std::string> presets = {};     // besides dense; empty: all with predictable counts
  ValueCoding coarsest = ValueCoding::bf16;  // that the wire may carry
  AllreduceOptions allreduce = {};           // tau, residual rule and the rest
  bool external_dense = false;               // the caller makes dense steps in fp32 himself
  bool groups = false;                       // also node-sum-first, at profile.ranks_per_host
  double preference = 0.03;                  // circulant and dense win over others that are faster by less
  bool review = true;                        // false: no review after the first choice, so that two runs agree bitwise
  Overrides overrides = {};                  // the first rule that matches comes first, whatever it takes
};

// The one to take first, then by predicted time. Never empty.
std::vector<Candidate> rank_candidates(const Problem& problem, const Profile& profile, const ChoiceOptions& options);

// The best schedule and coding of one preset; or of what a rule leaves open.
Candidate best_of(const std::string& preset, const Problem& problem, const Profile& profile,
                  const ChoiceOptions& options);
Candidate best_of(const PartialMethod& wanted, const Problem& problem, const Profile& profile,
                  const ChoiceOptions& options);

// A method as it is given, priced.
Candidate price(const Method& method, const Problem& problem, const Profile& profile, const ChoiceOptions& options);

}  // namespace oktopk
