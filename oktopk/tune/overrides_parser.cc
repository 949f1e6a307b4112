// SPDX-License-Identifier: Apache-2.0
// Override rules from text: a recursive descent over the grammar of overrides.h.
#include <algorithm>
#include <charconv>

#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/skips.h"
#include "oktopk/tune/override_words.h"
#include "oktopk/tune/overrides.h"

namespace oktopk {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_of_name(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

std::string preset_names() {
  std::string names;
  for (const Preset& preset : presets()) {
    if (!names.empty()) names += ", ";
    names += preset.name;
  }
  return names;
}

// Reads rules from the front to the back.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

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

  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  bool accept(std::string_view token) {
    skip_space();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    skip_space();
    return true;
  }
  std::string_view peek_name(std::size_t from) const {
    std::size_t end = from;
    while (end < text_.size() && is_of_name(text_[end])) ++end;
    return text_.substr(from, end - from);
  }

  Rule rule() {
    Rule rule;
    const std::string_view name = peek_name(at_);
    const auto known = presets();
    if (std::none_of(known.begin(), known.end(), [&](const Preset& p) { return p.name == name; }))
      expected("a preset: " + preset_names());
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
    const std::string_view name = peek_name(at_);
    at_ += name.size();
    if ((name != "codec" && name != "skips" && name != "group") || !accept("=")) {
      at_ = start;
      expected("codec=, skips= or group=");
    }
    const std::size_t place = at_;
    const std::string value(setting_value());
    try {
      set(method, name, value);
    } catch (const UsageError& error) {
      fail_at(place, error.what());
    }
  }

  // Up to ']' or the comma before the next setting: lists of skips have commas of their own.
  std::string_view setting_value() {
    const std::size_t start = at_;
    for (; at_ < text_.size() && text_[at_] != ']' && text_[at_] != ';'; ++at_) {
      if (text_[at_] != ',') continue;
      std::size_t next = at_ + 1;
      while (next < text_.size() && is_space(text_[next])) ++next;
      const std::string_view name = peek_name(next);
      if (name == "codec" || name == "skips" || name == "group") break;
    }
    std::string_view value = text_.substr(start, at_ - start);
    while (!value.empty() && is_space(value.back())) value.remove_suffix(1);
    return value;
  }

  static void set(PartialMethod& method, std::string_view name, const std::string& value) {
    if (name == "codec") {
      require(!method.codec, "codec is given twice");
      method.codec = parse_codec(value);
      require(method.preset != "dense" || method.codec->index == IndexCoding::coo32,
              "dense has no indices: expected a coding of values alone");
    } else if (name == "skips") {
      require(!method.skips, "skips is given twice");
      require(method.preset == "circulant", "only circulant has skips, not ", method.preset);
      int P = 2;  // a list says itself for how many ranks it is
      if (!value.empty() && is_digit(value.front())) std::from_chars(value.data(), value.data() + value.size(), P);
      parse_skips(value, P);
      method.skips = value;
    } else {
      require(!method.group, "group is given twice");
      int group = 0;
      const char* end = value.data() + value.size();
      const auto [rest, error] = std::from_chars(value.data(), end, group);
      require(error == std::errc() && rest == end && group >= 1, "expected a number of ranks, 1 or more");
      method.group = group;
    }
  }

  Condition condition() {
    Condition condition;
    const std::string_view name = peek_name(at_);
    const auto variable = std::find(kVariables.begin(), kVariables.end(), name);
    if (variable == kVariables.end()) expected("n, k, density or P");
    condition.variable = static_cast<Variable>(variable - kVariables.begin());
    at_ += name.size();
    condition.kind = relation();
    condition.number = number();
    const std::size_t place = at_;
    if (condition.kind != Condition::Kind::equal || !accept("..")) return condition;
    condition.kind = Condition::Kind::range;
    condition.last = number();
    if (condition.last < condition.number) fail_at(place, "the range ends before it begins");
    return condition;
  }

  Condition::Kind relation() {
    // The longer ones first: "<=" begins like "<".
    for (const std::size_t i : {1U, 3U, 0U, 2U, 4U})
      if (accept(kRelations[i])) return static_cast<Condition::Kind>(i);
    expected("<, <=, >, >= or =");
  }

  double number() {
    std::size_t end = at_;
    const auto digits = [&] {
      while (end < text_.size() && is_digit(text_[end])) ++end;
    };
    const auto digit_at = [&](std::size_t i) { return i < text_.size() && is_digit(text_[i]); };
    digits();
    if (end == at_) expected("a number, such as 64K or 0.01");
    if (end < text_.size() && text_[end] == '.' && digit_at(end + 1)) {
      ++end;
      digits();
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const bool is_signed = end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-');
      const std::size_t exponent = end + (is_signed ? 2 : 1);
      if (digit_at(exponent)) {
        end = exponent;
        digits();
      }
    }
    double value = 0;
    const auto parsed = std::from_chars(text_.data() + at_, text_.data() + end, value);
    if (parsed.ec != std::errc()) expected("a number that is not too large or small");
    at_ = end;
    for (const auto& [suffix, times] : kSuffixes)
      if (at_ < text_.size() && (text_[at_] & ~0x20) == suffix) {
        value *= times;
        ++at_;
        break;
      }
    if (at_ < text_.size() && is_of_name(text_[at_])) expected("K, M, G or the end of the number");
    return value;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

Overrides Overrides::parse(std::string_view text) {
  Overrides overrides;
  overrides.rules_ = Reader(text).rules();
  return overrides;
}

}  // namespace oktopk
