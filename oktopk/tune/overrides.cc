// SPDX-License-Identifier: Apache-2.0
// Override rules: matching, reading and writing. Reading is a recursive descent over the grammar in profile.h.
#include "oktopk/tune/profile.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/skips.h"
#include "oktopk/tune/cost.h"

namespace oktopk {
namespace {

constexpr std::array<std::string_view, 4> kVariables = {"n", "k", "density", "P"};   // in the order of Variable
constexpr std::array<std::string_view, 5> kRelations = {"<=", ">=", "<", ">", "="};  // "<=" before "<"
constexpr std::array<std::string_view, 3> kSettings = {"codec", "skips", "group"};
constexpr std::array<std::pair<char, double>, 3> kSuffixes = {{{'G', 0x1p30}, {'M', 0x1p20}, {'K', 0x1p10}}};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_of_name(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_setting(std::string_view name) { return std::ranges::find(kSettings, name) != kSettings.end(); }

void add_item(std::string& list, std::string_view separator, const std::string& item) {
  if (!list.empty()) list += separator;
  list += item;
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

int parse_group(const std::string& text) {
  int group = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, group);
  require(error == std::errc() && rest == end && group >= 1, "expected a number of ranks, 1 or more");
  return group;
}

// A list of skips names P itself; a word fits any P.
std::string checked_skips(const std::string& text) {
  int P = 2;
  if (!text.empty() && is_digit(text.front())) std::from_chars(text.data(), text.data() + text.size(), P);
  parse_skips(text, P);
  return text;
}

void set(PartialMethod& method, std::string_view name, const std::string& value) {
  const auto set_once = [&](auto& setting, auto&& parsed) {
    require(!setting, name, " is given twice");
    setting = parsed;
  };
  if (name == "codec") {
    set_once(method.codec, parse_codec(value));
    require(method.preset != "dense" || method.codec->index == IndexCoding::coo32,
            "dense has no indices: expected a coding of values alone");
  } else if (name == "skips") {
    require(method.preset == "circulant", "only circulant has skips, not ", method.preset);
    set_once(method.skips, checked_skips(value));
  } else {
    set_once(method.group, parse_group(value));
  }
}

// Reads rules from the front to the back.
class RuleReader {
 public:
  explicit RuleReader(std::string_view text) : text_(text) {}

  std::vector<Rule> rules() {
    std::vector<Rule> rules;
    for (skip_space(); at_ < text_.size(); skip_space()) {
      rules.push_back(rule());
      if (at_ < text_.size() && !accept(";"))
        expected(rules.back().conditions.empty() ? "'[', ':', ';' or the end" : "',', ';' or the end");
    }
    return rules;
  }

 private:
  [[noreturn]] void fail_at(std::size_t place, std::string_view what) const {
    const bool is_end = place >= text_.size();
    const std::string_view quote = is_end ? "" : "\"";
    fail<UsageError>("overrides \"", text_, "\", character ", place + 1, " (", quote,
                     is_end ? "the end" : text_.substr(place, 12), quote, "): ", what);
  }
  [[noreturn]] void expected(const std::string& what) const { fail_at(at_, "expected " + what); }

  char at(std::size_t place) const { return place < text_.size() ? text_[place] : '\0'; }
  void skip_space() {
    while (is_space(at(at_))) ++at_;
  }
  bool accept(std::string_view token) {
    skip_space();
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    skip_space();
    return true;
  }
  std::string_view name_at(std::size_t from) const {
    std::size_t end = from;
    while (is_of_name(at(end))) ++end;
    return text_.substr(from, end - from);
  }

  Rule rule() {
    Rule rule;
    const std::string_view name = name_at(at_);
    std::string known;
    for (const Preset& preset : presets()) add_item(known, ", ", std::string(preset.name));
    if (std::ranges::none_of(presets(), [&](const Preset& p) { return p.name == name; }))
      expected("a preset: " + known);
    rule.method.preset = name;
    at_ += name.size();
    if (accept("[")) {
      do setting(rule.method);
      while (accept(","));
      if (!accept("]")) expected("',' or ']'");
    }
    if (accept(":")) {
      do rule.conditions.push_back(condition());
      while (accept(","));
    }
    return rule;
  }

  void setting(PartialMethod& method) {
    const std::size_t start = at_;
    const std::string_view name = name_at(at_);
    at_ += name.size();
    if (!is_setting(name) || !accept("=")) {
      at_ = start;
      expected("codec=, skips= or group=");
    }
    const std::size_t place = at_;
    try {
      set(method, name, setting_value());
    } catch (const UsageError& error) {
      fail_at(place, error.what());
    }
  }

  // Ends before ']' or before the comma of the next setting: lists of skips have commas, too.
  std::string setting_value() {
    const std::size_t start = at_;
    for (; at_ < text_.size() && at(at_) != ']' && at(at_) != ';'; ++at_) {
      if (at(at_) != ',') continue;
      std::size_t next = at_ + 1;
      while (is_space(at(next))) ++next;
      if (is_setting(name_at(next))) break;
    }
    std::string value(text_.substr(start, at_ - start));
    while (!value.empty() && is_space(value.back())) value.pop_back();
    return value;
  }

  Condition condition() {
    const std::string_view name = name_at(at_);
    const auto variable = std::ranges::find(kVariables, name);
    if (variable == kVariables.end()) expected("n, k, density or P");
    at_ += name.size();
    const auto relation = std::ranges::find_if(kRelations, [&](std::string_view r) { return accept(r); });
    if (relation == kRelations.end()) expected("<, <=, >, >= or =");
    Condition condition{static_cast<Variable>(variable - kVariables.begin()), -kInfinity, kInfinity};
    set_bounds(*relation, condition);
    return condition;
  }

  void set_bounds(std::string_view relation, Condition& condition) {
    const double x = number();
    condition.text = std::string(relation) + number_text(x);
    if (relation == "<") condition.most = std::nextafter(x, -kInfinity);
    if (relation == "<=") condition.most = x;
    if (relation == ">") condition.least = std::nextafter(x, kInfinity);
    if (relation == ">=") condition.least = x;
    if (relation != "=") return;
    condition.least = x - 1e-9 * x;  // up to rounding, because a density is a quotient
    condition.most = x + 1e-9 * x;
    const std::size_t place = at_;
    if (!accept("..")) return;
    condition.least = x;
    condition.most = number();
    condition.text += ".." + number_text(condition.most);
    if (condition.most < x) fail_at(place, "the range ends before it begins");
  }

  double number() {
    if (!is_digit(at(at_))) expected("a number, such as 64K or 0.01");
    const char* begin = text_.data() + at_;
    const std::string_view rest = text_.substr(at_);
    double value = 0;
    // The first of two dots is no decimal point.
    const auto [end, error] = std::from_chars(begin, begin + std::min(rest.find(".."), rest.size()), value);
    if (error != std::errc()) expected("a number that is not too large or small");
    at_ += static_cast<std::size_t>(end - begin);
    for (const auto& [suffix, times] : kSuffixes)
      if ((at(at_) & ~0x20) == suffix) {
        value *= times;
        ++at_;
        break;
      }
    if (is_of_name(at(at_))) expected("K, M, G or the end of the number");
    return value;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

Overrides Overrides::parse(std::string_view text) {
  Overrides overrides;
  overrides.rules_ = RuleReader(text).rules();
  return overrides;
}

const Rule* Overrides::match(const Problem& problem) const {
  const double density = problem.n > 0 ? problem.k / problem.n : 0;
  const std::array values = {problem.n, problem.k, density,
                             static_cast<double>(problem.P)};  // in the order of Variable
  const auto holds = [&](const Condition& c) {
    const double value = values[static_cast<std::size_t>(c.variable)];
    return c.least <= value && value <= c.most;
  };
  const auto matches = [&](const Rule& rule) { return std::ranges::all_of(rule.conditions, holds); };
  const auto found = std::ranges::find_if(rules_, matches);
  return found == rules_.end() ? nullptr : &*found;
}

std::string to_string(const Condition& condition) {
  return std::string(kVariables[static_cast<std::size_t>(condition.variable)]) + condition.text;
}

std::string to_string(const Rule& rule) {
  const PartialMethod& m = rule.method;
  std::string settings, conditions;
  if (m.codec) add_item(settings, ",", "codec=" + to_string(*m.codec));
  if (m.skips) add_item(settings, ",", "skips=" + *m.skips);
  if (m.group) add_item(settings, ",", "group=" + std::to_string(*m.group));
  for (const Condition& condition : rule.conditions) add_item(conditions, ",", to_string(condition));
  return m.preset + (settings.empty() ? "" : '[' + settings + ']') + (conditions.empty() ? "" : ':' + conditions);
}

std::string to_string(const Overrides& overrides) {
  std::string text;
  for (const Rule& rule : overrides.rules()) add_item(text, "; ", to_string(rule));
  return text;
}

}  // namespace oktopk
