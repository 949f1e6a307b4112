// SPDX-License-Identifier: Apache-2.0
// Taking steps back (reducer.h). Copies are cheap enough for every step: the residual is copied as
// it is, and nothing is sealed before it is needed.
#include "oktopk/reduce/reducer.h"

namespace oktopk {

void Reducer::copy_to(Snapshot& snapshot) const {
  snapshot.steps = steps_;
  snapshot.spoilt = spoilt_;
  snapshot.tuner = tuner_;
  snapshot.adaptive = adaptive_;
  snapshot.has_unsent = has_unsent_;
  snapshot.residual.clear();
  if (has_unsent_) {
    const auto residual = residual_.values();
    snapshot.residual.assign(residual.begin(), residual.end());
  }
  snapshot.rest = {};
  selector_->save(snapshot.rest);
  allreduce_->save(snapshot.rest);
  snapshot.rest.put_all(memory().values);
}

void Reducer::go_back(const Snapshot& snapshot) {
  const Bytes rest = snapshot.rest.seal();
  StateReader state(rest);
  Parts parts = make_parts(snapshot.tuner);
  parts.selector->load(state);
  parts.allreduce->load(state, n(), comm_.rank(), comm_.size());
  parts.allreduce->load_memory(state.take_all<float>());
  state.finish();
  steps_ = snapshot.steps;
  spoilt_ = snapshot.spoilt;
  adaptive_ = snapshot.adaptive;
  has_unsent_ = snapshot.has_unsent;
  has_unsent_ ? residual_.assign(snapshot.residual) : residual_.clear();
  replace(std::move(parts));
  if (measured_ && !tuner_->is_calibrated()) use(*measured_);  // nobody measures again
}

}  // namespace oktopk
