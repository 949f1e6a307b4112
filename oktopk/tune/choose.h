// SPDX-License-Identifier: Apache-2.0
// How a user steers preset auto: what the tuner may choose from, and override rules, which name a method for some
// problems. The first rule that matches wins; the tuner chooses what the rule leaves open.
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
// A rule without conditions always matches. Ranges include both ends. All decisions are pure arithmetic of values that
// are equal on all ranks.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oktopk/allreduce/presets.h"
#include "oktopk/codec/codec.h"

namespace oktopk {

struct Problem;

// A method with a preset, and perhaps more that is fixed.
struct PartialMethod {
  std::string preset;
  std::optional<Codec> codec = std::nullopt;
  std::optional<std::string> skips = std::nullopt;
  std::optional<int> group = std::nullopt;
  friend bool operator==(const PartialMethod&, const PartialMethod&) = default;
};

enum class Variable { n, k, density, ranks };

// The variable is in [least, most].
struct Condition {
  Variable variable = Variable::n;
  double least = 0, most = 0;
  std::string text;  // relation and number, such as ">=1M" or "=16..64"
  friend bool operator==(const Condition&, const Condition&) = default;
};

struct Rule {
  PartialMethod method;
  std::vector<Condition> conditions;
  friend bool operator==(const Rule&, const Rule&) = default;
};

class Overrides {
 public:
  // UsageError shows the text, the place and what was expected there.
  static Overrides parse(std::string_view text);

  const Rule* match(const Problem& problem) const;  // the first rule that matches; nullptr: none

  bool empty() const { return rules_.empty(); }
  const std::vector<Rule>& rules() const { return rules_; }
  friend bool operator==(const Overrides&, const Overrides&) = default;

 private:
  std::vector<Rule> rules_;
};

// In the form that parse() reads.
std::string to_string(const Condition& condition);
std::string to_string(const Rule& rule);
std::string to_string(const Overrides& overrides);

// As JSON text: a list of {"use": {"preset", "codec", "skips", "group"}, "when": {"n", "k", "density", "P"}}. A
// condition is a number, or text such as ">=1M" or "1M..64M", or a list of these. UsageError names `where` and the
// field.
std::string to_json(const Overrides& overrides);
Overrides overrides_from_json(const std::string& text, const std::string& where);
Overrides read_overrides(const std::string& file);  // JSON, or rules as parse() reads them

struct ChoiceOptions {
  std::vector<std::string> presets = {};     // besides dense; empty: all presets whose counts can be predicted
  ValueCoding coarsest = ValueCoding::bf16;  // coarsest values that the wire may carry
  AllreduceOptions allreduce = {};           // tau, residual rule and the rest
  bool external_dense = false;               // the caller makes dense steps in fp32 himself
  bool groups = false;                       // also node-sum-first, in groups of Profile::ranks_per_host
  double preference = 0.03;  // dense and circulant win over others that are faster by at most this share
  bool review = true;        // false: no review after the first choice, so that two runs agree bitwise
  Overrides overrides = {};
};

}  // namespace oktopk
