// SPDX-License-Identifier: Apache-2.0
// Profiles and override rules (profile.h) as JSON. People write these files, so every field that is missing,
// unknown, of another type or out of its range is named in a UsageError. A rule becomes text for the parser of
// overrides.cc.
#include <cerrno>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/tune/profile.h"

namespace oktopk {
namespace {

using Json = nlohmann::json;

std::string read_text(const std::string& file) {
  errno = 0;
  std::ifstream in(file);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  require(in.good() && text.good(), "cannot read ", file, ": ",
          errno != 0 ? std::generic_category().message(errno) : "it is empty");
  return text.str();
}

Json parse_json(const std::string& text, const std::string& where) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    fail<UsageError>(where, ": not JSON: ", error.what());
  }
}

// The fields of one object. expect_no_others() refuses fields that were not asked for. REQUIRES: `json` outlives it.
class JsonFields {
 public:
  JsonFields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    require(json.is_object(), where_, ": expected an object, not ", json.type_name());
  }

  const std::string& where() const { return where_; }
  bool has(const std::string& name) const { return json_.contains(name); }
  const Json& at(const std::string& name) {
    require(has(name), where_, ": the field \"", name, "\" is missing");
    known_.insert(name);
    return json_.at(name);
  }
  JsonFields object(const std::string& name) { return {at(name), where_ + ": " + name}; }
  double number(const std::string& name, double least) {
    const Json& value = at(name);
    require(value.is_number(), where_, ": ", name, " = ", value.dump(), ", but it must be a number");
    const auto number = value.get<double>();
    require(std::isfinite(number) && number >= least, where_, ": ", name, " = ", number, ", but it must be at least ",
            least);
    return number;
  }
  std::string text(const std::string& name) {
    const Json& value = at(name);
    require(value.is_string(), where_, ": ", name, " = ", value.dump(), ", but it must be text");
    return value.get<std::string>();
  }
  void expect_no_others() const {
    for (const auto& item : json_.items())
      require(known_.contains(item.key()), where_, ": unknown field \"", item.key(), "\"");
  }

 private:
  const Json& json_;
  std::string where_;
  std::set<std::string> known_;
};

// A number with a name in JSON: a price of a machine, a coding, ...
struct Price {
  std::string name;
  double* seconds;
  double least = 0;
};
using Prices = std::vector<Price>;

Prices prices_of(Machine& m) {
  return {{"alpha", &m.alpha},
          {"beta", &m.beta},
          {"gamma", &m.gamma},
          {"overhead", &m.overhead},
          {"contention", &m.contention, 1},
          {"delta", &m.delta},
          {"sigma", &m.sigma}};
}

Prices prices_of(ExternalPrice& external) { return {{"latency", &external.latency}, {"per_byte", &external.per_byte}}; }

Prices prices_of(std::span<double> seconds, std::span<const CodingInfo> codings) {
  Prices prices;
  for (std::size_t i = 0; i < seconds.size(); ++i) prices.push_back({std::string(codings[i].name), &seconds[i]});
  return prices;
}

Json prices_json(const Prices& prices) {
  Json json;
  for (const Price& price : prices) json[price.name] = *price.seconds;
  return json;
}

void read_prices(JsonFields fields, const Prices& prices) {
  for (const Price& price : prices) *price.seconds = fields.number(price.name, price.least);
  fields.expect_no_others();
}

template <class T>
void read_optional(JsonFields& fields, const std::string& name, std::optional<T>& part) {
  if (fields.has(name)) read_prices(fields.object(name), prices_of(part.emplace()));
}

// "<3" and ">=1M" as they are; "1M..64M" and numbers after an equals sign.
std::string condition_text(const std::string& name, const Json& value, const std::string& where) {
  if (value.is_number()) return name + '=' + value.dump();
  require(value.is_string(), where, ": ", name, " = ", value.dump(),
          ", but it must be a number or text such as \">=1M\" or \"1M..64M\"");
  const auto text = value.get<std::string>();
  const bool has_relation = text.find_first_of("<>=") == 0;
  return has_relation ? name + text : name + '=' + text;
}

// A setting that is neither text nor a number is left to the parser, which refuses it.
std::string method_text(JsonFields fields) {
  std::string settings;
  const std::string preset = fields.text("preset");
  for (const std::string name : {"codec", "skips", "group"}) {
    if (!fields.has(name)) continue;
    const Json& value = fields.at(name);
    settings +=
        (settings.empty() ? "" : ",") + name + '=' + (value.is_string() ? value.get<std::string>() : value.dump());
  }
  fields.expect_no_others();
  return settings.empty() ? preset : preset + '[' + settings + ']';
}

std::string conditions_text(JsonFields fields) {
  std::string text;
  for (const std::string name : {"n", "k", "density", "P"}) {
    if (!fields.has(name)) continue;
    const Json& value = fields.at(name);
    for (const Json& each : value.is_array() ? value : Json::array({value}))
      text += (text.empty() ? ':' : ',') + condition_text(name, each, fields.where());
  }
  fields.expect_no_others();
  return text;
}

Json rule_json(const Rule& rule) {
  Json use = {{"preset", rule.method.preset}};
  if (rule.method.codec) use["codec"] = to_string(*rule.method.codec);
  if (rule.method.skips) use["skips"] = *rule.method.skips;
  if (rule.method.group) use["group"] = *rule.method.group;
  Json when = Json::object();
  for (const Condition& condition : rule.conditions) {
    const std::string text = to_string(condition);
    when[text.substr(0, text.size() - condition.text.size())].push_back(condition.text);
  }
  return {{"use", use}, {"when", when}};
}

}  // namespace

std::string to_json(const Profile& profile) {
  Profile p = profile;
  Json json = {{"name", p.name},
               {"machine", prices_json(prices_of(p.machine))},
               {"ranks_per_host", p.ranks_per_host},
               {"index_seconds", prices_json(prices_of(p.index_seconds, index_codings()))},
               {"value_seconds", prices_json(prices_of(p.value_seconds, value_codings()))}};
  if (p.inside) json["inside"] = prices_json(prices_of(*p.inside));
  if (p.leaders) json["leaders"] = prices_json(prices_of(*p.leaders));
  if (p.external_dense) json["external_dense"] = prices_json(prices_of(*p.external_dense));
  return json.dump(2) + "\n";
}

Profile profile_from_json(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  JsonFields fields(json, where);
  Profile profile{.name = fields.text("name")};
  read_prices(fields.object("machine"), prices_of(profile.machine));
  read_optional(fields, "inside", profile.inside);
  read_optional(fields, "leaders", profile.leaders);
  read_optional(fields, "external_dense", profile.external_dense);
  const double ranks = fields.number("ranks_per_host", 1);
  require(ranks == std::floor(ranks) && ranks <= 1 << 20, where, ": ranks_per_host = ", ranks,
          ", but it must be a whole number");
  profile.ranks_per_host = static_cast<int>(ranks);
  read_prices(fields.object("index_seconds"), prices_of(profile.index_seconds, index_codings()));
  read_prices(fields.object("value_seconds"), prices_of(profile.value_seconds, value_codings()));
  fields.expect_no_others();
  return profile;
}

Profile read_profile(const std::string& file) { return profile_from_json(read_text(file), "profile " + file); }

std::string to_json(const Overrides& overrides) {
  Json list = Json::array();
  for (const Rule& rule : overrides.rules()) list.push_back(rule_json(rule));
  return list.dump(2) + "\n";
}

Overrides overrides_from_json(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  require(json.is_array(), where, ": expected a list of rules, not ", json.type_name());
  std::string rules;
  for (std::size_t i = 0; i < json.size(); ++i) {
    JsonFields fields(json[i], where + ": rule " + std::to_string(i + 1));
    std::string rule = method_text(fields.object("use"));
    if (fields.has("when")) rule += conditions_text(fields.object("when"));
    fields.expect_no_others();
    try {
      require(Overrides::parse(rule).rules().size() == 1, "expected one rule, not \"", rule, "\"");
    } catch (const UsageError& error) {
      fail<UsageError>(fields.where(), ": ", error.what());
    }
    rules += rule + ';';
  }
  return Overrides::parse(rules);
}

Overrides read_overrides(const std::string& file) {
  const std::string text = read_text(file);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string::npos && (text[first] == '[' || text[first] == '{');
  return is_json ? overrides_from_json(text, "overrides " + file) : Overrides::parse(text);
}

}  // namespace oktopk
