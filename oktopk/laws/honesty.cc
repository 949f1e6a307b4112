// SPDX-License-Identifier: Apache-2.0
#include "oktopk/laws/honesty.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/thresholds.h"
#include "oktopk/reduce/reducer_options.h"

namespace oktopk {
namespace {

// The comparison of n, k and options in the first run.
Cost agreement_cost(int P) { return sequential(ceil_log2(P), (P - 1.0) * kAgreementBytes); }

// The selectors exact, quota and controlled trim to k.
bool may_send_more_than_k(const ReducerOptions& options) {
  const std::string_view name = selector_of(options, find_preset(options.preset), options.allreduce);
  return name == "reused" || name == "gaussian";
}

// The most entries of a result that is not the union; 0: the number that predict() assumes.
double most_in_result(const Allreduce& allreduce, double k, double leaders) {
  const std::string_view name = allreduce.name();
  if (name == "circulant") return k;
  if (name == "oktopk" && allreduce.promises_volume()) return SumThreshold::most_gathered(k);
  if (name == "spardl") return leaders * std::ceil(k / leaders);  // k/P of each region, rounded up
  return 0;
}

}  // namespace

Spread spread_of(Input data) {
  switch (data) {
    case Input::gaussian:
    case Input::laplace:
    case Input::dyadic:
      return Spread::even;
    case Input::tied:
    case Input::equal:
      return Spread::tied;
    default:
      return Spread::uneven;
  }
}

VolumePromise promise_of(const Subject& subject, const ReducerOptions& options) {
  const auto allreduce = make_allreduce(find_preset(options.preset), options.allreduce);
  const auto k = static_cast<double>(subject.k());
  const bool in_nodes = subject.leaders().size() < static_cast<std::size_t>(subject.sync().comm().size());
  Problem problem{.n = static_cast<double>(subject.n()),
                  .k = may_send_more_than_k(options) ? 2 * k : k,
                  .P = subject.sync().comm().size()};
  problem.gathered = most_in_result(*allreduce, k, static_cast<double>(subject.leaders().size()));
  // Messages of slots have one size, but inside a node the leader shares all that it selected, which nothing bounds.
  const bool holds_bytes = allreduce->promises_volume() && (allreduce->name() != "slots" || !in_nodes);
  VolumePromise promise{.k = k, .P = problem.P, .holds_bytes = holds_bytes};
  promise.sized_by_count = options.allreduce.codec.value_or(Codec{}).index == IndexCoding::coo32;
  promise.steady = subject.predict(problem);
  problem.refresh = true;
  promise.refresh = subject.predict(problem);
  return promise;
}

// Keeps the first violation.
template <class... Parts>
void Honesty::violate(const Parts&... parts) {
  if (!broken_.empty()) return;
  std::ostringstream text;
  (text << ... << parts);
  broken_ = text.str();
}

void Honesty::add(std::span<const Traffic> ranks, bool refreshed) {
  Cost bound = refreshed ? promise_.refresh.bound : promise_.steady.bound;
  if (steps_ == 0) bound += agreement_cost(promise_.P);
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  for (const Traffic& t : ranks) {
    if (static_cast<double>(t.duplex_messages) > bound.messages)
      violate("step ", steps_, ": ", t.duplex_messages, " messages, predicted ", bound.messages);
    sent += t.bytes_sent;
    received += t.bytes_received;
  }
  if (sent != received) violate("step ", steps_, ": ", sent, " bytes sent, ", received, " received");
  // A stream may change in any step, and only the gathered counts tell.
  const double refreshing = promise_.refresh.bound.bytes - promise_.steady.bound.bytes;
  const bool is_excused = judged_ == Judged::stream && !refreshed;
  if (promise_.holds_bytes) judge_bytes(ranks, bound.bytes + (is_excused ? refreshing : 0));
  const double mean = static_cast<double>(sent) / promise_.P;
  sent_ += mean;
  most_ = std::max(most_, mean);
  ++steps_;
}

// With uneven regions, a rank may have no entry in its own region; it then sends its whole selection instead of all but
// one part in P.
void Honesty::judge_bytes(std::span<const Traffic> ranks, double bound) {
  const double P = promise_.P;
  if (P < 2 || spread_ == Spread::tied) return;
  double sent = 0;
  double largest = 0;
  for (const Traffic& t : ranks) {
    sent += static_cast<double>(t.bytes_sent);
    largest = std::max(largest, static_cast<double>(t.duplex_bytes));
  }
  // The number of entries that a rank sends in ceil(log2 P) rounds varies by its root: 8 standard deviations of 8 B
  // each.
  const double rounds = ceil_log2(promise_.P);
  const double chance = 8 * (8 * std::sqrt(promise_.k * rounds) + 4 * P);
  if (spread_ == Spread::even && largest > bound + chance)
    violate("step ", steps_, ": ", largest, " bytes, predicted ", bound);
  if (sent / P > bound * P / (P - 1) + chance)
    violate("step ", steps_, ": ", sent / P, " bytes on average, predicted ", bound);
}

void Honesty::judge_mean() {
  if (spread_ == Spread::tied || (spread_ == Spread::uneven && !promise_.sized_by_count)) return;
  const double P = promise_.P;
  const double once = agreement_cost(promise_.P).bytes / steps_;
  const double rounding = 4 * P;  // predict() has the mean size of a coded frame
  const double even = spread_ == Spread::even ? 1 : P / (P - 1);
  const double bound = promise_.slack * promise_.steady.bound.bytes * even;
  if (sent_ / steps_ > bound + once + rounding)
    violate("mean of ", steps_, " steps: ", sent_ / steps_, " bytes (", words(sent_ / steps_),
            " words per k), predicted ", bound + once);
}

std::string Honesty::seen() const {
  std::ostringstream text;
  text << std::setprecision(3) << words(sent_ / steps_) << " words per k on average, at most " << words(most_)
       << ", none promised";
  return text.str();
}

Finding Honesty::finding(const std::string& law) {
  const bool has_bytes = promise_.P > 1 && promise_.k > 0 && steps_ > 0;
  if (has_bytes && promise_.holds_bytes && judged_ == Judged::stream) judge_mean();
  if (!broken_.empty()) return {law, false, broken_};
  return {law, true, has_bytes && !promise_.holds_bytes ? seen() : ""};
}

}  // namespace oktopk
