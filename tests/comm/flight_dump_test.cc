// SPDX-License-Identifier: Apache-2.0
// Dumps of flight recorders; tests/tools/doctor_test.cc reads them with a JSON parser.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "oktopk/base/error.h"
#include "oktopk/base/version.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/flight.h"
#include "tests/support/world.h"

namespace oktopk::flight_dump_test {
namespace {

bool has(const std::string& json, const std::string& part) { return json.find(part) != std::string::npos; }

TEST(FlightDump, names_rank_versions_step_and_operations) {
  run_world("threads", 3, [](Communicator& comm) {
    comm.flight()->begin_step(7);
    barrier(comm);
    comm.flight()->note_error("a \"quoted\"\nerror");
    const std::string json = comm.flight()->to_json();
    EXPECT_TRUE(has(json, R"("format":"oktopk-flight","version":1)")) << json;
    EXPECT_TRUE(has(json, text_of(R"("library":")", library_version(), R"(","wire":)", kWireVersion))) << json;
    EXPECT_TRUE(has(json, text_of(R"("rank":)", comm.rank(), R"(,"size":3,"transport":"threads")"))) << json;
    EXPECT_TRUE(has(json, text_of(R"("pid":)", getpid()))) << json;
    EXPECT_TRUE(has(json, R"("step":7,"in_step":true)")) << json;
    EXPECT_TRUE(has(json, R"("error":"a \"quoted\"\u000aerror")")) << json;
    EXPECT_TRUE(has(json, R"("label":"barrier","step":7,"state":"done")")) << json;
    EXPECT_TRUE(has(json, text_of(R"("sends":[[)", neighbour(comm, 1), ",0,0]]"))) << json;
    EXPECT_TRUE(has(json, text_of(R"("receives":[[)", neighbour(comm, -1), ",0,0,0]]"))) << json;
  });
}

TEST(FlightDump, file_is_whole_and_alone) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / text_of("oktopk-flight-", getpid());
  std::filesystem::create_directory(folder);
  run_world("threads", 1, [&](Communicator& comm) {
    comm.flight()->write(folder / "dump.json");
    std::ifstream in(folder / "dump.json");
    std::stringstream text;
    text << in.rdbuf();
    EXPECT_TRUE(text.str().ends_with("}\n"));
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
    EXPECT_THROW(comm.flight()->write(folder / "no" / "dump.json"), UsageError);
  });
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace oktopk::flight_dump_test
