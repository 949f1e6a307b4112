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
  // The supports of m ranks overlap: their union has k * min(m^union_exponent, n/k) entries.
  // 1: disjoint (the worst case), 0: identical.
  double union_exponent = 1;
  // A step that re-evaluates thresholds and cuts (oktopk every tau and tau', circulant on demand).
  bool refresh = false;

  double result() const { return gathered > 0 ? gathered : k; }
  double union_of(double ranks) const;  // entries in the union of that many ranks' selections
};

// Per rank, on its critical path. Bytes are duplex: the larger of sent and received, exchange by
// exchange. `reduced` counts entries that are merged.
struct Cost {
  double messages = 0;
  double bytes = 0;
  double reduced = 0;

  Cost& operator+=(const Cost& other);
  friend Cost operator+(Cost a, const Cost& b) { return a += b; }
};

// `expected`: uniformly random supports. `bound`: no step of this problem exceeds it.
struct Prediction {
  Cost expected;
  Cost bound;
};

struct Machine {
  double alpha = 0;  // seconds per message
  double beta = 0;   // seconds per byte
  double gamma = 0;  // seconds per merged entry
};

double seconds(const Cost& cost, const Machine& machine);

int ceil_log2(int P);  // 0 for P = 1

}  // namespace oktopk
