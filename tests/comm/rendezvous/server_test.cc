// SPDX-License-Identifier: Apache-2.0
// The server among strangers, and with many clients.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/rendezvous/arbiter.h"
#include "oktopk/comm/rendezvous/request.h"
#include "oktopk/comm/tcp/socket.h"
#include "oktopk/comm/transports.h"
#include "tests/support/message.h"
#include "tests/support/tcp_world.h"

namespace oktopk::rendezvous_server_test {
namespace {

using namespace std::chrono_literals;

Deadline soon() { return std::chrono::steady_clock::now() + 20s; }

KeyValueStore store_at(const std::string& address) { return make_server_store({address, kTestSecret, "", false, 20s}); }

void say(TcpStream& stream, const MemberWord& word) {
  stream.write_fully(write_request({.kind = RequestKind::member, .value = write_word(word)}), soon());
}
RendezvousRequest read_reply(TcpStream& stream) { return read_request(stream, soon()); }

TEST(RendezvousServer, short_secret_is_a_usage_error) {
  EXPECT_THROW(RendezvousServer({.secret = "short"}), UsageError);
}

TEST(RendezvousServer, taken_address_is_a_comm_error) {
  const RendezvousServer first({.secret = kTestSecret});
  EXPECT_THROW(RendezvousServer({.listen = first.address(), .secret = kTestSecret}), CommError);
}

TEST(RendezvousServer, stranger_is_refused_and_members_are_served) {
  const RendezvousServer server({.secret = kTestSecret});
  const KeyValueStore stranger = make_server_store({server.address(), "not the secret of the job", "", false, 100ms});
  EXPECT_THROW(stranger.set("key", "bad"), CommError);
  {
    const Socket scan = connect_to(parse_endpoint(server.address()), soon());
    const std::string garbage(1000, 'x');
    write_fully(scan, std::as_bytes(std::span(garbage)), soon());
    std::array<std::byte, 1> nothing{};
    EXPECT_THROW(read_fully(scan, nothing, soon()), CommError);
  }
  EXPECT_GE(server.refusals().count(), 2u);
  const KeyValueStore member = store_at(server.address());
  EXPECT_EQ(member.get("key", 0s), std::nullopt);
}

TEST(RendezvousServer, largest_value_that_can_be_set_can_be_read) {
  const RendezvousServer server({.secret = kTestSecret});
  const KeyValueStore store = store_at(server.address());
  constexpr std::size_t kHead = 1 + sizeof(std::uint64_t) + sizeof(std::uint32_t);
  const std::string largest(kMostRequestBytes - kHead - 1, 'x');
  store.set("k", largest);
  EXPECT_EQ(store.get("k", 20s), largest);
  EXPECT_THROW(store.set("k", largest + "x"), UsageError);
  const auto stream = connect_to_server({server.address(), kTestSecret, "", false, 20s}, soon());
  stream->write_fully(std::vector<std::byte>(kRequestLengthBytes, std::byte{0x7f}), soon());
  expect_error<CommError>("closed the connection", [&] { read_reply(*stream); });
}

// Connections end and members speak in one turn of the server.
TEST(RendezvousServer, words_are_heard_beside_connections_that_end) {
  const RendezvousServer server({.secret = kTestSecret});
  const ServerStoreOptions options{server.address(), kTestSecret, "", false, 20s};
  for (int round = 0; round < 50; ++round) {
    std::vector<std::unique_ptr<TcpStream>> streams;
    for (int i = 0; i < 8; ++i) streams.push_back(connect_to_server(options, soon()));
    for (std::size_t i = 0; i < 4; ++i) streams[i]->close();
    for (std::size_t i = 4; i < 8; ++i) say(*streams[i], {.token = 7, .number = 1});
    read_reply(*streams[7]);
  }
}

// A member's last word over a connection that broke arrives behind the first one over its new connection.
TEST(RendezvousServer, late_word_of_an_older_connection_takes_nothing_from_the_newer_one) {
  const RendezvousServer server({.secret = kTestSecret});
  const auto connect = [&] { return connect_to_server({server.address(), kTestSecret, "", false, 20s}, soon()); };
  const auto older = connect(), newer = connect(), other = connect();
  MemberWord word{.want = MemberWord::Want::regroup, .token = 7, .number = 2, .least = 2};
  say(*newer, word);
  EXPECT_EQ(read_reply(*newer).kind, RequestKind::wait);
  word.number = 3;
  say(*newer, word);
  std::this_thread::sleep_for(50ms);  // the server has read it, and has not answered yet
  word.number = 1;
  say(*older, word);
  std::this_thread::sleep_for(50ms);
  older->close();
  say(*other, {.want = MemberWord::Want::regroup, .token = 8, .number = 1, .least = 2});
  RendezvousRequest reply = read_reply(*newer);
  while (reply.kind == RequestKind::wait) {
    word.number += 2;
    say(*newer, word);
    reply = read_reply(*newer);
  }
  EXPECT_EQ(reply.kind, RequestKind::membership);
}

// In a process of its own, because the limit is the process's.
TEST(RendezvousServer, descriptors_that_run_out_are_reported_and_cost_no_processor) {
  std::array<int, 2> out{}, in{};
  ASSERT_EQ(pipe(out.data()) + pipe(in.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit few{.rlim_cur = 40, .rlim_max = 40};
    setrlimit(RLIMIT_NOFILE, &few);
    const RendezvousServer server({.secret = kTestSecret});
    std::string text = server.address() + "\n";
    [[maybe_unused]] auto count = write(out[1], text.data(), text.size());
    count = read(in[0], text.data(), 1);
    const auto reasons = server.refusals().last();
    const std::clock_t before = std::clock();
    std::this_thread::sleep_for(1500ms);
    text = text_of((std::clock() - before) * 1000 / CLOCKS_PER_SEC, " ", reasons.empty() ? "" : reasons.back(), "\n");
    count = write(out[1], text.data(), text.size());
    count = read(in[0], text.data(), 1);
    _exit(0);
  }
  const auto tell = [&] { EXPECT_EQ(write(in[1], "x", 1), 1); };
  FILE* const from_child = fdopen(out[0], "r");
  std::array<char, 512> line{};
  const auto next_line = [&] {
    EXPECT_NE(std::fgets(line.data(), line.size(), from_child), nullptr);
    return std::string(line.data(), std::strcspn(line.data(), "\n"));
  };
  const std::string address = next_line();
  {
    std::vector<Socket> idle;
    for (int i = 0; i < 60; ++i) idle.push_back(connect_to(parse_endpoint(address), soon()));
    std::this_thread::sleep_for(300ms);  // the server tries to accept them
    tell();
    const std::string answer = next_line();
    EXPECT_LT(std::stoi(answer), 100) << "milliseconds of processor time in 1.5 s";
    EXPECT_NE(answer.find("this process may open 40 files (ulimit -n)"), std::string::npos) << answer;
  }
  store_at(address).set("key", "value");  // it has recovered
  tell();
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  std::fclose(from_child);
  for (const int fd : {out[1], in[0], in[1]}) close(fd);
}

}  // namespace
}  // namespace oktopk::rendezvous_server_test
