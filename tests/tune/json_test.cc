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
  EXPECT_EQ(complaint([](J& j) { j["index_seconds"]["bitmpa"] = 1; }),
            "profile x: index_seconds: unknown field \"bitmpa\"");
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

TEST(ProfileJson, without_a_newer_coding_keeps_its_usual_price) {
  nlohmann::json json = nlohmann::json::parse(to_json(sample()));
  json["index_seconds"].erase("bitmap");
  json["value_seconds"].erase("log4");
  const Profile profile = profile_from_json(json.dump(), "x");
  EXPECT_EQ(profile.index_seconds, (std::array<double, kIndexCodingCount>{0, 1, 2, 3, Profile{}.index_seconds[4], 5}));
  EXPECT_EQ(profile.value_seconds, (std::array<double, kValueCodingCount>{0, 0.1, 0.2, Profile{}.value_seconds[3]}));
}

}  // namespace
}  // namespace oktopk::json_test
