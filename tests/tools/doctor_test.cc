// SPDX-License-Identifier: Apache-2.0
// The doctor on dumps of real worlds: ranks that stall, die, differ or wait in a circle; and on files that are no
// dumps.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/flight.h"
#include "oktopk/comm/transports.h"
#include "tools/diagnosis.h"

namespace oktopk::doctor_test {
namespace {

namespace fs = std::filesystem;

class Doctor : public ::testing::Test {
 protected:
  Doctor() : folder_(fs::temp_directory_path() / text_of("oktopk-doctor-", getpid())) {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  ~Doctor() override { fs::remove_all(folder_); }

  std::string file(int rank) const { return folder_ / text_of("oktopk-flight-", rank, ".json"); }

  // Runs `body` on P ranks, which may fail, and dumps the ranks for which `dumps` is true.
  void run(
      int P, const std::function<void(Communicator&)>& body,
      const std::function<bool(int)>& dumps = [](int) { return true; }) {
    auto comms = make_thread_world(P, std::chrono::milliseconds(300));
    std::vector<std::jthread> threads;
    for (auto& comm : comms) {
      threads.emplace_back([&] {
        try {
          body(*comm);
        } catch (const std::exception& error) {
          comm->flight()->note_error(error.what());
        }
      });
    }
    threads.clear();
    for (auto& comm : comms)
      if (dumps(comm->rank())) comm->flight()->write(file(comm->rank()));
  }

  Diagnosis ask() const { return diagnose(read_dumps({folder_}), 0); }

  static bool says(const Diagnosis& diagnosis, const std::string& part) {
    for (const std::string& finding : diagnosis.findings)
      if (finding.find(part) != std::string::npos) return true;
    return false;
  }
  static std::string all(const Diagnosis& diagnosis) { return diagnosis.json().dump(2); }

  void expect_refused(const std::string& text, const std::string& why) const {
    std::ofstream(file(0)) << text;
    try {
      read_dumps({folder_});
      ADD_FAILURE() << "taken: " << text;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("oktopk-flight-0.json"), std::string::npos) << error.what();
    }
  }

  fs::path folder_;
};

TEST_F(Doctor, finds_nothing_wrong_in_a_sound_world) {
  run(5, [](Communicator& comm) {
    comm.flight()->begin_step(3);
    const auto part = comm.split(comm.rank() % 2, 0);
    barrier(*part);
    barrier(comm);
    comm.flight()->end_step();
  });
  const Diagnosis diagnosis = ask();
  EXPECT_TRUE(diagnosis.is_fine) << all(diagnosis);
  EXPECT_EQ(diagnosis.ranks.size(), 5U);
  EXPECT_EQ(diagnosis.ranks[4]["step"], 3);
}

TEST_F(Doctor, names_the_rank_that_stalls_and_all_who_wait) {
  run(4, [](Communicator& comm) {
    comm.flight()->begin_step(41);
    barrier(comm);
    comm.flight()->end_step();
    if (comm.rank() == 2) return;
    comm.flight()->begin_step(42);
    barrier(comm);
  });
  const Diagnosis diagnosis = ask();
  EXPECT_FALSE(diagnosis.is_fine);
  EXPECT_TRUE(
      says(diagnosis, "ranks 0, 1 and 3 wait for rank 2; rank 2 waits for nobody: it computes, or hangs outside"))
      << all(diagnosis);
  EXPECT_TRUE(
      says(diagnosis, "it is behind step 41, where others are in step 42; its last operation was barrier of step"))
      << all(diagnosis);
  EXPECT_TRUE(says(diagnosis, "failed first, in step 42")) << all(diagnosis);
  EXPECT_TRUE(says(diagnosis, "no answer within 0.3 s from rank")) << all(diagnosis);
}

TEST_F(Doctor, names_the_rank_that_left_no_dump) {
  run(
      3,
      [](Communicator& comm) {
        if (comm.rank() != 1) barrier(comm);
      },
      [](int rank) { return rank != 1; });
  const Diagnosis diagnosis = ask();
  EXPECT_FALSE(diagnosis.is_fine);
  EXPECT_TRUE(says(diagnosis, "ranks 0 and 2 wait for rank 1; rank 1 left no dump")) << all(diagnosis);
  EXPECT_TRUE(says(diagnosis, "there is no dump of rank 1")) << all(diagnosis);
}

TEST_F(Doctor, names_different_collectives) {
  run(3, [](Communicator& comm) {
    Workspace work;
    barrier(comm);
    std::array<std::uint64_t, 3> numbers = {1, 2, 3};
    if (comm.rank() == 1)
      allreduce_small(comm, numbers[0], Reduction::max, work);
    else
      allgather(comm, std::as_bytes(std::span(numbers).first(1)), std::as_writable_bytes(std::span(numbers)), work);
  });
  const Diagnosis diagnosis = ask();
  EXPECT_FALSE(diagnosis.is_fine);
  EXPECT_TRUE(says(diagnosis, "the ranks do different things: rank ")) << all(diagnosis);
  EXPECT_TRUE(says(diagnosis, "in allreduce of step 0")) << all(diagnosis);
  EXPECT_TRUE(says(diagnosis, "in allgather of step 0")) << all(diagnosis);
}

TEST_F(Doctor, names_sizes_that_differ) {
  run(2, [](Communicator& comm) {
    const std::vector<std::byte> out(comm.rank() == 0 ? 10 : 100);
    std::vector<std::byte> in(10);
    const Send send{1 - comm.rank(), out};
    Recv recv{1 - comm.rank(), in};
    comm.exchange({&send, 1}, {&recv, 1});
  });
  const Diagnosis diagnosis = ask();
  EXPECT_TRUE(says(diagnosis, "rank 1 sends 100 bytes to rank 0, which has room for 10")) << all(diagnosis);
}

TEST_F(Doctor, names_a_circle) {
  run(3, [](Communicator& comm) {
    std::vector<std::byte> in(1);
    Recv recv{neighbour(comm, 1), in};
    comm.exchange({}, {&recv, 1});
  });
  const Diagnosis diagnosis = ask();
  EXPECT_TRUE(says(diagnosis, "ranks 0, 1 and 2 wait for each other in a circle: they make different calls"))
      << all(diagnosis);
}

TEST_F(Doctor, shows_the_calls_of_a_circle_in_the_rows_of_its_ranks) {
  run(3, [](Communicator& comm) {
    Workspace work;
    if (comm.rank() == 1)
      allreduce_small(comm, std::uint64_t{1}, Reduction::max, work);
    else
      barrier(comm);
  });
  const Diagnosis diagnosis = ask();
  EXPECT_TRUE(says(diagnosis, "wait for each other in a circle")) << all(diagnosis);
  EXPECT_EQ(diagnosis.ranks[1]["last"], "allreduce of step 0");
  EXPECT_EQ(diagnosis.ranks[2]["last"], "barrier of step 0");
}

TEST_F(Doctor, translates_ranks_of_parts) {
  run(5, [](Communicator& comm) {
    const auto part = comm.split(comm.rank() % 2, -comm.rank());  // 4, 2, 0 and 3, 1
    if (comm.rank() == 4) return comm.flight()->note_error("gone");
    barrier(*part);
  });
  const Diagnosis diagnosis = ask();
  EXPECT_TRUE(says(diagnosis, "ranks 0 and 2 wait for rank 4; rank 4 failed: gone")) << all(diagnosis);
}

TEST_F(Doctor, short_waits_of_a_running_world_are_no_trouble) {
  auto comms = make_thread_world(3);
  std::vector<std::byte> in(1);
  Recv recv{2, in};
  const Pending open = comms[0]->start({}, {&recv, 1});
  for (auto& comm : comms) comm->flight()->write(file(comm->rank()));
  EXPECT_TRUE(diagnose(read_dumps({folder_}), 1e6).is_fine);
  EXPECT_TRUE(says(ask(), "rank 0 waits for rank 2"));
}

TEST_F(Doctor, refuses_files_that_are_no_dumps) {
  run(2, [](Communicator& comm) { barrier(comm); });
  std::ifstream in(file(0));
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    EXPECT_NE(text.find(from), std::string::npos) << from;
    return text.replace(text.find(from), from.size(), to);
  };
  expect_refused("", "damaged");
  expect_refused(good.substr(0, good.size() / 2), "damaged");
  expect_refused("[1, 2]", "damaged");
  expect_refused("{\"format\": \"other\"}", "no dump of a flight recorder");
  expect_refused(with("\"version\":1", "\"version\":9"), "version 9");
  expect_refused(with("\"rank\":0", "\"rank\":7"), "rank 7 of 2");
  expect_refused(with("\"sends\":[[1", "\"sends\":[[5"), "rank 5");
  expect_refused(with("\"state\":\"done\"", "\"state\":\"odd\""), "unknown state 'odd'");
  expect_refused(with("\"sent\":[0,1]", "\"sent\":[0]"), "do not have 2 numbers");
  expect_refused(with("\"rank\":0,\"size\":2", "\"rank\":1,\"size\":2"), "both of rank 1");
  expect_refused(with("\"rank\":0,\"size\":2,\"transport\"", "\"rank\":0,\"size\":9,\"transport\""), "world of");
  // Numbers that a field cannot hold.
  expect_refused(with("\"rank\":0", "\"rank\":4294967296"), "4294967296 is no whole number");
  expect_refused(with("\"rank\":0", "\"rank\":0.5"), "0.5 is no whole number");
  expect_refused(with("\"sends\":[[1,0", "\"sends\":[[1,-1"), "-1 is no whole number");
  expect_refused(with("\"wall_ns\":", "\"wall_ns\":-"), "a time of -");
  expect_refused(with("\"error_ns\":0", "\"error_ns\":9223372036854775807"), "a time of 9223372036854775807");
  expect_refused(with("\"size\":2", "\"size\":2000000000"), "rank 0 of 2000000000");
  fs::remove(file(0));
  fs::remove(file(1));
  EXPECT_THROW(read_dumps({folder_}), UsageError);
  EXPECT_THROW(read_dumps({folder_ / "absent.json"}), UsageError);
}

TEST_F(Doctor, reads_communicators_of_different_sizes) {
  run(3, [](Communicator& comm) {
    if (comm.rank() != 1) barrier(comm);
  });
  std::ifstream in(file(1));
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const std::string line = R"("name":"world","rank":1,"size":3,"ranks":[],"sent":[0,0,0],"received":[0,0,0])";
  ASSERT_NE(text.find(line), std::string::npos) << text;
  text.replace(text.find(line), line.size(),
               R"("name":"world","rank":0,"size":1,"ranks":[],"sent":[9],"received":[9])");
  std::ofstream(file(1)) << text;
  EXPECT_FALSE(ask().is_fine);
}

TEST_F(Doctor, names_the_first_of_many_ranks) {
  std::vector<int> ranks(1000);
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::string text = name_ranks(ranks);
  EXPECT_TRUE(text.starts_with("ranks 0, 1, 2, ")) << text;
  EXPECT_TRUE(text.ends_with(", 31 and 968 others")) << text;
}

}  // namespace
}  // namespace oktopk::doctor_test
