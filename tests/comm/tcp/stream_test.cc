// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/tcp/stream.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "oktopk/base/error.h"
#include "tests/support/communicator_conformance.h"
#include "tests/support/message.h"
#include "tests/support/tcp_pair.h"

namespace oktopk::tcp_stream_test {
namespace {

using conformance::message;

Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

class TcpStreams : public testing::TestWithParam<bool> {};

TEST_P(TcpStreams, move_bytes_of_any_length) {
  auto [a, b] = make_session_pair(GetParam());
  TcpStream out(std::move(a)), in(std::move(b));
  for (const std::size_t size : {1, 40, 16384, 65535, 65536, 65537, 1'000'003}) {
    const auto sent = message(0, 1, 2, size);
    std::vector<std::byte> received(size);
    std::jthread writer([&] { out.write_fully(sent, soon()); });
    in.read_fully(received, soon());
    EXPECT_TRUE(received == sent) << size;
  }
}

TEST_P(TcpStreams, end_of_the_stream_is_a_comm_error) {
  auto [a, b] = make_session_pair(GetParam());
  TcpStream in(std::move(b));
  { const TcpStream out(std::move(a)); }
  std::vector<std::byte> bytes(4);
  EXPECT_THROW(in.read_fully(bytes, soon()), CommError);
}

TEST_P(TcpStreams, reading_nothing_returns_at_once) {
  auto [a, b] = make_session_pair(GetParam());
  TcpStream in(std::move(b));
  std::vector<std::byte> bytes(4);
  EXPECT_EQ(in.read(bytes), 0u);
}

INSTANTIATE_TEST_SUITE_P(All, TcpStreams, testing::Bool(),
                         [](const auto& test) { return test.param ? "sealed" : "plain"; });

TEST(TcpStream, record_that_was_changed_is_a_comm_error) {
  auto [a, b] = make_session_pair(true);
  TcpStream in(std::move(b));
  std::vector<std::byte> bytes(4 + 10 + RecordCipher::kTagBytes);
  bytes[0] = std::byte{10};
  write_fully(a.socket, bytes, soon());
  EXPECT_THROW(in.read_fully(std::span(bytes).first(10), soon()), CommError);
}

TEST(TcpStream, record_of_a_wild_length_is_a_comm_error) {
  auto [a, b] = make_session_pair(true);
  TcpStream in(std::move(b));
  const std::vector<std::byte> bytes(4, std::byte{0xff});
  write_fully(a.socket, bytes, soon());
  std::vector<std::byte> read(10);
  expect_error<CommError>("which is no length", [&] { in.read_fully(read, soon()); });
}

}  // namespace
}  // namespace oktopk::tcp_stream_test
