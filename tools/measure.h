// SPDX-License-Identifier: Apache-2.0
// One row of the bench: a preset on one problem, timed beside an in-place axpy, counted and, if asked, checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "oktopk/comm/communicator.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/tune/cost.h"
#include "tools/gradient_stream.h"

namespace oktopk {

struct MeasureOptions {
  ReducerOptions reducer;
  int group = 1;  // of NodeOptions; 1: no nodes
  Index n = 0;
  int warm_up = 200;
  int iterations = 20;
  bool check = false;
  bool fresh = false;  // every step starts with an empty residual and empty owner memory, as no training does
};

struct StepPhase {
  std::string_view name;
  double seconds = 0;
};

// Times: each rank's median over the iterations; then median, least and largest over the ranks. Counts: per step, on
// the rank with most, full-duplex (Traffic); their median over the iterations, which leaves out the rare refresh steps,
// and their mean, which includes them.
struct Row {
  std::string preset;  // "circulant/4": in nodes of four
  double n = 0;
  double k = 0;
  int P = 1;
  double time = 0, time_min = 0, time_max = 0;  // seconds
  double time_deviation = 0;                    // of the median rank: median over the iterations of |time - median|
  double dense_time = 0;                        // step and DenseMean::show: the update as n values
  double axpy_time = 0;                         // n floats in place, on all ranks at once, in turns with the steps
  std::vector<StepPhase> phases;                // "wire" is part of "exchange"
  double dense_reference = 0;                   // time of preset dense; 0: not measured
  double mpi_reference = 0;                     // time of MPI_Allreduce; 0: not measured
  double messages = 0, messages_mean = 0;
  double bytes = 0, bytes_mean = 0;
  double selected = 0;  // entries in the update, median
  Prediction predicted;
  long wrong = -1;  // entries that differ from the oracle; -1: not checked
  std::string detail;

  double words_per_k() const { return k > 0 ? bytes / 4 / k : 0; }
  double words_per_k_mean() const { return k > 0 ? bytes_mean / 4 / k : 0; }
  double effective_bandwidth() const { return time > 0 ? 4 * n / time : 0; }  // bytes/s of dense gradient
  // Relative to the lower bound of Ok-Topk's paper for both phases together: 2k(P-1)/P words of 4 bytes. Coordinates
  // (an entry is two words) take twice that. 0 for one rank.
  double bytes_over_bound() const {
    const double bound = 4 * 2 * k * (P - 1) / P;
    return bound > 0 ? bytes / bound : 0;
  }
  double times_axpy() const { return axpy_time > 0 ? time / axpy_time : 0; }
};

// Collective; the row is complete on rank 0 only. The stream gives this rank's gradients of n values.
Row measure(Communicator& comm, const MeasureOptions& options, GradientStream& stream);

// Collective: MPI_Allreduce of n floats in place, seconds as in Row::time; 0 where there is no MPI.
double measure_mpi_allreduce(Communicator& comm, const MeasureOptions& options, GradientStream& stream);

}  // namespace oktopk
