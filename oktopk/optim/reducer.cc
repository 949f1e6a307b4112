// SPDX-License-Identifier: Apache-2.0
#include "oktopk/optim/reducer.h"

#include <algorithm>
#include <cmath>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

std::size_t entries_per_step(Index n, const ReducerOptions& options) {
  if (n == 0) return 0;
  if (options.k == 0) {
    require(options.density > 0 && options.density <= 1, "reducer: density = ", options.density,
            ", but it must be in (0, 1]");
    return std::max<std::size_t>(1, static_cast<std::size_t>(std::lround(options.density * n)));
  }
  require(options.k <= n, "reducer: k = ", options.k, ", but k must be in 1..n with n = ", n);
  return options.k;
}

}  // namespace

Reducer::Reducer(Communicator& comm, Index n, const ReducerOptions& options)
    : comm_(comm),
      k_(entries_per_step(n, options)),
      device_(make_cpu_device()),
      residual_(n, 0.0F) {
  const Preset& preset = find_preset(options.preset);
  selector_ = make_selector(options.selector.value_or(preset.selector),
                            {.tau_prime = options.allreduce.tau_prime, .P = comm.size()});
  allreduce_ = make_allreduce(preset, options.allreduce);
  allreduce_->check_ranks(comm.size());
  rule_ = make_residual_rule(allreduce_->options().residual);
}

const Outcome& Reducer::step(std::span<const float> gradient, float scale) {
  allreduce_->agree(comm_, n(),
                    k_);  // before the gradient is added: a refused step leaves no trace
  if (allreduce_->is_dense()) {
    accumulate_all(gradient, scale);
  } else {
    selector_->select(*device_, {residual_, gradient, scale}, k_, selection_);
  }
  allreduce_->run(comm_, *device_, {selection_, residual_}, n(), k_, outcome_);
  rule_->settle(*device_, residual_, selection_, outcome_);
  return outcome_;
}

void Reducer::accumulate_all(std::span<const float> gradient, float scale) {
  require(gradient.empty() || gradient.size() == residual_.size(), "reducer: the gradient has ",
          gradient.size(), " entries, but n = ", residual_.size());
  const std::size_t bad = device_->first_nonfinite(gradient);
  require(bad == gradient.size(), "reducer: gradient[", bad, "] is not finite");
  require(std::isfinite(scale), "reducer: scale = ", scale, ", but it must be finite");
  if (!gradient.empty()) device_->accumulate(residual_, gradient, scale);
  const std::size_t overflow = device_->first_nonfinite(residual_);
  if (overflow == residual_.size()) return;
  forget();  // dense leaves no residual, so there is nothing else to keep
  fail<UsageError>("reducer: scale * gradient overflowed at index ", overflow);
}

void Reducer::forget() {
  std::fill(residual_.begin(), residual_.end(), 0.0F);
  allreduce_->forget();
}

}  // namespace oktopk
