// SPDX-License-Identifier: Apache-2.0
// Override rules: matching and reading. docs/tuning.md has the grammar.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/skips.h"
#include "oktopk/tune/cost.h"
#include "oktopk/tune/prices.h"

namespace oktopk {
namespace {

using Text = std::string_view;

constexpr std::array<Text, 4> kVariables = {"n", "k", "density", "P"};  // in the order of bounds
constexpr std::array<std::pair<char, double>, 3> kSuffixes = {{{'G', 0x1p30}, {'M', 0x1p20}, {'K', 0x1p10}}};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_digit(char c) { return c >= '0' && c <= '9'; }

Text trimmed(Text text) {
  constexpr Text kSpace = " \t\n\r";
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

// The parts between separators, trimmed.
std::vector<Text> split(Text text, char separator) {
  std::vector<Text> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(trimmed(text.substr(0, end)));
    if (end == Text::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string number_text(double number) {
  for (const auto& [suffix, times] : kSuffixes) {
    const double part = number / times;
    if (part >= 1 && part < 1024 && part == std::floor(part)) return std::to_string(static_cast<int>(part)) + suffix;
  }
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), end};
}

template <class Items, class Name = std::identity>
std::string joined(const Items& items, Text separator, Name name = {}) {
  std::string list;
  for (const auto& item : items) (list += list.empty() ? "" : separator) += std::invoke(name, item);
  return list;
}

std::string text_of(const PartialMethod& m) {
  std::vector<std::string> settings;
  if (m.codec) settings.push_back("codec=" + to_string(*m.codec));
  if (m.skips) settings.push_back("skips=" + *m.skips);
  if (m.group) settings.push_back("group=" + std::to_string(*m.group));
  return settings.empty() ? m.preset : m.preset + '[' + joined(settings, ",") + ']';
}

// Reads one text. The parts of it are views, so an error knows the place.
struct RuleReader {
  Text text;

  [[noreturn]] void fail_at(Text part, Text what) const {
    const auto place = static_cast<std::size_t>(part.data() - text.data());
    const std::string found = place < text.size() ? '"' + std::string(text.substr(place, 12)) + '"' : "the end";
    fail<UsageError>("overrides \"", text, "\", character ", place + 1, " (", found, "): ", what);
  }

  Rule rule(Text part) const {
    Rule rule;
    rule.least.fill(-kInfinity);
    rule.most.fill(kInfinity);
    const std::size_t open = part.find('['), close = part.find(']');
    const std::size_t colon = part.find(':', open < close && close != Text::npos ? close : 0);
    const Text name = trimmed(part.substr(0, std::min(open, colon)));
    if (std::ranges::find(presets(), name, &Preset::name) == presets().end())
      fail_at(name, "expected a preset: " + joined(presets(), ", ", &Preset::name) + "; then '[', ':', ';' or the end");
    rule.method.preset = name;
    if (open < colon) {
      const Text head = trimmed(part.substr(0, colon));
      if (head.back() != ']') fail_at(head.substr(head.size()), "expected ']'");
      read_settings(head.substr(open + 1, head.size() - open - 2), rule.method);
    }
    rule.text = text_of(rule.method);
    if (colon == Text::npos) return rule;
    std::vector<std::string> conditions;
    for (const Text condition : split(part.substr(colon + 1), ','))
      conditions.push_back(read_condition(condition, rule));
    rule.text += ':' + joined(conditions, ",");
    return rule;
  }

  // A part without '=' belongs to the part before it: lists of skips have commas, too.
  void read_settings(Text all, PartialMethod& method) const {
    std::vector<Text> parts;
    for (const Text part : split(all, ',')) {
      if (parts.empty() || part.find('=') != Text::npos)
        parts.push_back(part);
      else
        parts.back() = {parts.back().data(), part.data() + part.size()};
    }
    for (const Text part : parts) {
      const std::size_t equals = std::min(part.find('='), part.size());
      const Text value = trimmed(part.substr(std::min(equals + 1, part.size())));
      try {
        set(method, trimmed(part.substr(0, equals)), std::string(value));
      } catch (const UsageError& error) {
        fail_at(part, error.what());
      }
    }
  }

  static void set(PartialMethod& method, Text name, const std::string& value) {
    const auto set_once = [&](auto& setting, auto&& parsed) {
      require(!setting, name, " is given twice");
      setting = parsed;
    };
    int number = 0;
    const char* end = value.data() + value.size();
    const auto [rest, error] = std::from_chars(value.data(), end, number);
    if (name == "codec") {
      set_once(method.codec, parse_codec(value));
      require(method.preset != "dense" || method.codec->index == IndexCoding::coo32,
              "dense has no indices: expected a coding of values alone");
    } else if (name == "skips") {
      require(method.preset == "circulant", "only circulant has skips, not ", method.preset);
      parse_skips(value, error == std::errc() ? number : 2);  // a list names P itself, a word fits any P
      set_once(method.skips, value);
    } else {
      require(name == "group", "expected codec=, skips= or group=");
      require(error == std::errc() && rest == end && number >= 1, "expected a number of ranks, 1 or more");
      set_once(method.group, number);
    }
  }

  // Narrows the bounds of the rule. Returns the text of the condition.
  std::string read_condition(Text part, Rule& rule) const {
    const std::size_t at = std::min(part.find_first_of("<>="), part.size());
    const auto variable = std::ranges::find(kVariables, trimmed(part.substr(0, at)));
    if (variable == kVariables.end()) fail_at(part, "expected n, k, density or P, then <, <=, >, >= or =");
    if (at == part.size()) fail_at(part.substr(at), "expected <, <=, >, >= or =");
    const Text relation = part.substr(at, part.substr(at + 1).starts_with('=') && part[at] != '=' ? 2 : 1);
    const Text right = part.substr(at + relation.size());
    const std::size_t dots = relation == "=" ? right.find("..") : Text::npos;
    const double x = number(right.substr(0, dots));
    const double rounding = dots == Text::npos ? 1e-9 * x : 0;  // of "=", because a density is a quotient
    const double y = dots == Text::npos ? x : number(right.substr(dots + 2));
    if (y < x) fail_at(right.substr(dots), "the range ends before it begins");
    double& least = rule.least[static_cast<std::size_t>(variable - kVariables.begin())];
    double& most = rule.most[static_cast<std::size_t>(variable - kVariables.begin())];
    if (relation == "<") most = std::min(most, std::nextafter(x, -kInfinity));
    if (relation == "<=") most = std::min(most, x);
    if (relation == ">") least = std::max(least, std::nextafter(x, kInfinity));
    if (relation == ">=") least = std::max(least, x);
    if (relation == "=") {
      least = std::max(least, x - rounding);
      most = std::min(most, y + rounding);
    }
    const std::string end = dots == Text::npos ? "" : ".." + number_text(y);
    return std::string(*variable) + std::string(relation) + number_text(x) + end;
  }

  double number(Text part) const {
    part = trimmed(part);
    const char* end = part.data() + part.size();
    double value = 0;
    const auto [rest, error] = std::from_chars(part.data(), end, value);
    const char last = rest + 1 == end ? static_cast<char>(*rest & ~0x20) : '\0';
    const auto suffix = std::ranges::find(kSuffixes, last, &std::pair<char, double>::first);
    const bool is_all = rest == end || suffix != kSuffixes.end();
    if (part.empty() || !is_digit(part.front()) || error != std::errc() || !is_all)
      fail_at(part, "expected a number, such as 64K or 0.01");
    return suffix == kSuffixes.end() ? value : value * suffix->second;
  }
};

}  // namespace

Overrides Overrides::parse(std::string_view text) {
  Overrides overrides;
  for (const Text part : split(text, ';'))
    if (!part.empty()) overrides.rules.push_back(RuleReader{text}.rule(part));
  return overrides;
}

const Rule* Overrides::match(const Problem& problem) const {
  const double density = problem.n > 0 ? problem.k / problem.n : 0;
  const std::array<double, 4> x = {problem.n, problem.k, density, static_cast<double>(problem.P)};
  const auto found = std::ranges::find_if(rules, [&](const Rule& rule) {
    return std::ranges::equal(rule.least, x, std::less_equal()) && std::ranges::equal(x, rule.most, std::less_equal());
  });
  return found == rules.end() ? nullptr : &*found;
}

std::string to_string(const Overrides& overrides) { return joined(overrides.rules, "; ", &Rule::text); }

Overrides read_overrides(const std::string& file) { return Overrides::parse(read_text(file)); }

}  // namespace oktopk
