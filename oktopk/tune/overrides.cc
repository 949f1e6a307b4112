// SPDX-License-Identifier: Apache-2.0
// Override rules: matching and reading. docs/tuning.md has the grammar.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/skips.h"
#include "oktopk/tune/prices.h"

namespace oktopk {
namespace {

using Text = std::string_view;

constexpr std::array<Text, 4> kVariables = {"n", "k", "density", "P"};  // in the order of Variable
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

template <class Items>
std::string joined(const Items& items, Text separator) {
  std::string list;
  for (const auto& item : items) (list += list.empty() ? "" : separator) += item;
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
    const std::size_t open = part.find('['), close = part.find(']');
    const std::size_t colon = part.find(':', open < close && close != Text::npos ? close : 0);
    const Text name = trimmed(part.substr(0, std::min(open, colon)));
    if (std::ranges::find(presets(), name, &Preset::name) == presets().end()) {
      std::vector<Text> known;
      for (const Preset& preset : presets()) known.push_back(preset.name);
      fail_at(name, "expected a preset: " + joined(known, ", ") + "; then '[', ':', ';' or the end");
    }
    rule.method.preset = name;
    if (open < colon) {
      const Text head = trimmed(part.substr(0, colon));
      if (head.back() != ']') fail_at(head.substr(head.size()), "expected ']'");
      settings(head.substr(open + 1, head.size() - open - 2), rule.method);
    }
    rule.text = text_of(rule.method);
    if (colon == Text::npos) return rule;
    for (const Text condition : split(part.substr(colon + 1), ',')) {
      rule.text += rule.conditions.empty() ? ':' : ',';
      rule.conditions.push_back(read_condition(condition, rule.text));
    }
    return rule;
  }

  // A part without '=' belongs to the part before it: lists of skips have commas, too.
  void settings(Text all, PartialMethod& method) const {
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

  // Adds its text to `written`.
  Rule::Condition read_condition(Text part, std::string& written) const {
    const std::size_t at = std::min(part.find_first_of("<>="), part.size());
    const auto variable = std::ranges::find(kVariables, trimmed(part.substr(0, at)));
    if (variable == kVariables.end()) fail_at(part, "expected n, k, density or P, then <, <=, >, >= or =");
    if (at == part.size()) fail_at(part.substr(at), "expected <, <=, >, >= or =");
    const Text relation = part.substr(at, part.substr(at + 1).starts_with('=') && part[at] != '=' ? 2 : 1);
    const Text right = part.substr(at + relation.size());
    const std::size_t dots = relation == "=" ? right.find("..") : Text::npos;
    const double x = number(right.substr(0, dots));
    written += std::string(*variable) + std::string(relation) + number_text(x);
    Rule::Condition condition{static_cast<Rule::Variable>(variable - kVariables.begin()), -kInfinity, kInfinity};
    if (relation == "<") condition.most = std::nextafter(x, -kInfinity);
    if (relation == "<=") condition.most = x;
    if (relation == ">") condition.least = std::nextafter(x, kInfinity);
    if (relation == ">=") condition.least = x;
    if (relation == "=") {  // up to rounding, because a density is a quotient
      condition.least = x - 1e-9 * x;
      condition.most = x + 1e-9 * x;
    }
    if (dots == Text::npos) return condition;
    condition.least = x;
    condition.most = number(right.substr(dots + 2));
    if (condition.most < x) fail_at(right.substr(dots), "the range ends before it begins");
    written += ".." + number_text(condition.most);
    return condition;
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
    if (!part.empty()) overrides.rules_.push_back(RuleReader{text}.rule(part));
  return overrides;
}

const Rule* Overrides::match(const Problem& problem) const {
  const double density = problem.n > 0 ? problem.k / problem.n : 0;
  const std::array values = {problem.n, problem.k, density, static_cast<double>(problem.P)};  // in order of Variable
  const auto holds = [&](const Rule::Condition& c) {
    const double value = values[static_cast<std::size_t>(c.variable)];
    return c.least <= value && value <= c.most;
  };
  const auto found =
      std::ranges::find_if(rules_, [&](const Rule& rule) { return std::ranges::all_of(rule.conditions, holds); });
  return found == rules_.end() ? nullptr : &*found;
}

std::string to_string(const Overrides& overrides) {
  std::vector<std::string_view> texts;
  for (const Rule& rule : overrides.rules()) texts.push_back(rule.text);
  return joined(texts, "; ");
}

Overrides read_overrides(const std::string& file) { return Overrides::parse(read_text(file)); }

}  // namespace oktopk
