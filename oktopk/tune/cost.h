// SPDX-License-Identifier: Apache-2.0
// The alpha-beta-gamma model: what one allreduce costs. Pure arithmetic. An algorithm's
// predict(Problem) is the only home of its formula; docs, bench, tuner and tests all call it.
#pragma once

#include <cstddef>

namespace oktopk {

// One step's task, as all ranks know it.
struct Problem {
  double n = 0;
  double k = 0;         // entries that each rank sends
  double gathered = 0;  // entries of the result; 0: as many as k
  int P = 1;
  // The union curve u(m): m ranks' selections overlap like those of m^union_exponent ranks that
  // select at random. 1: independent, 0: identical.
  double union_exponent = 1;
  bool disjoint = false;  // instead: no two ranks select the same index (the worst case)
  // A step that re-evaluates thresholds and cuts (oktopk every tau and tau', circulant on demand).
  bool refresh = false;

  double result() const { return gathered > 0 ? gathered : k; }
  double union_of(double ranks) const;  // entries in the union of that many ranks' selections
  // The inverse: the exponent of u(P) = k_union entries, in [0, 1].
  double exponent_of(double k_union) const;
};

// Per rank, on its critical path. Bytes are duplex: the larger of sent and received, exchange by
// exchange.
struct Cost {
  double messages = 0;
  double bytes = 0;
  double entries = 0;    // sparse entries that are coded and merged, those held at home included
  double values = 0;     // dense values that arrive: each is added or stored
  double rounds = 0;     // exchanges one after the other; a round may have many messages
  double scattered = 0;  // those of `bytes` that move in rounds with several peers at once
  double following = 0;  // those of `scattered` that are not in the first message of their round

  Cost& operator+=(const Cost& other);
  friend Cost operator+(Cost a, const Cost& b) { return a += b; }
};

// Messages that follow one another, with bytes in all.
Cost sequential(double messages, double bytes, double entries = 0, double values = 0);
// Messages to several peers, `width` of them at a time.
Cost concurrent(double messages, double bytes, double entries = 0, double width = 0);

// `expected`: uniformly random supports, unless the problem says otherwise. `bound`: no step of
// this problem exceeds it.
struct Prediction {
  Cost expected;
  Cost bound;
};

// What the network and the processor charge, in seconds.
struct Machine {
  double alpha = 0;       // per round: a message's latency
  double beta = 0;        // per byte and direction, while all ranks exchange in pairs
  double gamma = 0;       // per sparse entry that goes into a merge
  double overhead = 0;    // per message: the processor's share; half of it the sender's
  double contention = 1;  // beta is so many times larger while everyone talks to everyone
  double delta = 0;       // per dense value
  double sigma = 0;       // per gradient value that is accumulated and selected from
};

// While one message of a round is on the wire, the processor sends the next: of the two the longer
// counts.
double seconds(const Cost& cost, const Machine& machine);

int ceil_log2(int P);  // 0 for P = 1

}  // namespace oktopk
