// SPDX-License-Identifier: Apache-2.0
// What a step did on this rank, in numbers: what monitoring plots over a training run
// (docs/observability.md). metrics() of Reducer and BucketedReducer fill it when asked, in O(k);
// what is unsent is Synchroniser::unsent_norm(), a pass over n of its own.
#pragma once

#include <cstdint>
#include <string>

#include "oktopk/reduce/synchroniser.h"

namespace oktopk {

// Of the last step, or of a flush(), which is a dense step. After a step that threw, or before the
// first one: zeros, but for n, dense_bytes, preset, and times as far as it came.
struct StepMetrics {
  std::uint64_t step = 0;       // training steps made, this one included; skipped ones do not count
  std::uint64_t n = 0;          // values of the gradient
  std::uint64_t k = 0;          // entries aimed at: of the warm-up's stage, or k; n in a dense step
  std::uint64_t selected = 0;   // entries that this rank sent: about k, at most 2k; 0 if dense
  std::uint64_t gathered = 0;   // entries of the update, equal on all ranks; n if dense
  double local_threshold = 0;   // smallest magnitude that this rank sent; 0 if dense or none
  double global_threshold = 0;  // smallest |sum over the ranks| of the update; 0 if dense or none
  // Share of the accumulators' squared norm that was sent, mean over the ranks. 0 unless the
  // density is adaptive and the ranks compared it in this step.
  double share = 0;
  std::uint64_t messages = 0;    // sent by this rank in this step; not those of an external dense
  std::uint64_t wire_bytes = 0;  // their bytes; a calibration's splits (first step, auto) excluded
  double dense_bytes = 0;        // what a dense allreduce of floats would send: 2n(P-1)/P * 4
  StepTimes times;               // seconds on this rank
  std::string preset;            // in force: auto's choice
  bool refreshed = false;        // thresholds or cuts were evaluated anew, by extra messages
  bool is_dense = false;         // all n values were exchanged: preset dense, warm-up or flush
  bool skipped = false;          // left out: some rank's gradient was not finite

  // What is known as a step ends: what this rank selected, and the messages that it took.
  void note(std::uint64_t steps, CooView selection, const Update& update, MessageCount sent) {
    step = steps;
    selected = selection.size();
    gathered = update.size();
    messages = sent.messages;
    wire_bytes = sent.bytes;
    is_dense = update.is_dense();
    skipped = update.skipped;
  }
};

}  // namespace oktopk
