// SPDX-License-Identifier: Apache-2.0
#include "tools/simulate/problem.h"

namespace oktopk {
namespace {

Cuts vote(const SupportSpec& support) {
  std::vector<std::uint64_t> votes(static_cast<std::size_t>(support.P) - 1);
  std::vector<std::uint64_t> sums(votes.size());
  SparseVector selection;
  for (int r = 0; r < support.P; ++r) {
    make_selection(support, r, 0, selection);
    vote_cuts(selection, support.n, support.P, votes);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += votes[i];
  }
  return cuts_from_votes(sums, support.n, support.P);
}

}  // namespace

SimulatedProblem make_problem(const SupportSpec& support, bool voted) {
  SimulatedProblem problem{.n = support.n, .k = support.k};
  const Survey equal = survey(support, 0, equal_cuts(support.n, support.P));
  problem.kth_magnitude = equal.kth_magnitude;
  problem.union_size = equal.union_size;
  problem.equal_unions = equal.region_unions;
  if (voted) {
    problem.cuts = vote(support);
    problem.cut_unions = survey(support, 0, problem.cuts).region_unions;
  }
  return problem;
}

Problem model_of(const SimulatedProblem& p, int P) {
  Problem problem{.n = static_cast<double>(p.n), .k = static_cast<double>(p.k), .P = P};
  problem.union_exponent = problem.exponent_of(static_cast<double>(p.union_size));
  return problem;
}

}  // namespace oktopk
