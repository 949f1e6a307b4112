// SPDX-License-Identifier: Apache-2.0
// Profiles (oktopk/tune/profile.h) and override rules (oktopk/tune/overrides.h) as JSON.
// docs/tuning.md has an example of each. Reading checks everything: a UsageError names the file and
// the field.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "oktopk/tune/overrides.h"
#include "oktopk/tune/profile.h"

namespace oktopk {

nlohmann::json to_json(const Profile& profile);
// `where`: what errors call it.
Profile profile_from_json(const nlohmann::json& json, const std::string& where);
Profile read_profile(const std::string& file);

// A list of {"use": {"preset", "codec", "skips", "group"}, "when": {"n", "k", "density", "P"}}. A
// condition is a number, or text such as ">=1M" or "1M..64M", or a list of those.
nlohmann::json to_json(const Overrides& overrides);
Overrides overrides_from_json(const nlohmann::json& json, const std::string& where);

// "RULES", or "@FILE" with rules as text or as JSON.
Overrides read_overrides(const std::string& text);

}  // namespace oktopk
