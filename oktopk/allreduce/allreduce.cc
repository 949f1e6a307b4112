// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/allreduce.h"

#include <array>
#include <cmath>
#include <sstream>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/base/version.h"
#include "oktopk/comm/flight.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

using Statement = std::array<std::uint64_t, 3>;  // n, k, fingerprint

// All that must be equal on all ranks besides n and k.
std::string settings(std::string_view name, const AllreduceOptions& o) {
  std::ostringstream text;
  text << name << ' ' << to_string(o.codec.value_or(Codec{})) << ' ' << o.skips << ' ' << static_cast<int>(o.residual)
       << ' ' << o.tau << ' ' << static_cast<int>(o.thresholds) << ' ' << o.tau_prime << ' ' << o.bucket << ' '
       << o.balance_trigger << ' ' << static_cast<int>(o.dense);
  return text.str();
}

std::uint32_t step_tag(const Statement& statement, std::uint64_t step) {
  return static_cast<std::uint32_t>(hash_bytes(std::as_bytes(std::span(statement)), step));
}

void check(const Contribution& mine, Index n, std::size_t k, bool dense, std::size_t most) {
  require(n == 0 ? k == 0 : (k >= 1 && k <= n), "allreduce: k = ", k, ", but k must be in 1..n with n = ", n);
  if (dense) {
    require(mine.dense.size() == n, "allreduce: a dense algorithm needs all n = ", n, " values, got ",
            mine.dense.size());
    return;
  }
  const CooView v = mine.selection;
  require(v.size() <= most, "allreduce: the selection has ", v.size(), " entries, but k = ", k, " allows at most ",
          most);
  require(is_canonical(v), "allreduce: the selection's indices must be strictly increasing");
  require(v.empty() || v.idx.back() < n, "allreduce: the selection has index ", v.empty() ? 0 : v.idx.back(),
          ", but n = ", n);
}

// Values that are not finite count as the largest, so a selection has one if the accumulator has any.
void check_finite(const Device& device, const Contribution& mine, bool dense) {
  const CooView sent = mine.selection;
  const std::size_t bad = dense ? device.first_nonfinite(mine.dense) : first_nonfinite(sent.val);
  if (bad == (dense ? mine.dense.size() : sent.size())) return;
  const std::size_t i = dense ? bad : sent.idx[bad];
  require(!mine.gradient.empty(), "allreduce: the value at index ", i, " is not finite, or the accumulator overflowed");
  fail<UsageError>("allreduce: ", describe_nonfinite(device, mine.gradient, i));
}

// Decoded values are finite already. This finds overflow in sums that every rank computes by itself.
void check_sum(std::string_view algorithm, const Contribution& mine, const Outcome& out) {
  const std::size_t bad = first_nonfinite(out.update.val);
  if (bad < out.update.size()) fail_overflow(algorithm, out.update.idx[bad]);
  if (mine.checks_sum) return;
  const std::size_t dense = first_nonfinite(out.dense_update);
  if (dense < out.dense_update.size()) fail_overflow(algorithm, dense);
}

}  // namespace

void fail_overflow(std::string_view algorithm, std::size_t i) {
  fail<SumOverflow>(algorithm, ": the sum over the ranks overflowed at index ", i, ": scale the gradients down");
}

std::string describe_nonfinite(const Device& device, Gradient gradient, std::size_t i) {
  const std::string at = std::to_string(i);
  const float value = i < gradient.size() ? value_at(device, gradient, i) : 0;
  return std::isfinite(value) ? "the accumulator overflowed at index " + at + ": scale the gradient down"
                              : "gradient[" + at + "] = " + std::to_string(value) + ", but all entries must be finite";
}

void Allreduce::run(Communicator& comm, const Device& device, const Contribution& mine, Index n, std::size_t k,
                    Outcome& out) {
  check(mine, n, k, is_dense(), most_selected(k));
  check_finite(device, mine, is_dense());
  agree(comm, n, k);
  out.update.clear();
  out.dense_update.clear();
  out.dense_returned.clear();
  out.returned.clear();
  out.held.clear();
  out.dropped.clear();
  out.refreshed = steps_ == 0;
  out.arrived = out.merged = 0;
  const Statement statement = {n, k, fingerprint_};
  const FlightLabel label(comm, name());
  try {
    do_run({comm, device, mine, n, k, codec(), step_tag(statement, steps_), steps_}, out);
  } catch (const UsageError& error) {
    // This rank's own values were checked before, so the value that cannot be sent is a sum.
    comm.kill();
    fail<UsageError>(name(), ": a sum over the ranks overflowed: scale the gradients down (", error.what(), ")");
  } catch (...) {
    comm.kill();  // the ranks are no longer in step
    throw;
  }
  check_sum(name(), mine, out);
  out.shared.clear();
  if (residual_rule(options_.residual).needs_shared) intersect(mine.selection, out.update.idx, out.shared);
  make_canonical(out.returned, runs_);
  make_canonical(out.held, runs_);
  make_canonical(out.dropped, runs_);
  ++steps_;
  OKTOPK_DCHECK(is_canonical(out.update));
}

void Allreduce::agree(Communicator& comm, Index n, std::size_t k, std::string_view caller_options,
                      std::string_view call) {
  if (agreed_) {
    require(n == n_, "allreduce: n = ", n, ", but this object's first step had n = ", n_);
    return;
  }
  check_ranks(comm.size());
  const std::string mine = settings(name(), options_);
  fingerprint_ = hash_text(mine);
  std::ostringstream text;
  text << "library " << library_version() << ", wire format " << kWireVersion << ", call " << call << ", n = " << n
       << ", k = " << k << ", " << caller_options << ", preset and options " << mine;
  require_equal(comm, "allreduce", text.str(), work_);
  agreed_ = true;
  n_ = n;
}

void Allreduce::note_changes() {
  before_ = {};
  save(before_);
  do_note_changes();
}

void Allreduce::forget_changes() { do_forget_changes(); }

void Allreduce::undo_changes(const Device& device, Index n, int rank, int P) {
  const Bytes before = before_.seal();
  StateReader state(before);
  load(state, n, rank, P);
  do_undo_changes(device);
}

void Allreduce::load_memory(const Device& /*device*/, std::span<const float> values) {
  require(values.empty(), "state: ", values.size(), " values of owner memory, but ", name(), " remembers none");
}

void Allreduce::save(StateWriter& state) const {
  state.put(steps_);
  if (steps_ > 0) do_save(state);
}

void Allreduce::load(StateReader& state, Index n, int rank, int P) {
  steps_ = state.take<std::uint64_t>();
  if (steps_ > 0) do_load(state, n, rank, P);
}

}  // namespace oktopk
