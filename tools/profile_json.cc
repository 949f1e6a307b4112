// SPDX-License-Identifier: Apache-2.0
#include "tools/profile_json.h"

#include <cmath>

#include "oktopk/base/error.h"
#include "tools/json_fields.h"

namespace oktopk {
namespace {

struct Price {
  const char* name;
  double Machine::*price;
  double least;
};
constexpr Price kPrices[] = {{"alpha", &Machine::alpha, 0},
                             {"beta", &Machine::beta, 0},
                             {"gamma", &Machine::gamma, 0},
                             {"overhead", &Machine::overhead, 0},
                             {"contention", &Machine::contention, 1},
                             {"delta", &Machine::delta, 0},
                             {"sigma", &Machine::sigma, 0}};

nlohmann::json machine_json(const Machine& machine) {
  nlohmann::json json;
  for (const Price& p : kPrices) json[p.name] = machine.*p.price;
  return json;
}

Machine read_machine(const nlohmann::json& json, const std::string& where) {
  Machine machine;
  JsonFields fields(json, where);
  for (const Price& p : kPrices) machine.*p.price = fields.number(p.name, p.least);
  fields.expect_no_others();
  return machine;
}

ExternalPrice read_external(const nlohmann::json& json, const std::string& where) {
  JsonFields fields(json, where);
  const ExternalPrice price{.latency = fields.number("latency", 0), .per_byte = fields.number("per_byte", 0)};
  fields.expect_no_others();
  return price;
}

template <std::size_t N>
nlohmann::json seconds_json(const std::array<double, N>& seconds, std::span<const CodingInfo> codings) {
  nlohmann::json json;
  for (std::size_t i = 0; i < N; ++i) json[std::string(codings[i].name)] = seconds[i];
  return json;
}

template <std::size_t N>
void read_seconds(const nlohmann::json& json, const std::string& where, std::span<const CodingInfo> codings,
                  std::array<double, N>& seconds) {
  JsonFields fields(json, where);
  for (std::size_t i = 0; i < N; ++i) seconds[i] = fields.number(std::string(codings[i].name), 0);
  fields.expect_no_others();
}

}  // namespace

nlohmann::json to_json(const Profile& profile) {
  nlohmann::json json = {{"name", profile.name},
                         {"machine", machine_json(profile.machine)},
                         {"ranks_per_host", profile.ranks_per_host},
                         {"index_seconds", seconds_json(profile.index_seconds, index_codings())},
                         {"value_seconds", seconds_json(profile.value_seconds, value_codings())}};
  if (profile.inside) json["inside"] = machine_json(*profile.inside);
  if (profile.leaders) json["leaders"] = machine_json(*profile.leaders);
  if (profile.external_dense)
    json["external_dense"] = {{"latency", profile.external_dense->latency},
                              {"per_byte", profile.external_dense->per_byte}};
  return json;
}

Profile profile_from_json(const nlohmann::json& json, const std::string& where) {
  Profile profile;
  JsonFields fields(json, where);
  profile.name = fields.text("name");
  profile.machine = read_machine(fields.at("machine"), where + ": machine");
  if (fields.has("inside")) profile.inside = read_machine(fields.at("inside"), where + ": inside");
  if (fields.has("leaders")) profile.leaders = read_machine(fields.at("leaders"), where + ": leaders");
  if (fields.has("external_dense"))
    profile.external_dense = read_external(fields.at("external_dense"), where + ": external_dense");
  const double ranks = fields.number("ranks_per_host", 1);
  require(ranks == std::floor(ranks) && ranks <= 1 << 20, where, ": ranks_per_host = ", ranks,
          ", but it must be a whole number");
  profile.ranks_per_host = static_cast<int>(ranks);
  read_seconds(fields.at("index_seconds"), where + ": index_seconds", index_codings(), profile.index_seconds);
  read_seconds(fields.at("value_seconds"), where + ": value_seconds", value_codings(), profile.value_seconds);
  fields.expect_no_others();
  return profile;
}

Profile read_profile(const std::string& file) {
  const std::string where = "profile " + file;
  return profile_from_json(parse_json(read_text(file), where), where);
}

}  // namespace oktopk
