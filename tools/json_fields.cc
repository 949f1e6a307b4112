// SPDX-License-Identifier: Apache-2.0
#include "tools/json_fields.h"

#include <cmath>
#include <fstream>
#include <sstream>
#include <utility>

#include "oktopk/base/error.h"

namespace oktopk {

std::string read_text(const std::string& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  require(in.good() && text.good(), "cannot read ", file);
  return text.str();
}

nlohmann::json parse_json(const std::string& text, const std::string& where) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    fail<UsageError>(where, ": not JSON: ", error.what());
  }
}

JsonFields::JsonFields(const nlohmann::json& json, std::string where) : json_(json), where_(std::move(where)) {
  require(json.is_object(), where_, ": expected an object, not ", json.type_name());
}

const nlohmann::json& JsonFields::at(const std::string& name) {
  require(json_.contains(name), where_, ": the field \"", name, "\" is missing");
  known_.insert(name);
  return json_.at(name);
}

double JsonFields::number(const std::string& name, double least) {
  const nlohmann::json& value = at(name);
  require(value.is_number(), where_, ": ", name, " = ", value.dump(), ", but it must be a number");
  const auto number = value.get<double>();
  require(std::isfinite(number) && number >= least, where_, ": ", name, " = ", number, ", but it must be at least ",
          least);
  return number;
}

std::string JsonFields::text(const std::string& name) {
  const nlohmann::json& value = at(name);
  require(value.is_string(), where_, ": ", name, " = ", value.dump(), ", but it must be text");
  return value.get<std::string>();
}

void JsonFields::expect_no_others() const {
  for (const auto& item : json_.items())
    require(known_.count(item.key()) > 0, where_, ": unknown field \"", item.key(), "\"");
}

}  // namespace oktopk
