// SPDX-License-Identifier: Apache-2.0
#include "oktopk/laws/truth.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <vector>

#include "oktopk/allreduce/parts/thresholds.h"
#include "oktopk/sparse/slots_format.h"

namespace oktopk {
namespace {

double at(const Entries& x, Index i) {
  const auto entry = x.find(i);
  return entry == x.end() ? 0.0 : entry->second;
}

// The error of a sum under a lossy codec: relative to the magnitudes of its terms and, because a logarithmic block may
// round its smallest values to zero, relative to the largest sum.
struct Tolerance {
  double relative;
  double of_largest;
};
Tolerance codec_tolerance(ValueCoding coding) {
  switch (coding) {
    case ValueCoding::fp32:
      return {0, 0};
    case ValueCoding::bf16:
      return {0.02, 0};
    case ValueCoding::log8:
      return {0.1, 0.02};
    case ValueCoding::log4:
      return {0.6, 0.2};
  }
  return {0, 0};
}

// A value that preset slots sent.
double as_sent(double x) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
  return std::bit_cast<float>(slots::float_bits_of(slots::value_of(bits)));
}

}  // namespace

void oracle_add(Entries& a, const Entries& b) {
  for (const auto& [i, v] : b) {
    const double sum = static_cast<float>(a[i] + v);
    sum != 0 ? void(a[i] = sum) : void(a.erase(i));
  }
}

Entries oracle_sum(std::span<const Entries> ranks) {
  Entries sum;
  for (const Entries& x : ranks) oracle_add(sum, x);
  return sum;
}

Entries oracle_top(const Entries& x, std::size_t k) {
  std::vector<std::pair<Index, double>> order(x.begin(), x.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return std::fabs(a.second) > std::fabs(b.second); });
  order.resize(std::min(k, order.size()));
  return {order.begin(), order.end()};
}

Entries oracle_at_least(const Entries& x, double threshold) {
  Entries out = x;
  std::erase_if(out, [&](const auto& entry) { return std::fabs(entry.second) < threshold; });
  return out;
}

double oracle_kth(const Entries& x, std::size_t k) {
  double smallest = 0;
  for (const auto& [i, v] : oracle_top(x, k))
    smallest = smallest == 0 ? std::fabs(v) : std::min(smallest, std::fabs(v));
  return smallest;
}

Entries oracle_gtopk(std::span<const Entries> selections, std::size_t k) {
  std::vector<Entries> kept;
  for (const Entries& s : selections) kept.push_back(oracle_top(s, k));
  for (std::size_t stride = 1; stride < kept.size(); stride *= 2)
    for (std::size_t r = 0; r + stride < kept.size(); r += 2 * stride) {
      oracle_add(kept[r], kept[r + stride]);
      kept[r] = oracle_top(kept[r], k);
    }
  return kept[0];
}

Entries oracle_spardl(std::span<const Entries> selections, Index n, std::size_t k) {
  const std::size_t P = selections.size();
  const std::size_t quota = (k + P - 1) / P;
  const auto cut = [&](std::size_t r) { return static_cast<Index>(std::uint64_t{n} * r / P); };
  // held[i][d]: what rank i has for region i + d.
  std::vector<std::vector<Entries>> held(P);
  for (std::size_t i = 0; i < P; ++i)
    for (std::size_t d = 0; d < P; ++d) {
      const std::size_t r = (i + d) % P;
      held[i].emplace_back(selections[i].lower_bound(cut(r)), selections[i].lower_bound(cut(r + 1)));
    }
  std::size_t bag = 1;
  while (bag * 2 < P) bag *= 2;
  for (std::size_t S = P; S > 1; S = bag, bag /= 2) {
    for (auto& blocks : held)
      for (std::size_t d = bag; d < S; ++d) blocks[d] = oracle_top(blocks[d], quota);
    for (std::size_t i = 0; i < P; ++i)
      for (std::size_t d = bag; d < S; ++d) oracle_add(held[(i + bag) % P][d - bag], held[i][d]);
  }
  Entries out;
  for (std::size_t i = 0; i < P; ++i) oracle_add(out, oracle_top(held[i][0], quota));
  return out;
}

std::size_t Truth::wrong(Index i, double is, double should) {
  if (detail_.empty()) {
    std::ostringstream text;
    text << "[" << i << "] is " << is << ", should be " << should;
    detail_ = text.str();
  }
  return 1;
}

std::size_t Truth::check(const StepRecord& record, std::uint64_t step) {
  Entries sum = oracle_sum(record.selections);
  oracle_add(sum, record.memory);
  Entries magnitude;
  for (const Entries& s : record.selections)
    for (const auto& [i, v] : s) magnitude[i] += std::fabs(v);
  for (const auto& [i, v] : record.memory) magnitude[i] += std::fabs(v);
  Entries slack;
  if (tolerance_ > 0)
    for (const auto& [i, m] : magnitude) slack[i] = tolerance_ * m;

  const std::string_view name = allreduce_.name();
  if (!allreduce_.codec().lossless()) return check_lossy(record, sum, magnitude);
  if (name == "gtopk") return compare(record.update, oracle_gtopk(record.selections, k_), slack);
  if (name == "spardl") return compare(record.update, oracle_spardl(record.selections, n_, k_), slack);
  if (name == "oktopk") return check_oktopk(record, sum, slack, step);
  if (name == "circulant") return check_circulant(record, sum, slack);
  if (name == "slots") return check_slots(record);
  return compare(record.update, sum, slack);
}

std::size_t Truth::compare(const Entries& update, const Entries& expected, const Entries& slack) {
  std::size_t count = 0;
  for (const auto& [i, v] : update)
    if (std::fabs(v - at(expected, i)) > at(slack, i)) count += wrong(i, v, at(expected, i));
  for (const auto& [i, v] : expected)
    if (!update.contains(i) && std::fabs(v) > at(slack, i)) count += wrong(i, 0, v);
  return count;
}

// The entries of the update must be the largest sums, however many they are.
std::size_t Truth::check_largest(const Entries& update, const Entries& sum, const Entries& slack) {
  const Entries expected = oracle_top(sum, update.size());
  if (tolerance_ == 0) return compare(update, expected, slack);
  double smallest = std::numeric_limits<double>::infinity();
  for (const auto& [i, v] : update) smallest = std::min(smallest, std::fabs(v));
  std::size_t count = 0;
  for (const auto& [i, v] : update)
    if (std::fabs(v - at(sum, i)) > at(slack, i)) count += wrong(i, v, at(sum, i));
  for (const auto& [i, v] : sum)
    if (!update.contains(i) && std::fabs(v) > smallest + at(slack, i)) count += wrong(i, 0, v);
  return count;
}

std::size_t Truth::check_oktopk(const StepRecord& record, const Entries& sum, const Entries& slack,
                                std::uint64_t step) {
  const AllreduceOptions& options = allreduce_.options();
  std::size_t errors = 0;
  if (options.thresholds == ThresholdRule::steered) {  // the count stays in a band around k
    const auto count = static_cast<double>(record.update.size());
    const auto most = static_cast<double>(std::min(k_, sum.size()));
    const double band = SumThreshold::most_gathered(static_cast<double>(k_)) - static_cast<double>(k_);
    if (std::fabs(count - most) > band) errors += wrong(0, count, most);
    return errors + check_largest(record.update, sum, slack);
  }
  const bool evaluated = step % static_cast<std::uint64_t>(options.tau_prime) == 0 || too_few_ || threshold_ == 0;
  if (evaluated) threshold_ = oracle_kth(sum, k_);
  if (evaluated) too_few_ = sum.size() < k_;
  const bool is_known = options.thresholds == ThresholdRule::paper && threshold_ >= 0;
  if (tolerance_ > 0 || !is_known) return check_largest(record.update, sum, slack);
  return compare(record.update, evaluated ? oracle_top(sum, k_) : oracle_at_least(sum, threshold_), slack);
}

// The threshold is steered, so the count is at most k; just after an evaluation it is k.
std::size_t Truth::check_circulant(const StepRecord& record, const Entries& sum, const Entries& slack) {
  const std::size_t most = std::min(k_, sum.size());
  const std::size_t count = record.update.size();
  std::size_t errors = 0;
  if (count > most || (record.refreshed && count != most))
    errors += wrong(0, static_cast<double>(count), static_cast<double>(most));
  return errors + check_largest(record.update, sum, slack);
}

// Values travel with 12 leading bits, to the owner and from it. An owner applies its largest sums, unless its share
// is full; where a message was full, a sum may lack a sender.
std::size_t Truth::check_slots(const StepRecord& record) {
  const auto deal = slots::Deal::of(n_, static_cast<std::uint32_t>(record.selections.size()));
  const std::size_t room = slots::message_room(deal, k_);
  const auto is_full = [&](const Entries& entries, std::uint32_t owner) {
    std::size_t count = 0;
    std::map<std::uint64_t, std::size_t> in_block;
    for (const auto& [i, v] : entries)
      if (deal.owner(i) == owner) ++count, ++in_block[deal.place(i) / slots::kBlock];
    const auto most = std::ranges::max_element(in_block, {}, [](const auto& b) { return b.second; });
    return count >= room || (most != in_block.end() && most->second >= slots::kMostOfBlock);
  };
  Entries sum = record.memory;
  for (const Entries& sent : record.selections)
    for (const auto& [i, v] : sent) sum[i] += as_sent(v);
  std::vector<double> least(deal.P, std::numeric_limits<double>::infinity());
  std::vector<bool> is_whole(deal.P), is_exact(deal.P);
  for (std::uint32_t q = 0; q < deal.P; ++q) {
    is_exact[q] = std::ranges::none_of(record.selections, [&](const Entries& sent) { return is_full(sent, q); });
    is_whole[q] = is_exact[q] && !is_full(record.update, q);
  }
  std::size_t count = 0;
  for (const auto& [i, v] : record.update) {
    const std::uint32_t q = deal.owner(i);
    least[q] = std::min(least[q], std::fabs(v));
    const double should = as_sent(at(sum, i));
    const double slack = tolerance_ > 0 ? std::fabs(should) / 1024 : 0;
    if (!sum.contains(i) || (is_exact[q] && std::fabs(v - should) > slack)) count += wrong(i, v, should);
  }
  constexpr double kRounding = 1.0 / 2048;
  for (const auto& [i, v] : sum) {
    const std::uint32_t q = deal.owner(i);
    const bool is_missing = is_whole[q] && !record.update.contains(i);
    if (is_missing && std::fabs(v) > least[q] * (1 + kRounding)) count += wrong(i, 0, v);
  }
  return count;
}

std::size_t Truth::check_lossy(const StepRecord& record, const Entries& sum, const Entries& magnitude) {
  const bool dense = allreduce_.is_dense();  // with any lossy codec, bf16
  const Tolerance tolerance = codec_tolerance(dense ? ValueCoding::bf16 : allreduce_.codec().value);
  double largest = 0;
  for (const auto& [i, v] : sum) largest = std::max(largest, std::fabs(v));
  const bool applies_union = dense || residual_rule(allreduce_.options().residual).takes_union;
  std::size_t count = 0;
  for (const auto& [i, v] : record.update)
    if (!magnitude.contains(i)) count += wrong(i, v, 0);
  for (const auto& [i, m] : magnitude) {
    const double u = at(record.update, i);
    if (applies_union && std::fabs(u - at(sum, i)) > tolerance.relative * m + tolerance.of_largest * largest)
      count += wrong(i, u, at(sum, i));
  }
  return count;
}

}  // namespace oktopk
