// SPDX-License-Identifier: Apache-2.0
// Frames that must not be believed, and messages that come before their receive.
#include "oktopk/comm/tcp/link.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "tests/support/communicator_conformance.h"
#include "tests/support/message.h"
#include "tests/support/tcp_pair.h"

namespace oktopk::tcp_link_test {
namespace {

using conformance::Message;
using conformance::message;

constexpr FrameTags kTags{4, 99};
constexpr std::uint64_t kChannel = 8;

Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

// A link of rank 0 to rank 1, and the bare connection of rank 1.
class TcpLinks : public testing::Test {
 protected:
  TcpLinks() : TcpLinks(make_session_pair(false)) {}
  explicit TcpLinks(std::pair<TcpSession, TcpSession> ends)
      : link(std::move(ends.first), {kTags, 0, 1, 1000}), peer(std::move(ends.second)) {}

  void put(FrameHead head, const Message& body = {}) {
    write_fully(peer.socket, std::as_bytes(std::span(&head, 1)), soon());
    write_fully(peer.socket, body, soon());
  }
  void put_message(const Message& body) { put(head_of(body), body); }
  void grant(std::uint64_t bytes) { put({FrameKind::credit, 0, bytes, 0, kTags}), link.read(); }
  // The frame that the link sends next.
  FrameHead take_head() {
    link.write();
    FrameHead head{};
    read_fully(peer.socket, std::as_writable_bytes(std::span(&head, 1)), soon());
    return head;
  }
  static FrameHead head_of(const Message& body) {
    return {FrameKind::data, static_cast<std::uint32_t>(body.size()), body.size(), kChannel, kTags};
  }
  void receive() {
    operation.slots.clear();
    operation.slots.push_back({&operation, 1, kChannel, {}, &recv});
    operation.open = 1;
    link.receive(operation.slots[0]);
  }
  void expect_refused(const FrameHead& head, std::string_view words) {
    put(head);
    expect_error<CommError>(words, [&] { link.read(); });
  }
  void send(std::uint64_t channel, const Message& body) {
    operation.slots.push_back({&operation, 1, channel, body, nullptr});
    operation.open = 1;
    link.send(operation.slots[0]);
    link.write();
  }

  TcpLink link;
  TcpSession peer;
  TcpOperation operation;
  Message buffer = Message(2000);
  Recv recv{1, buffer, 0};
};

struct BadFrame {
  FrameHead head;
  std::string_view words;
};

class TcpBadFrames : public TcpLinks, public testing::WithParamInterface<BadFrame> {};

TEST_P(TcpBadFrames, are_refused) { expect_refused(GetParam().head, GetParam().words); }

constexpr std::uint64_t kWild = std::uint64_t{1} << 60;
const BadFrame kBadFrames[] = {
    {{FrameKind::data, 0, 0, kChannel, {5, 99}}, "epoch 5"},
    {{FrameKind::data, 0, 0, kChannel, {4, 98}}, "another start"},
    {{FrameKind{77}, 0, 0, 0, kTags}, "kind 77"},
    {{FrameKind::failure, 1u << 30, 0, 0, kTags}, "control frame"},
    {{FrameKind::data, 100, 50, kChannel, kTags}, "does not fit"},
    {{FrameKind::data, ~0u, ~std::uint64_t{0}, kChannel, kTags}, "does not fit"},
    {{FrameKind::failure, 0, 0, 0, kTags}, "without a reason"},
    {{FrameKind::data, 100, kWild, kChannel, kTags}, "beyond its credit"},  // and allocates nothing
    {{FrameKind::accept, 0, 0, kChannel, kTags}, "not offered"},
};
INSTANTIATE_TEST_SUITE_P(All, TcpBadFrames, testing::ValuesIn(kBadFrames));

TEST_F(TcpLinks, end_without_goodbye_says_that_the_peer_died) {
  peer.socket = Socket();
  EXPECT_THROW(link.read(), CommError);
}

TEST_F(TcpLinks, message_goes_into_a_posted_receive) {
  receive();
  const Message sent = message(1, 0, 0, 700);
  put_message(sent);
  link.read();
  EXPECT_EQ(operation.open, 0u);
  EXPECT_EQ(conformance::arrived(recv), sent);
}

TEST_F(TcpLinks, early_messages_wait_in_order_and_their_credit_comes_back) {
  EXPECT_EQ(take_head().left, 1000u) << "the first credit";
  std::vector<Message> sent;
  for (int i = 0; i < 2; ++i) sent.push_back(message(1, 0, i, 400));
  for (const Message& one : sent) put_message(one);
  link.read();
  EXPECT_FALSE(link.wants_write());
  for (const Message& one : sent) {
    receive();
    ASSERT_EQ(operation.open, 0u);
    EXPECT_EQ(conformance::arrived(recv), one);
    const FrameHead head = take_head();
    EXPECT_EQ(head.kind, FrameKind::credit);
    EXPECT_EQ(head.left, 400u);
  }
}

TEST_F(TcpLinks, early_message_beyond_the_credit_is_refused) {
  put_message(message(1, 0, 0, 700));
  link.read();
  expect_refused(head_of(message(1, 0, 1, 301)), "301 bytes before their receive was posted, beyond its credit");
}

TEST_F(TcpLinks, message_of_a_wild_size_does_not_fit_its_receive) {
  receive();
  expect_refused({FrameKind::data, 100, kWild, kChannel, kTags}, "capacity 2000");
}

TEST_F(TcpLinks, second_offer_in_a_channel_is_refused) {
  put({FrameKind::offer, 0, 5000, kChannel, kTags});
  link.read();
  expect_refused({FrameKind::offer, 0, 5000, kChannel, kTags}, "offered a message twice");
}

// Channels that both ends have closed are forgotten, but not under a message that is still arriving.
TEST_F(TcpLinks, leaving_a_channel_in_the_middle_of_a_message_is_refused) {
  put({FrameKind::data, 4, 10, kChannel, kTags}, Message(4));
  link.read();
  link.close_channel(kChannel);
  expect_refused({FrameKind::leave, 0, 0, kChannel, kTags}, "left a channel in the middle of a message");
  put({FrameKind::data, 6, 6, kChannel, kTags}, Message(6));
  EXPECT_NO_THROW(link.read());
}
TEST_F(TcpLinks, message_in_a_channel_that_its_sender_left_is_refused) {
  put({FrameKind::leave, 0, 0, kChannel, kTags});
  link.read();
  expect_refused({FrameKind::data, 4, 10, kChannel, kTags}, "sent a message in a channel that it has left");
}
TEST_F(TcpLinks, goodbye_in_the_middle_of_a_message_is_refused) {
  receive();
  put({FrameKind::data, 4, 10, kChannel, kTags}, Message(4));
  link.read();
  expect_refused({FrameKind::goodbye, 0, 0, 0, kTags}, "left in the middle of a message");
}

// A message beyond the credit waits for its receive; it passes none of its channel, and holds up no other channel.
TEST_F(TcpLinks, message_beyond_the_credit_is_offered_and_others_pass_it) {
  take_head();
  grant(50);
  const Message large = message(0, 1, 0, 60), small = message(0, 1, 1, 10);
  TcpOperation sends;
  const std::vector<std::pair<std::uint64_t, Message>> order = {{1, large}, {1, small}, {2, small}};
  for (const auto& [channel, body] : order) sends.slots.push_back({&sends, 1, channel, body, nullptr});
  sends.open = sends.slots.size();
  for (TcpSlot& slot : sends.slots) link.send(slot);
  const auto expect_data = [&](std::uint64_t channel, const Message& body) {
    const FrameHead head = take_head();
    EXPECT_EQ(head.kind, FrameKind::data);
    EXPECT_EQ(head.channel, channel);
    Message got(head.length);
    read_fully(peer.socket, got, soon());
    EXPECT_EQ(got, body);
  };
  expect_data(2, small);
  const FrameHead offer = take_head();
  EXPECT_EQ(offer.kind, FrameKind::offer);
  EXPECT_EQ(offer.left, 60u);
  EXPECT_EQ(sends.open, 2u);
  EXPECT_FALSE(link.wants_write()) << "the second one of the channel waits behind the first";
  put({FrameKind::accept, 0, 0, 1, kTags});
  link.read();
  expect_data(1, large);
  expect_data(1, small);
  EXPECT_EQ(sends.open, 0u);
}

// Nobody will receive it: the send ends as that of a message which was dropped over there.
TEST_F(TcpLinks, message_that_was_offered_ends_when_the_peer_leaves_the_channel) {
  const Message large = message(0, 1, 0, 60);
  send(kChannel, large);
  EXPECT_EQ(operation.open, 1u);
  put({FrameKind::leave, 0, 0, kChannel, kTags});
  link.read();
  EXPECT_EQ(operation.open, 0u);
}

TEST_F(TcpLinks, dying_half_way_through_a_piece_still_tells_why) {
  grant(4'000'000);
  const Message large = message(0, 1, 0, 4'000'000);
  send(kChannel, large);
  ASSERT_TRUE(link.wants_write()) << "the connection took all of it";
  link.die(3, "rank 3 is the cause");
  TcpLink other(std::move(peer), {kTags, 1, 0, std::size_t{8} << 20});
  for (int i = 0; i < 1000; ++i) {
    link.write();
    try {
      other.read();
    } catch (const TcpFailure& failure) {
      EXPECT_EQ(failure.culprit, 3);
      EXPECT_STREQ(failure.what(), "rank 3 is the cause");
      return;
    }
  }
  ADD_FAILURE() << "the reason did not arrive";
}

}  // namespace
}  // namespace oktopk::tcp_link_test
