// SPDX-License-Identifier: Apache-2.0
// For builds without nlohmann_json: profiles and override rules cannot be read from JSON or written as JSON.
#include "oktopk/base/error.h"
#include "oktopk/tune/profile.h"

namespace oktopk {
namespace {

[[noreturn]] void fail_without_json() {
  fail<UsageError>(
      "JSON: this build of oktopk has none; install nlohmann_json (Debian: nlohmann-json3-dev) and build again");
}

}  // namespace

std::string to_json(const Profile&) { fail_without_json(); }
Profile profile_from_json(const std::string&, const std::string&) { fail_without_json(); }
Profile read_profile(const std::string&) { fail_without_json(); }
std::string to_json(const Overrides&) { fail_without_json(); }
Overrides overrides_from_json(const std::string&, const std::string&) { fail_without_json(); }
Overrides read_overrides(const std::string&) { fail_without_json(); }

}  // namespace oktopk
