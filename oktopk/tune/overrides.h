// SPDX-License-Identifier: Apache-2.0
// What the user knows better than the model, as data: rules that name a method for some problems.
// The first rule that matches wins; what it leaves open is the tuner's.
//
//   oktopk:n>=1M,density<0.02; dense:n<64K; circulant[codec=elias_fano+bf16,group=8]:P=16..64
//
//   rules     = [ rule { ";" rule } [ ";" ] ]
//   rule      = preset [ "[" setting { "," setting } "]" ] [ ":" condition { "," condition } ]
//   setting   = "codec=" codec | "skips=" skips (circulant) | "group=" ranks per group
//   condition = variable ( "<" | "<=" | ">" | ">=" | "=" ) number
//             | variable "=" number ".." number
//   variable  = "n" | "k" | "density" | "P"
//   number    = digits, perhaps a fraction and an exponent, perhaps K, M or G (K = 1024)
//
// A rule without conditions always matches. Ranges include both ends. Pure arithmetic of values
// that are equal on all ranks.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oktopk/codec/codec.h"
#include "oktopk/tune/cost.h"

namespace oktopk {

// A method of which only the preset is certain.
struct PartialMethod {
  std::string preset;
  std::optional<Codec> codec = std::nullopt;
  std::optional<std::string> skips = std::nullopt;
  std::optional<int> group = std::nullopt;
  friend bool operator==(const PartialMethod&, const PartialMethod&) = default;
};

enum class Variable { n, k, density, ranks };

struct Condition {
  enum class Kind { less, at_most, more, at_least, equal, range };
  Variable variable = Variable::n;
  Kind kind = Kind::equal;
  double number = 0;
  double last = 0;  // of a range

  bool holds(const Problem& problem) const;
  friend bool operator==(const Condition&, const Condition&) = default;
};

struct Rule {
  PartialMethod method;
  std::vector<Condition> conditions;

  bool matches(const Problem& problem) const;
  friend bool operator==(const Rule&, const Rule&) = default;
};

class Overrides {
 public:
  // UsageError shows the text, the place and what was expected there.
  static Overrides parse(std::string_view text);

  // The first rule that matches; nullptr: none.
  const Rule* match(const Problem& problem) const;
  void append(const Overrides& others);

  bool empty() const { return rules_.empty(); }
  const std::vector<Rule>& rules() const { return rules_; }
  friend bool operator==(const Overrides&, const Overrides&) = default;

 private:
  std::vector<Rule> rules_;
};

// As parse() reads them.
std::string to_string(const Condition& condition);
std::string to_string(const Rule& rule);
std::string to_string(const Overrides& overrides);

}  // namespace oktopk
