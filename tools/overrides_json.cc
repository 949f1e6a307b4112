// SPDX-License-Identifier: Apache-2.0
// Override rules as JSON: each item becomes the text of a rule, which the one parser reads.
#include "oktopk/base/error.h"
#include "tools/json_fields.h"
#include "tools/profile_json.h"

namespace oktopk {
namespace {

constexpr const char* kVariableNames[] = {"n", "k", "density", "P"};

// "<3" and ">=1M" as they are; "1M..64M" and numbers behind an equals sign.
std::string condition_text(const std::string& name, const nlohmann::json& value, const std::string& where) {
  if (value.is_number()) return name + '=' + value.dump();
  require(value.is_string(), where, ": ", name, " = ", value.dump(),
          ", but it must be a number or text such as \">=1M\" or \"1M..64M\"");
  const auto text = value.get<std::string>();
  const bool has_relation = !text.empty() && std::string("<>=").find(text[0]) != std::string::npos;
  return has_relation ? name + text : name + '=' + text;
}

std::string method_text(const nlohmann::json& json, const std::string& where) {
  JsonFields fields(json, where);
  std::string preset = fields.text("preset");
  std::string settings;
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!settings.empty()) settings += ',';
    settings += name;
    settings += '=';
    settings += value;
  };
  if (fields.has("codec")) add("codec", fields.text("codec"));
  if (fields.has("skips")) add("skips", fields.text("skips"));
  if (fields.has("group")) {
    const nlohmann::json& group = fields.at("group");
    require(group.is_number_integer(), where, ": group = ", group.dump(), ", but it must be a whole number");
    add("group", group.dump());
  }
  fields.expect_no_others();
  if (!settings.empty()) preset += "[" + settings + "]";
  return preset;
}

std::string conditions_text(const nlohmann::json& json, const std::string& where) {
  JsonFields fields(json, where);
  std::string conditions;
  const auto add = [&](const std::string& name, const nlohmann::json& value) {
    conditions += conditions.empty() ? ':' : ',';
    conditions += condition_text(name, value, where);
  };
  for (const char* name : kVariableNames) {
    if (!fields.has(name)) continue;
    const nlohmann::json& value = fields.at(name);
    if (!value.is_array()) add(name, value);
    if (value.is_array())
      for (const nlohmann::json& each : value) add(name, each);
  }
  fields.expect_no_others();
  return conditions;
}

}  // namespace

Overrides overrides_from_json(const nlohmann::json& json, const std::string& where) {
  require(json.is_array(), where, ": expected a list of rules, not ", json.type_name());
  Overrides overrides;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const std::string rule = where + ": rule " + std::to_string(i + 1);
    JsonFields fields(json[i], rule);
    std::string text = method_text(fields.at("use"), rule + ": use");
    if (fields.has("when")) text += conditions_text(fields.at("when"), rule + ": when");
    fields.expect_no_others();
    try {
      overrides.append(Overrides::parse(text));
    } catch (const UsageError& error) {
      fail<UsageError>(rule, ": ", error.what());
    }
    require(overrides.rules().size() == i + 1, rule, ": expected one rule, not \"", text, "\"");
  }
  return overrides;
}

nlohmann::json to_json(const Overrides& overrides) {
  nlohmann::json list = nlohmann::json::array();
  for (const Rule& rule : overrides.rules()) {
    nlohmann::json use = {{"preset", rule.method.preset}};
    if (rule.method.codec) use["codec"] = to_string(*rule.method.codec);
    if (rule.method.skips) use["skips"] = *rule.method.skips;
    if (rule.method.group) use["group"] = *rule.method.group;
    nlohmann::json when = nlohmann::json::object();
    for (const Condition& condition : rule.conditions) {
      const char* name = kVariableNames[static_cast<std::size_t>(condition.variable)];
      when[name].push_back(to_string(condition).substr(std::string(name).size()));
    }
    list.push_back({{"use", use}, {"when", when}});
  }
  return list;
}

Overrides read_overrides(const std::string& text) {
  if (text.empty() || text[0] != '@') return Overrides::parse(text);
  const std::string where = "overrides " + text.substr(1);
  const std::string content = read_text(text.substr(1));
  const std::size_t first = content.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string::npos && (content[first] == '[' || content[first] == '{');
  return is_json ? overrides_from_json(parse_json(content, where), where) : Overrides::parse(content);
}

}  // namespace oktopk
