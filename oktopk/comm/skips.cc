// SPDX-License-Identifier: Apache-2.0
// Skip lists and the messages they stand for (skips.h). Local arithmetic, no communication.
#include "oktopk/comm/skips.h"

#include <algorithm>
#include <charconv>
#include <functional>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

int ceil_div(int a, int b) { return a / b + (a % b != 0 ? 1 : 0); }

void check_size(int P) { require(P >= 1, "skips: a world of size ", P, ", must be at least 1"); }

// The whole of `text` as a number, or UsageError that shows `all`.
int parse_number(std::string_view text, std::string_view all) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  require(error == std::errc() && end == text.data() + text.size(), "skips \"", all, "\": \"", text,
          "\" is not a number; expected direct, halving, power, grid, radix:R or a list such as 8,4,2,1");
  return number;
}

}  // namespace

Skips radix_skips(int P, int radix) {
  check_size(P);
  require(radix >= 2, "skips: radix ", radix, ", must be at least 2");
  Skips skips{P};
  while (skips.back() > 1) skips.push_back(ceil_div(skips.back(), radix));
  return skips;
}

Skips halving_skips(int P) { return radix_skips(P, 2); }

Skips direct_skips(int P) {
  check_size(P);
  return P == 1 ? Skips{1} : Skips{P, 1};
}

Skips power_skips(int P) {
  check_size(P);
  Skips skips{P};
  int power = 1;
  while (power <= (P - 1) / 2) power *= 2;
  for (; power >= 1 && power < P; power /= 2) skips.push_back(power);
  return skips;
}

Skips grid_skips(int P) {
  check_size(P);
  int root = 1;
  while (root < ceil_div(P, root)) ++root;
  return root < P && root > 1 ? Skips{P, root, 1} : direct_skips(P);
}

Skips parse_skips(std::string_view text, int P) {
  if (text == "direct") return direct_skips(P);
  if (text == "halving") return halving_skips(P);
  if (text == "power") return power_skips(P);
  if (text == "grid") return grid_skips(P);
  constexpr std::string_view kRadix = "radix:";
  if (text.starts_with(kRadix)) return radix_skips(P, parse_number(text.substr(kRadix.size()), text));
  Skips skips;
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    skips.push_back(parse_number(rest.substr(0, comma), text));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  check_skips(skips, P);
  return skips;
}

std::string to_string(const Skips& skips) {
  std::string text;
  for (const int skip : skips) text += text_of(text.empty() ? "" : ",", skip);
  return text;
}

void check_skips(const Skips& skips, int P) {
  check_size(P);
  require(!skips.empty() && skips.front() == P, "skips \"", to_string(skips), "\": the first must be the world's size ",
          P);
  require(skips.back() == 1, "skips \"", to_string(skips), "\": the last must be 1");
  const bool decreasing = std::adjacent_find(skips.begin(), skips.end(), std::less_equal<>()) == skips.end();
  require(decreasing, "skips \"", to_string(skips), "\": must be strictly decreasing");
}

std::vector<Phase> circulant_phases(const Skips& skips) {
  check_skips(skips, skips.empty() ? 1 : skips.front());
  std::vector<Phase> phases;
  for (std::size_t i = 0; i + 1 < skips.size(); ++i) {
    const int S = skips[i];
    const int T = skips[i + 1];
    Phase phase{S, T, {}};
    for (int first = T; first < S; first += T) phase.hops.push_back({first, first, std::min(T, S - first)});
    phases.push_back(std::move(phase));
  }
  return phases;
}

int message_count(const Skips& skips) {
  int messages = 0;
  for (std::size_t i = 0; i + 1 < skips.size(); ++i) messages += ceil_div(skips[i], skips[i + 1]) - 1;
  return messages;
}

}  // namespace oktopk
