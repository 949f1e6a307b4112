// SPDX-License-Identifier: Apache-2.0
// Profiles as JSON. People write these files, so every field that is missing, unknown, of another type or out of its
// range is named in a UsageError.
#include <cmath>
#include <nlohmann/json.hpp>

#include "oktopk/base/error.h"
#include "oktopk/tune/prices.h"

namespace oktopk {
namespace {

using Json = nlohmann::json;

Json to_object(const Machine& machine) {
  Json json;
  for (const NamedPrice& named : kMachinePrices) json[std::string(named.name)] = machine.*named.price;
  return json;
}

Json to_object(std::span<const double> seconds, std::span<const CodingInfo> codings) {
  Json json;
  for (std::size_t i = 0; i < seconds.size(); ++i) json[std::string(codings[i].name)] = seconds[i];
  return json;
}

Json to_object(const Profile& p) {
  Json json = {{"name", p.name},
               {"machine", to_object(p.machine)},
               {"ranks_per_host", p.ranks_per_host},
               {"index_seconds", to_object(p.index_seconds, index_codings())},
               {"value_seconds", to_object(p.value_seconds, value_codings())}};
  if (p.inside) json["inside"] = to_object(*p.inside);
  if (p.leaders) json["leaders"] = to_object(*p.leaders);
  if (p.external_dense)
    json["external_dense"] = {{"latency", p.external_dense->latency}, {"per_byte", p.external_dense->per_byte}};
  return json;
}

// UsageError unless `json` has the fields of `least`, and numbers that are not below those of `least`.
void check(const Json& json, const Json& least, const std::string& where) {
  if (least.is_string()) return require(json.is_string(), where, " = ", json.dump(), ", but it must be text");
  if (least.is_number()) {
    require(json.is_number(), where, " = ", json.dump(), ", but it must be a number");
    return require(json >= least, where, " = ", json.dump(), ", but it must be at least ", least.get<double>());
  }
  require(json.is_object(), where, ": expected an object, not ", json.type_name());
  for (const auto& [name, field] : least.items()) {
    require(json.contains(name), where, ": the field \"", name, "\" is missing");
    check(json.at(name), field, text_of(where, ": ", name));
  }
  for (const auto& item : json.items())
    require(least.contains(item.key()), where, ": unknown field \"", item.key(), "\"");
}

// The least values of a profile with the optional parts that `json` has.
Json least_values(const Json& json) {
  Profile least{.machine = {}, .index_seconds = {}, .value_seconds = {}};
  if (json.contains("inside")) least.inside.emplace();
  if (json.contains("leaders")) least.leaders.emplace();
  if (json.contains("external_dense")) least.external_dense.emplace();
  return to_object(least);
}

Machine to_machine(const Json& json) {
  Machine machine;
  for (const NamedPrice& named : kMachinePrices) machine.*named.price = json.at(std::string(named.name));
  return machine;
}

void read_codings(const Json& json, std::span<const CodingInfo> codings, std::span<double> seconds) {
  for (std::size_t i = 0; i < seconds.size(); ++i) seconds[i] = json.at(std::string(codings[i].name));
}

Json parse_json(const std::string& text, const std::string& where) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    fail<UsageError>(where, ": not JSON: ", error.what());
  }
}

}  // namespace

std::string to_json(const Profile& profile) { return to_object(profile).dump(2) + '\n'; }

Profile profile_from_json(const std::string& text, const std::string& where) {
  Json json = parse_json(text, where);
  // Codings that are newer than the file.
  const Json usual = to_object(Profile{});
  for (const char* list : {"index_seconds", "value_seconds"})
    if (json.contains(list) && json[list].is_object())
      for (const auto& [name, seconds] : usual[list].items()) json[list].emplace(name, seconds);
  check(json, least_values(json), where);
  const double ranks = json["ranks_per_host"];
  require(ranks == std::floor(ranks) && ranks <= 1 << 20, where, ": ranks_per_host = ", ranks,
          ", but it must be a whole number");
  Profile profile{
      .name = json["name"], .machine = to_machine(json["machine"]), .ranks_per_host = static_cast<int>(ranks)};
  if (json.contains("inside")) profile.inside = to_machine(json["inside"]);
  if (json.contains("leaders")) profile.leaders = to_machine(json["leaders"]);
  if (json.contains("external_dense")) {
    const Json& price = json["external_dense"];
    profile.external_dense = {.latency = price["latency"], .per_byte = price["per_byte"]};
  }
  read_codings(json["index_seconds"], index_codings(), profile.index_seconds);
  read_codings(json["value_seconds"], value_codings(), profile.value_seconds);
  return profile;
}

Profile read_profile(const std::string& file) { return profile_from_json(read_text(file), "profile " + file); }

}  // namespace oktopk
