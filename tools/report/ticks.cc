// SPDX-License-Identifier: Apache-2.0
#include "tools/report/ticks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace oktopk {
namespace {

constexpr double kSlack = 1e-9;  // of a step: what rounding may cost an end of the axis its tick

int exponent_of(double value) { return static_cast<int>(std::floor(std::log10(std::abs(value)) + kSlack)); }

std::string without_trailing_zeros(std::string number) {
  if (number.find('.') == std::string::npos) return number;
  number.erase(number.find_last_not_of('0') + 1);
  if (number.back() == '.') number.pop_back();
  return number;
}

// Ticks of one axis have the same decimals (0.5, 1.0) where no suffix or exponent is needed.
std::string tick_label(double value, double step, double largest) {
  if (value == 0) return "0";
  const int step_exponent = exponent_of(step);
  if (largest < 1000 && step_exponent >= -3) return fmt::format("{:.{}f}", value, std::max(0, -step_exponent));
  return format_value(value, std::clamp(exponent_of(value) - step_exponent + 1, 1, 15));
}

struct Mantissas {
  std::vector<int> labelled;
  int every = 1;  // of the decades
  bool minor = true;
};

std::size_t count_in(const std::vector<int>& mantissas, double lo, double hi) {
  std::size_t count = 0;
  for (int e = exponent_of(lo); e <= exponent_of(hi); ++e)
    for (const int m : mantissas) {
      const double value = m * std::pow(10.0, e);
      count += value >= lo * (1 - kSlack) && value <= hi * (1 + kSlack);
    }
  return count;
}

// As few labels as can be read as logarithmic, and not more than fit.
Mantissas choose_mantissas(double lo, double hi) {
  const auto decades = static_cast<int>(count_in({1}, lo, hi));
  if (decades > 8) return {.labelled = {1}, .every = static_cast<int>(nice_step(decades, 7)), .minor = false};
  if (decades >= 3) return {.labelled = {1}, .minor = decades <= 6};
  if (count_in({1, 2, 5}, lo, hi) >= 3) return {.labelled = {1, 2, 5}};
  return {.labelled = {1, 2, 3, 4, 5, 6, 7, 8, 9}};
}

}  // namespace

std::string format_value(double value, int digits) {
  if (std::isnan(value)) return "n/a";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  if (value == 0) return "0";
  // The exponent after rounding: 999,999 with four digits is 1M and not 1000k.
  const std::string rounded = fmt::format("{:.{}e}", value, digits - 1);
  const std::size_t e = rounded.find('e');
  const int exponent = std::atoi(rounded.c_str() + e + 1);
  constexpr std::string_view kSuffixes = "kMGTPE";
  if (exponent < -3 || exponent >= 21)
    return fmt::format("{}e{}", without_trailing_zeros(rounded.substr(0, e)), exponent);
  const int thousands = std::max(0, exponent / 3);
  const std::string number =
      fmt::format("{:.{}f}", value / std::pow(1000.0, thousands), std::max(0, digits - 1 - exponent + 3 * thousands));
  return without_trailing_zeros(number) + (thousands > 0 ? std::string(1, kSuffixes[thousands - 1]) : std::string());
}

double nice_step(double span, int target) {
  const double power = std::pow(10.0, exponent_of(span / target));
  for (const double factor : {1.0, 2.0, 5.0})
    if (span <= target * factor * power * (1 + kSlack)) return factor * power;
  return 10 * power;
}

std::vector<Tick> linear_ticks(double lo, double hi, double step) {
  const double largest = std::max(std::abs(lo), std::abs(hi));
  std::vector<Tick> ticks;
  const double last = std::floor(hi / step + kSlack);
  for (double i = std::ceil(lo / step - kSlack); i <= last; ++i)
    ticks.push_back({i * step, tick_label(i * step, step, largest)});
  return ticks;
}

std::vector<Tick> log_ticks(double lo, double hi) {
  const Mantissas chosen = choose_mantissas(lo, hi);
  if (count_in(chosen.labelled, lo, hi) < 3) return linear_ticks(lo, hi, nice_step(hi - lo, 5));
  std::vector<Tick> ticks;
  for (int e = exponent_of(lo); e <= exponent_of(hi); ++e) {
    for (int m = 1; m <= (chosen.minor ? 9 : 1); ++m) {
      const double value = m * std::pow(10.0, e);
      if (value < lo * (1 - kSlack) || value > hi * (1 + kSlack)) continue;
      const auto& labelled = chosen.labelled;
      const bool label = std::count(labelled.begin(), labelled.end(), m) > 0;
      if (e % chosen.every == 0)
        ticks.push_back({value, label ? format_value(value) : ""});
      else if (chosen.every <= 5)
        ticks.push_back({value, ""});
    }
  }
  return ticks;
}

}  // namespace oktopk
