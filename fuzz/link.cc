// SPDX-License-Identifier: Apache-2.0
// A rank of transport tcp whose peer has proved itself and then sends anything: raw bytes, or frames with the right
// tags. Receives are posted before and after. Only CommError may come of it; a message that arrives fits its buffer.
#include <sys/socket.h>

#include <list>
#include <vector>

#include "fuzz/sockets.h"
#include "fuzz/target.h"
#include "oktopk/comm/tcp/link.h"

namespace {

using namespace oktopk;

constexpr FrameTags kTags{4, 99};
constexpr int kMostActions = 100;

// An operation of one message.
struct Exchange {
  explicit Exchange(std::size_t size) : buffer(size) {}
  std::vector<std::byte> buffer;
  Recv recv{1, {}, 0};
  TcpOperation operation;
};

class Rank {
 public:
  Rank(fuzz::Input& input, bool encrypt) : Rank(input, make_session_pair(encrypt)) {}

  void act() {
    switch (input_.take() % 6) {
      case 0: {
        const auto bytes = input_.take_bytes(input_.take());
        ::send(peer_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        break;
      }
      case 1:
        return put_frame();
      case 2:
        return link_.receive(slot(input_.take(), true));
      case 3:
        return link_.send(slot(input_.take(), false));
      case 4:
        return link_.close_channel(input_.take() % 4);
      default:
        link_.write();
        link_.read();
        drain();
    }
  }

  void check_messages() const {
    for (const Exchange& one : exchanges_) fuzz::check(one.recv.size <= one.buffer.size());
  }
  void die(const CommError& error) {
    link_.die(0, error.what());
    link_.write();
    link_.give_up();
    fuzz::check(link_.has_ended() && !link_.wants_read());
  }

 private:
  Rank(fuzz::Input& input, std::pair<TcpSession, TcpSession> ends)
      : input_(input), link_(std::move(ends.first), {kTags, 0, 1, 1000}), peer_(std::move(ends.second)) {}

  TcpSlot& slot(std::size_t size, bool receives) {
    Exchange& one = exchanges_.emplace_back(size);
    one.recv.buffer = one.buffer;
    one.operation.slots.push_back({&one.operation, 1, input_.take() % 4U, {}, receives ? &one.recv : nullptr});
    if (!receives) one.operation.slots[0].source = one.buffer;
    one.operation.open = 1;
    return one.operation.slots[0];
  }

  // A frame whose numbers are small enough to mean something.
  void put_frame() {
    const auto kind = static_cast<FrameKind>(input_.take() % 10);
    const std::uint32_t length = input_.take();
    const std::uint64_t left = input_.take() % 4 == 0 ? input_.take<std::uint64_t>() : length + input_.take() % 3U;
    const FrameHead head{kind, length, left, input_.take() % 4U, kTags};
    Bytes frame(sizeof head + length);
    std::memcpy(frame.data(), &head, sizeof head);
    const auto body = input_.take_bytes(length);
    std::copy(body.begin(), body.end(), frame.begin() + sizeof head);
    peer_.write(frame, {});
    peer_.flush();
  }

  void drain() {
    std::array<std::byte, 4096> bytes;
    while (peer_.read(bytes) > 0) {
    }
  }

  fuzz::Input& input_;
  std::list<Exchange> exchanges_;  // outlives the link, which writes there
  TcpLink link_;
  TcpStream peer_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  Rank rank(input, input.take() % 2 == 1);
  try {
    for (int i = 0; i < kMostActions && !input.rest().empty(); ++i) rank.act();
  } catch (const CommError& error) {
    try {
      rank.die(error);
    } catch (const CommError&) {
      // The peer may have broken the connection.
    }
  }
  rank.check_messages();
  return 0;
}
