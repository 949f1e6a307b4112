// SPDX-License-Identifier: Apache-2.0
#include "oktopk/model/cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace oktopk {

double Problem::union_of(double ranks) const {
  return std::min(k * std::pow(std::max(1.0, ranks), union_exponent), n);
}

Cost& Cost::operator+=(const Cost& other) {
  messages += other.messages;
  bytes += other.bytes;
  reduced += other.reduced;
  return *this;
}

double seconds(const Cost& cost, const Machine& machine) {
  return cost.messages * machine.alpha + cost.bytes * machine.beta + cost.reduced * machine.gamma;
}

int ceil_log2(int P) { return std::bit_width(static_cast<unsigned>(P) - 1U); }

}  // namespace oktopk
