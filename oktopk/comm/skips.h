// SPDX-License-Identifier: Apache-2.0
// Circulant schedules: a skip list P = s0 > s1 > ... > sm = 1 gives a reduce-scatter (and, run backwards, an allgather)
// for any P. In phase (S, T), for j >= 1 with j*T < S, rank i sends blocks [j*T, min((j+1)*T, S)) to rank i+j*T and
// receives as many blocks from i-j*T; block d of rank i belongs to region (i+d) mod P. Every contribution moves along
// one path and is added once. COST: sum of ceil(S/T)-1 messages. Halving is Traeff's circulant reduce-scatter
// (ceil(log2 P) rounds); direct (P, 1) is Ok-Topk's split-and-reduce.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace oktopk {

using Skips = std::vector<int>;  // P first, 1 last, strictly decreasing; {1} for P = 1

Skips direct_skips(int P);            // P, 1
Skips halving_skips(int P);           // P, ceil(P/2), ceil(P/4), ..., 1
Skips power_skips(int P);             // P, 2^m, ..., 4, 2, 1 with 2^m < P (SparDL's bags)
Skips radix_skips(int P, int radix);  // P, ceil(P/r), ceil(P/r^2), ..., 1
Skips grid_skips(int P);              // P, ceil(sqrt P), 1

// "direct", "halving", "power", "grid", "radix:R" or an explicit list such as "8,4,2,1" (its P must match). Throws
// UsageError that names the text and the rule.
Skips parse_skips(std::string_view text, int P);
std::string to_string(const Skips& skips);
void check_skips(const Skips& skips, int P);

// One message of a phase: blocks [first, first + count) go to rank + shift (mod P).
struct Hop {
  int shift;
  int first;
  int count;
};
struct Phase {
  int from_blocks;  // S: blocks held before
  int to_blocks;    // T: blocks held after
  std::vector<Hop> hops;
};
std::vector<Phase> circulant_phases(const Skips& skips);
int message_count(const Skips& skips);

}  // namespace oktopk
