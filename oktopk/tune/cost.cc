// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "oktopk/codec/frame.h"
#include "oktopk/tune/profile.h"

namespace oktopk {
namespace {

constexpr double kShort = 4096;  // a vector of so many values costs messages rather than bytes

}  // namespace

double Problem::union_of(double ranks) const {
  if (disjoint) return std::min(k * std::max(1.0, ranks), n);
  if (k <= 0 || k >= n) return std::min(k, n);
  const double independent = std::pow(std::max(1.0, ranks), union_exponent);
  return -n * std::expm1(independent * std::log1p(-k / n));
}

double Problem::exponent_of(double k_union) const {
  if (P < 2 || k <= 0 || k >= n || k_union <= k) return 0;
  if (k_union >= n) return 1;
  const double independent = std::log1p(-k_union / n) / std::log1p(-k / n);
  return std::clamp(std::log(independent) / std::log(P), 0.0, 1.0);
}

Cost& Cost::operator+=(const Cost& other) {
  messages += other.messages;
  bytes += other.bytes;
  entries += other.entries;
  values += other.values;
  rounds += other.rounds;
  scattered += other.scattered;
  following += other.following;
  return *this;
}

Cost sequential(double messages, double bytes, double entries, double values) {
  return {.messages = messages, .bytes = bytes, .entries = entries, .values = values, .rounds = messages};
}

Cost concurrent(double messages, double bytes, double entries, double width) {
  if (messages <= 1) return sequential(messages, bytes, entries);
  const double rounds = width > 0 ? std::ceil(messages / width) : 1;
  return {.messages = messages,
          .bytes = bytes,
          .entries = entries,
          .rounds = rounds,
          .scattered = bytes,
          .following = bytes * (1 - rounds / messages)};
}

double seconds(const Cost& cost, const Machine& machine) {
  const double sending = (cost.messages - cost.rounds) * machine.overhead / 2;
  const double overlap = std::clamp(sending, 0.0, cost.following * machine.contention * machine.beta);
  return cost.rounds * machine.alpha + cost.messages * machine.overhead +
         (cost.bytes + (machine.contention - 1) * cost.scattered) * machine.beta - overlap +
         cost.entries * machine.gamma + cost.values * machine.delta;
}

int ceil_log2(int P) { return std::bit_width(static_cast<unsigned>(P) - 1U); }

bool node_sums_by_tree(double n, int ranks) { return ranks == 2 || n <= kShort; }

Cost node_sum_cost(double n, int ranks) {
  const double messages = ceil_log2(ranks);
  if (node_sums_by_tree(n, ranks)) return sequential(messages, messages * 4 * n, 0, messages * n);
  const double others = n * (ranks - 1) / ranks;
  return sequential(messages, 4 * others, 0, others) + concurrent(ranks - 1, 4 * others) + Cost{.values = others};
}

Cost node_share_entries_cost(double entries, int ranks) {
  const double messages = ceil_log2(ranks);
  const auto head = static_cast<double>(frame_head_bytes({}, static_cast<std::size_t>(std::ceil(entries))));
  return sequential(messages, messages * (2 * head + 8 * entries), entries);
}

Cost node_share_values_cost(double n, int ranks) {
  const double messages = ceil_log2(ranks);
  return sequential(messages, messages * 4 * n, 0, n);
}

}  // namespace oktopk
