// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/overrides.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "oktopk/tune/override_words.h"

namespace oktopk {
namespace {

double value_of(Variable variable, const Problem& problem) {
  switch (variable) {
    case Variable::n:
      return problem.n;
    case Variable::k:
      return problem.k;
    case Variable::density:
      return problem.n > 0 ? problem.k / problem.n : 0;
    case Variable::ranks:
      break;
  }
  return problem.P;
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

}  // namespace

bool Condition::holds(const Problem& problem) const {
  const double value = value_of(variable, problem);
  switch (kind) {
    case Kind::less:
      return value < number;
    case Kind::at_most:
      return value <= number;
    case Kind::more:
      return value > number;
    case Kind::at_least:
      return value >= number;
    case Kind::equal:  // a density is a quotient: up to rounding
      return std::fabs(value - number) <= 1e-9 * number;
    case Kind::range:
      break;
  }
  return number <= value && value <= last;
}

bool Rule::matches(const Problem& problem) const {
  return std::all_of(conditions.begin(), conditions.end(),
                     [&](const Condition& condition) { return condition.holds(problem); });
}

const Rule* Overrides::match(const Problem& problem) const {
  const auto found =
      std::find_if(rules_.begin(), rules_.end(), [&](const Rule& rule) { return rule.matches(problem); });
  return found == rules_.end() ? nullptr : &*found;
}

void Overrides::append(const Overrides& others) {
  rules_.insert(rules_.end(), others.rules_.begin(), others.rules_.end());
}

std::string to_string(const Condition& condition) {
  const std::string name(kVariables[static_cast<std::size_t>(condition.variable)]);
  if (condition.kind == Condition::Kind::range)
    return name + '=' + number_text(condition.number) + ".." + number_text(condition.last);
  return name + std::string(kRelations[static_cast<std::size_t>(condition.kind)]) + number_text(condition.number);
}

std::string to_string(const Rule& rule) {
  std::string settings, conditions;
  const auto add = [](std::string& list, const std::string& item) { list += (list.empty() ? "" : ",") + item; };
  if (rule.method.codec) add(settings, "codec=" + to_string(*rule.method.codec));
  if (rule.method.skips) add(settings, "skips=" + *rule.method.skips);
  if (rule.method.group) add(settings, "group=" + std::to_string(*rule.method.group));
  for (const Condition& condition : rule.conditions) add(conditions, to_string(condition));
  return rule.method.preset + (settings.empty() ? "" : '[' + settings + ']') +
         (conditions.empty() ? "" : ':' + conditions);
}

std::string to_string(const Overrides& overrides) {
  std::string text;
  for (const Rule& rule : overrides.rules()) text += (text.empty() ? "" : "; ") + to_string(rule);
  return text;
}

}  // namespace oktopk
