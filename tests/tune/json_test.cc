// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "oktopk/base/error.h"
#include "oktopk/tune/profile.h"
#include "tests/support/message.h"

namespace oktopk::json_test {
namespace {

Profile sample() {
  Profile profile{.name = "a \"name\""};
  profile.machine = {
      .alpha = 1.0 / 3, .beta = 1e-9 / 7, .gamma = 2, .overhead = 3, .contention = 1.25, .delta = 4, .sigma = 5};
  profile.inside = Machine{.alpha = 6, .contention = 2};
  profile.ranks_per_host = 8;
  profile.external_dense = {.latency = 7, .per_byte = 1e-9 / 3};
  profile.index_seconds = {0, 1, 2, 3, 4, 5};
  profile.value_seconds = {0, 0.1, 0.2, 0.3};
  return profile;
}

// The error text about a profile after `change`.
template <class Change>
std::string complaint(const Change& change) {
  nlohmann::json json = nlohmann::json::parse(to_json(sample()));
  change(json);
  try {
    profile_from_json(json.dump(), "profile x");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ProfileJson, text_reads_back_bit_by_bit) {
  const Profile before = sample();
  const Profile after = profile_from_json(to_json(before), "x");
  EXPECT_EQ(to_json(after), to_json(before));
  EXPECT_EQ(after.name, before.name);
  EXPECT_EQ(after.machine.alpha, before.machine.alpha);
  EXPECT_EQ(after.machine.beta, before.machine.beta);
  EXPECT_EQ(after.machine.sigma, 5);
  ASSERT_TRUE(after.inside);
  EXPECT_EQ(after.inside->contention, 2);
  EXPECT_EQ(after.ranks_per_host, 8);
  EXPECT_EQ(after.index_seconds, before.index_seconds);
  EXPECT_EQ(after.value_seconds, before.value_seconds);
  EXPECT_FALSE(profile_from_json(to_json(Profile{}), "x").inside);
}

TEST(ProfileJson, names_what_is_wrong) {
  using J = nlohmann::json;
  EXPECT_EQ(complaint([](J& j) { j = J::array(); }), "profile x: expected an object, not array");
  EXPECT_EQ(complaint([](J& j) { j.erase("name"); }), "profile x: the field \"name\" is missing");
  EXPECT_EQ(complaint([](J& j) { j["nmae"] = 1; }), "profile x: unknown field \"nmae\"");
  EXPECT_EQ(complaint([](J& j) { j["name"] = 3; }), "profile x: name = 3, but it must be text");
  EXPECT_EQ(complaint([](J& j) { j["machine"].erase("beta"); }), "profile x: machine: the field \"beta\" is missing");
  EXPECT_EQ(complaint([](J& j) { j["machine"]["alpha"] = -2; }),
            "profile x: machine: alpha = -2, but it must be at least 0");
  EXPECT_EQ(complaint([](J& j) { j["machine"]["alpha"] = "fast"; }),
            "profile x: machine: alpha = \"fast\", but it must be a number");
  EXPECT_EQ(complaint([](J& j) { j["inside"]["contention"] = 0.5; }),
            "profile x: inside: contention = 0.5, but it must be at least 1");
  EXPECT_EQ(complaint([](J& j) { j["inside"]["zeta"] = 1; }), "profile x: inside: unknown field \"zeta\"");
  EXPECT_EQ(complaint([](J& j) { j["ranks_per_host"] = 1.5; }),
            "profile x: ranks_per_host = 1.5, but it must be a whole number");
  EXPECT_EQ(complaint([](J& j) { j["ranks_per_host"] = 0; }),
            "profile x: ranks_per_host = 0, but it must be at least 1");
  EXPECT_EQ(complaint([](J& j) { j["index_seconds"].erase("bitmap"); }),
            "profile x: index_seconds: the field \"bitmap\" is missing");
  EXPECT_EQ(complaint([](J& j) { j["value_seconds"]["log8"] = -1; }),
            "profile x: value_seconds: log8 = -1, but it must be at least 0");
  EXPECT_EQ(complaint([](J&) {}), "accepted");
}

TEST(ProfileJson, refuses_files_that_are_not_there_or_not_json) {
  EXPECT_EQ(message_of([] { read_profile("no/such/file.json"); }),
            "cannot read no/such/file.json: No such file or directory");
  const std::string file = testing::TempDir() + "oktopk_profile_test.json";
  std::ofstream(file) << "{\"name\": ";
  try {
    read_profile(file);
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(file + ": not JSON"), std::string::npos);
  }
  std::ofstream(file) << to_json(sample());
  EXPECT_EQ(to_json(read_profile(file)), to_json(sample()));
}

TEST(OverridesJson, reads_the_same_rules_as_the_text) {
  const std::string json = R"([
    {"use": {"preset": "dense"}, "when": {"n": "<64K"}},
    {"use": {"preset": "circulant", "codec": "elias_fano+bf16", "skips": "8,4,2,1", "group": 1},
     "when": {"n": [">=1M", "<1G"], "density": "0.001..0.02", "P": 8}},
    {"use": {"preset": "oktopk"}}])";
  const Overrides overrides = overrides_from_json(json, "x");
  EXPECT_EQ(to_string(overrides),
            "dense:n<64K; circulant[codec=elias_fano+bf16,skips=8,4,2,1,group=1]:n>=1M,n<1G,"
            "density=0.001..0.02,P=8; oktopk");
  EXPECT_EQ(overrides_from_json(to_json(overrides), "x"), overrides);
}

TEST(OverridesJson, names_what_is_wrong) {
  const auto complaint_about = [](const char* text) -> std::string {
    try {
      overrides_from_json(text, "file");
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(complaint_about(R"({"use": {}})"), "file: expected a list of rules, not object");
  EXPECT_EQ(complaint_about(R"([{"use": {"preset": "dense"}}, {}])"), "file: rule 2: the field \"use\" is missing");
  EXPECT_EQ(complaint_about(R"([{"use": {"codec": "bf16"}}])"), "file: rule 1: use: the field \"preset\" is missing");
  EXPECT_EQ(complaint_about(R"([{"use": {"preset": "dense", "speed": 1}}])"),
            "file: rule 1: use: unknown field \"speed\"");
  EXPECT_EQ(
      complaint_about(R"([{"use": {"preset": "dense", "group": 1.5}}])"),
      "file: rule 1: overrides \"dense[group=1.5]\", character 13 (\"1.5]\"): expected a number of ranks, 1 or more");
  EXPECT_NE(complaint_about(R"([{"use": {"preset": "dense", "codec": [1]}}])").find("file: rule 1: overrides"),
            std::string::npos);
  EXPECT_EQ(complaint_about(R"([{"use": {"preset": "dense"}, "when": {"m": 1}}])"),
            "file: rule 1: when: unknown field \"m\"");
  EXPECT_NE(complaint_about(R"([{"use": {"preset": "dense"}, "when": {"n": true}}])").find("must be a number or text"),
            std::string::npos);
  EXPECT_NE(complaint_about(R"([{"use": {"preset": "dense"}, "when": {"n": "<x"}}])")
                .find("file: rule 1: overrides \"dense:n<x\", character 9 (\"x\"): expected a number"),
            std::string::npos);
  EXPECT_NE(complaint_about(R"([{"use": {"preset": "dense;topka"}}])").find("expected one rule"), std::string::npos);
}

TEST(OverridesJson, come_from_files_of_either_kind) {
  const std::string file = testing::TempDir() + "oktopk_overrides_test";
  std::ofstream(file) << "dense:n<5;\ntopka\n";
  EXPECT_EQ(to_string(read_overrides(file)), "dense:n<5; topka");
  std::ofstream(file) << " [{\"use\": {\"preset\": \"topka\"}}]\n";
  EXPECT_EQ(to_string(read_overrides(file)), "topka");
  EXPECT_THROW(read_overrides("no/such/file"), UsageError);
}

}  // namespace
}  // namespace oktopk::json_test
