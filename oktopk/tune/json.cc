// SPDX-License-Identifier: Apache-2.0
// Profiles as JSON. People write these files, so every field that is missing, unknown, of another type or out of its
// range is named in a UsageError.
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/tune/prices.h"

namespace oktopk {
namespace {

using Json = nlohmann::json;

// The fields of one object. expect_no_others() refuses fields that were not asked for. REQUIRES: `json` outlives it.
class JsonFields {
 public:
  JsonFields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    require(json.is_object(), where_, ": expected an object, not ", json.type_name());
  }

  bool has(const std::string& name) const { return json_.contains(name); }
  JsonFields object(const std::string& name) { return {at(name), where_ + ": " + name}; }
  double number(const std::string& name, double least = 0) {
    const Json& value = at(name);
    require(value.is_number(), where_, ": ", name, " = ", value.dump(), ", but it must be a number");
    const auto number = value.get<double>();
    require(std::isfinite(number) && number >= least, where_, ": ", name, " = ", number, ", but it must be at least ",
            least);
    return number;
  }
  int whole_number(const std::string& name, int least, int most) {
    const double x = number(name, least);
    require(x == std::floor(x) && x <= most, where_, ": ", name, " = ", x, ", but it must be a whole number");
    return static_cast<int>(x);
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
  const Json& at(const std::string& name) {
    require(has(name), where_, ": the field \"", name, "\" is missing");
    known_.insert(name);
    return json_.at(name);
  }

  const Json& json_;
  std::string where_;
  std::set<std::string> known_;
};

Json to_object(const Machine& machine) {
  Json json;
  for (const NamedPrice& named : kMachinePrices) json[std::string(named.name)] = machine.*named.price;
  return json;
}

Json to_object(const ExternalPrice& price) { return {{"latency", price.latency}, {"per_byte", price.per_byte}}; }

Json to_object(std::span<const double> seconds, std::span<const CodingInfo> codings) {
  Json json;
  for (std::size_t i = 0; i < seconds.size(); ++i) json[std::string(codings[i].name)] = seconds[i];
  return json;
}

void read(JsonFields fields, Machine& machine) {
  for (const NamedPrice& named : kMachinePrices)
    machine.*named.price = fields.number(std::string(named.name), named.least);
  fields.expect_no_others();
}

void read(JsonFields fields, ExternalPrice& price) {
  price = {.latency = fields.number("latency"), .per_byte = fields.number("per_byte")};
  fields.expect_no_others();
}

// Codings that a profile lacks are newer than it.
void read(JsonFields fields, std::span<double> seconds, std::span<const CodingInfo> codings) {
  for (std::size_t i = 0; i < seconds.size(); ++i)
    if (const std::string name(codings[i].name); fields.has(name)) seconds[i] = fields.number(name);
  fields.expect_no_others();
}

template <class T>
void read(JsonFields& fields, const std::string& name, std::optional<T>& part) {
  if (fields.has(name)) read(fields.object(name), part.emplace());
}

Json parse_json(const std::string& text, const std::string& where) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    fail<UsageError>(where, ": not JSON: ", error.what());
  }
}

}  // namespace

std::string to_json(const Profile& p) {
  Json json = {{"name", p.name},
               {"machine", to_object(p.machine)},
               {"ranks_per_host", p.ranks_per_host},
               {"index_seconds", to_object(p.index_seconds, index_codings())},
               {"value_seconds", to_object(p.value_seconds, value_codings())}};
  if (p.inside) json["inside"] = to_object(*p.inside);
  if (p.leaders) json["leaders"] = to_object(*p.leaders);
  if (p.external_dense) json["external_dense"] = to_object(*p.external_dense);
  return json.dump(2) + '\n';
}

Profile profile_from_json(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  JsonFields fields(json, where);
  Profile profile{.name = fields.text("name")};
  read(fields.object("machine"), profile.machine);
  read(fields, "inside", profile.inside);
  read(fields, "leaders", profile.leaders);
  read(fields, "external_dense", profile.external_dense);
  profile.ranks_per_host = fields.whole_number("ranks_per_host", 1, 1 << 20);
  read(fields.object("index_seconds"), profile.index_seconds, index_codings());
  read(fields.object("value_seconds"), profile.value_seconds, value_codings());
  fields.expect_no_others();
  return profile;
}

Profile read_profile(const std::string& file) { return profile_from_json(read_text(file), "profile " + file); }

}  // namespace oktopk
