// SPDX-License-Identifier: Apache-2.0
// JSON that people write, read with care: every field that is missing, unknown, of another type or
// out of its range is named in a UsageError.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace oktopk {

// The whole of a file. UsageError when it cannot be read.
std::string read_text(const std::string& file);
nlohmann::json parse_json(const std::string& text, const std::string& where);

// The fields of one object. REQUIRES: `json` outlives it.
class JsonFields {
 public:
  // `where`: what errors call the object.
  JsonFields(const nlohmann::json& json, std::string where);

  bool has(const std::string& name) const { return json_.contains(name); }
  const nlohmann::json& at(const std::string& name);
  // Finite, and at least `least`.
  double number(const std::string& name, double least);
  std::string text(const std::string& name);

  // UsageError that names a field that nobody asked for.
  void expect_no_others() const;

 private:
  const nlohmann::json& json_;
  std::string where_;
  std::set<std::string> known_;
};

}  // namespace oktopk
