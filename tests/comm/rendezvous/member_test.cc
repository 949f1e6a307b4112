// SPDX-License-Identifier: Apache-2.0
// Members and their arbiter in one process: servers that go and come back. An arbiter that is stopped:
// tests/tcp/elastic_test.cc.
#include "oktopk/comm/rendezvous/member.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "oktopk/base/error.h"
#include "tests/support/message.h"
#include "tests/support/tcp_world.h"
#include "tests/support/world.h"

namespace oktopk::rendezvous_member_test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Ids = std::vector<MemberId>;

// Within a minute.
template <class Condition>
bool comes_true(const Condition& is_true) {
  for (const auto end = Clock::now() + 60s; Clock::now() < end; std::this_thread::sleep_for(5ms))
    if (is_true()) return true;
  return false;
}

class MemberLinks : public testing::Test {
 protected:
  ~MemberLinks() override {
    links.clear();
    server.reset();
    std::filesystem::remove(file);
  }

  void serve(const std::string& address, const std::string& state = "") {
    server.reset();  // the address is free again
    server = std::make_unique<RendezvousServer>(RendezvousServerOptions{.listen = address,
                                                                        .secret = kTestSecret,
                                                                        .grace = grace,
                                                                        .settle = 100ms,
                                                                        .state = state,
                                                                        .log = [this](const std::string& text) {
                                                                          const std::lock_guard lock(mutex);
                                                                          said += text + "\n";
                                                                        }});
  }
  std::unique_ptr<MemberLink> make_link(std::uint64_t least, std::function<void()> expel = {}) {
    return std::make_unique<MemberLink>(MemberLink::Options{.server = {server->address(), kTestSecret, "", false, 60s},
                                                            .least = least,
                                                            .look = {},
                                                            .expel = std::move(expel)});
  }
  // Members of the first epoch.
  void found(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) links.push_back(make_link(count));
    regroup(0);
  }
  void regroup(std::uint64_t committed) {
    run_ranks(static_cast<int>(links.size()),
              [&](int i) { links[static_cast<std::size_t>(i)]->await_epoch(committed); });
  }
  bool has_said(const std::string& text) {
    const std::lock_guard lock(mutex);
    return said.find(text) != std::string::npos;
  }

  const std::string file = testing::TempDir() + "oktopk-" + make_random_secret();
  Communicator::Duration grace = 20s;
  std::mutex mutex;
  std::string said;
  std::unique_ptr<RendezvousServer> server;
  std::vector<std::unique_ptr<MemberLink>> links;
};

TEST_F(MemberLinks, members_go_on_with_a_server_that_knows_nothing) {
  serve("127.0.0.1:0");
  found(3);
  const Ids ids = links[0]->membership().ids;
  const std::uint64_t run = links[0]->membership().run;
  serve(server->address());
  ASSERT_TRUE(comes_true([&] { return has_said("goes on with epoch 1 of members 1, 2, 3"); }));
  regroup(7);
  for (const auto& link : links) {
    EXPECT_EQ(link->membership().ids, ids);
    EXPECT_EQ(link->membership().epoch, 2u);
    EXPECT_EQ(link->membership().run, run);
    EXPECT_EQ(link->membership().committed, 7u);
    const std::vector<std::string> notes = link->take_notes();
    ASSERT_EQ(notes.size(), 2u);
    EXPECT_EQ(notes[0].find("the arbiter cannot be reached, and the job goes on: "), 0u) << notes[0];
    EXPECT_EQ(notes[1].find("the arbiter answers again, after "), 0u) << notes[1];
  }
}

TEST_F(MemberLinks, epoch_that_is_asked_for_while_the_server_is_away_comes_when_it_is_back) {
  serve("127.0.0.1:0", file);
  found(2);
  const std::string address = server->address();
  server.reset();
  std::jthread returns([&] {
    std::this_thread::sleep_for(300ms);
    serve(address, file);
  });
  regroup(3);
  EXPECT_EQ(links[0]->membership().epoch, 2u);
  EXPECT_EQ(links[1]->membership().ids, (Ids{1, 2}));
}

TEST_F(MemberLinks, server_with_a_state_file_knows_who_has_left) {
  serve("127.0.0.1:0", file);
  found(3);
  const Ids left = {links[2]->id()};
  const MemberId first = links[0]->id(), second = links[1]->id();
  links.pop_back();  // says goodbye
  serve(server->address(), file);
  EXPECT_TRUE(has_said("goes on with epoch 1 of members 1, 2, 3"));
  regroup(1);
  EXPECT_EQ(links[0]->membership().lost, left);
  EXPECT_EQ(links[0]->id(), first);
  EXPECT_EQ(links[1]->id(), second);
  const auto permissions = std::filesystem::status(file).permissions();
  EXPECT_EQ(permissions & std::filesystem::perms::others_read, std::filesystem::perms::none);
}

TEST_F(MemberLinks, state_file_that_is_damaged_is_refused_by_name) {
  std::ofstream(file) << "something else";
  EXPECT_EQ(message_of([&] { serve("127.0.0.1:0", file); }),
            "rendezvous: the state in " + file + " cannot be used: it does not begin with oktopk-arbiter-1");
  EXPECT_EQ(std::ifstream(file).get(), 's') << "it stays as it is";
}

TEST_F(MemberLinks, state_file_that_cannot_be_written_is_said_once_and_the_job_goes_on) {
  serve("127.0.0.1:0", "/proc/oktopk-no-such-file");
  found(2);
  regroup(1);
  EXPECT_TRUE(has_said("the state cannot be written to /proc/oktopk-no-such-file: "));
  const std::lock_guard lock(mutex);
  EXPECT_EQ(said.find("cannot be written"), said.rfind("cannot be written"));
}

TEST_F(MemberLinks, joiner_is_seen_and_comes_in) {
  serve("127.0.0.1:0");
  found(2);
  EXPECT_FALSE(links[0]->has_joiners());
  links.push_back(make_link(1));
  ASSERT_TRUE(comes_true([&] { return links[0]->has_joiners() && links[1]->has_joiners(); }));
  regroup(5);
  EXPECT_EQ(links[2]->membership().joined, (Ids{3}));
  EXPECT_TRUE(comes_true([&] { return !links[0]->has_joiners(); }));
}

TEST_F(MemberLinks, member_that_was_given_up_is_expelled_and_told_so) {
  grace = 200ms;
  serve("127.0.0.1:0");
  std::atomic<int> expelled = 0;
  for (int i = 0; i < 2; ++i) links.push_back(make_link(2, [&] { ++expelled; }));
  regroup(0);
  links[0]->await_epoch(1);  // the other one does not come
  EXPECT_EQ(links[0]->membership().lost, Ids{links[1]->id()});
  ASSERT_TRUE(comes_true([&] { return expelled == 1; }));
  EXPECT_EQ(message_of<CommError>([&] { links[1]->await_epoch(1); }),
            "tcp: this member is not in the next epoch: it was given up, and can only join anew");
}

TEST_F(MemberLinks, kill_ends_a_wait_and_all_later_ones) {
  serve("127.0.0.1:0");
  links.push_back(make_link(2));
  std::jthread killer([&] {
    std::this_thread::sleep_for(50ms);
    links[0]->kill();
  });
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(message_of<CommError>([&] { links[0]->await_epoch(1); }), "tcp: this member was closed");
}

TEST_F(MemberLinks, server_that_is_not_there_is_an_error_soon) {
  serve("127.0.0.1:0");
  const MemberLink::Options nobody{
      .server = {"127.0.0.1:1", kTestSecret, "", false, 600s}, .least = 1, .look = {}, .expel = {}};
  MemberLink lonely(nobody);
  expect_error<CommError>("the rendezvous at 127.0.0.1:1: ", [&] { lonely.await_epoch(0); });
}

TEST_F(MemberLinks, look_may_end_a_wait) {
  serve("127.0.0.1:0");
  MemberLink link({.server = {server->address(), kTestSecret, "", false, 600s},
                   .least = 2,
                   .look = [] { fail<CommError>("a signal came"); },
                   .expel = {}});
  EXPECT_EQ(message_of<CommError>([&] { link.await_epoch(0); }), "a signal came");
}

}  // namespace
}  // namespace oktopk::rendezvous_member_test
