// SPDX-License-Identifier: Apache-2.0
#include "oktopk/model/cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace oktopk {

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
  return *this;
}

Cost sequential(double messages, double bytes, double entries, double values) {
  return {messages, bytes, entries, values, messages, 0};
}

Cost concurrent(double messages, double bytes, double entries, double width) {
  if (messages <= 1) return sequential(messages, bytes, entries);
  return {messages, bytes, entries, 0, width > 0 ? std::ceil(messages / width) : 1, bytes};
}

double seconds(const Cost& cost, const Machine& machine) {
  return cost.rounds * machine.alpha + cost.messages * machine.overhead +
         (cost.bytes + (machine.contention - 1) * cost.scattered) * machine.beta +
         cost.entries * machine.gamma + cost.values * machine.delta;
}

int ceil_log2(int P) { return std::bit_width(static_cast<unsigned>(P) - 1U); }

}  // namespace oktopk
