// SPDX-License-Identifier: Apache-2.0
// The alpha-beta-gamma cost model: pure arithmetic. An algorithm's predict(Problem) is the only home of its cost
// formula; the docs, the benchmark, the tuner and the tests all call it. A Machine (profile.h) prices a Cost.
#pragma once

namespace oktopk {

struct Machine;

// The task of one step, as all ranks know it.
struct Problem {
  double n = 0;
  double k = 0;         // entries that each rank sends
  double gathered = 0;  // entries of the result; 0: as many as k
  int P = 1;
  // The union curve u(m): the selections of m ranks overlap like those of m^union_exponent ranks that select at random.
  // 1: independent selections, 0: identical ones.
  double union_exponent = 1;
  bool disjoint = false;  // instead: no two ranks select the same index (the worst case)
  // This step re-evaluates thresholds and cuts (oktopk: every tau and tau'; circulant: on demand).
  bool refresh = false;

  double result() const { return gathered > 0 ? gathered : k; }
  double union_of(double ranks) const;       // u(ranks), in entries
  double exponent_of(double k_union) const;  // the union_exponent in [0, 1] for which u(P) = k_union
};

// Per rank, on its critical path. Bytes are duplex: the larger of sent and received, exchange by exchange.
struct Cost {
  double messages = 0;
  double bytes = 0;
  double entries = 0;    // sparse entries that are coded and merged, including those of this rank
  double values = 0;     // dense values that arrive: each is added or stored
  double rounds = 0;     // exchanges one after the other; a round may have many messages
  double scattered = 0;  // part of `bytes`: moves in rounds with several peers at once
  double following = 0;  // part of `scattered`: not in the first message of its round

  Cost& operator+=(const Cost& other);
  friend Cost operator+(Cost a, const Cost& b) { return a += b; }
};

// Messages one after the other, with `bytes` in all.
Cost sequential(double messages, double bytes, double entries = 0, double values = 0);
// Messages to several peers, `width` of them at a time; 0: all at once.
Cost concurrent(double messages, double bytes, double entries = 0, double width = 0);

// `expected`: random supports, unless the problem says otherwise. `bound`: no step of this problem costs more.
struct Prediction {
  Cost expected;
  Cost bound;
};

// While one message of a round is on the wire, the processor sends the next one: the longer of the two times counts.
double seconds(const Cost& cost, const Machine& machine);

int ceil_log2(int P);  // 0 for P = 1

// Node-sum-first (reduce/node_reducer.h), inside one node, on the leader's path: the dense sum of n values to the
// leader, then the result to all ranks of the node along a binomial tree, as entries in two frames or as n values.
// Short vectors, and those of two ranks, are summed along a tree; others by a reduce-scatter and a gather.
bool node_sums_by_tree(double n, int ranks);
Cost node_sum_cost(double n, int ranks);
Cost node_share_entries_cost(double entries, int ranks);
Cost node_share_values_cost(double n, int ranks);

}  // namespace oktopk
