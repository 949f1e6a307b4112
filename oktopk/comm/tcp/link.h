// SPDX-License-Identifier: Apache-2.0
// The connection of this rank with one other: frames out of a queue of sends, frames into an inbox. A frame has a head
// of 40 bytes and a body. A message is cut into pieces of at most kPieceBytes, so that the notice of a failure need not
// wait for a long message. Frames that belong to another epoch or another start of the job are refused.
// Nothing waits: read() and write() do what they can now. The owner's lock guards all of it (tcp.cc).
// Errors are CommErrors whose text continues "rank 3 (host:port) ...", or a TcpFailure with the whole text.
// COST: one system call per small message and direction; no copy of messages whose receive is posted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/comm/tcp/queues.h"
#include "oktopk/comm/tcp/stream.h"

namespace oktopk {

enum class FrameKind : std::uint32_t {
  data = 1,       // a piece of a message
  heartbeat = 2,  // a sign of life
  leave = 3,      // the sender has closed its communicator of this channel
  goodbye = 4,    // the sender ends in order; nothing follows
  failure = 5,    // the sender gives up: the rank that is the cause (4 bytes), and the reason
  credit = 6,     // the sender can keep so many more bytes (`left`) before their receives are posted
  offer = 7,      // a message of this channel, of `left` bytes, for which the credit does not suffice
  accept = 8,     // its receive is posted
};

inline constexpr std::size_t kPieceBytes = std::size_t{512} << 10;
inline constexpr std::size_t kMostControlBytes = 4096;

struct FrameTags {
  std::uint64_t epoch = 0;
  std::uint64_t membership = 0;  // a hash of the job, the epoch and the instances of all ranks
};

struct FrameHead {
  FrameKind kind;
  std::uint32_t length;   // of the body
  std::uint64_t left;     // data: bytes of the message from this piece on; credit, offer: bytes
  std::uint64_t channel;  // data, leave, offer, accept: the communicator
  FrameTags tags;
};
static_assert(sizeof(FrameHead) == 40, "the struct travels as it is");

struct TcpLinkOptions {
  FrameTags tags;
  int mine = 0;
  int peer = 0;
  std::size_t early_bytes = 0;
};

class TcpLink {
 public:
  TcpLink(TcpSession session, const TcpLinkOptions& options);

  int fd() const { return stream_.fd(); }
  std::uint64_t host() const { return host_; }
  std::string name() const { return text_of("rank ", options_.peer, " (", address_, ")"); }

  // Puts a send or a receive into its queue. CommError when the peer has left the channel.
  void send(TcpSlot& slot);
  void receive(TcpSlot& slot);

  void tell(FrameKind kind, std::uint64_t channel = 0, Bytes body = {}) {
    tell({kind, 0, 0, channel, {}}, std::move(body));
  }
  void close_channel(std::uint64_t channel);

  void write();
  void read();
  bool wants_write() const { return !is_idle_; }
  bool wants_read() const { return !ended_; }
  // Bytes are here that a poll() would not report.
  bool has_more() const { return !ended_ && has_more_; }

  // Nothing is sent after what is in the queue; what comes is not read any more, up to the end of the stream.
  void end();
  // Drops all sends and receives, so that their buffers are free, tells the peer why, and ends.
  void die(int culprit, const std::string& reason);
  // Neither side will say anything more.
  bool has_ended() const { return ended_; }
  void give_up() { ended_ = true; }
  void close_in_child() { stream_.close(); }

  // Whether bytes went out or came in since the last call. A peer that has left is not missed.
  bool take_sent() { return std::exchange(sent_, false); }
  bool take_heard() { return std::exchange(heard_, false) || ended_ || left_; }

 private:
  enum class Reading { head, data, control };

  // The frame that is being written.
  struct Piece {
    FrameHead head{};
    std::span<const std::byte> body;
    Bytes own;                // of a control frame, or the rest of a message that was dropped: the body
    std::size_t sent = 0;     // of head and body
    TcpSlot* slot = nullptr;  // of data
    bool is_set = false;
  };

  void tell(FrameHead head, Bytes body);
  void give_credit();
  bool next_piece();
  void end_piece();
  void own_rest();

  bool read_frames();
  bool read_head();
  bool begin_body();
  bool read_data();
  bool read_control();
  void obey();
  std::size_t read_stream(std::span<std::byte> bytes);
  void discard();

  const TcpLinkOptions options_;
  const std::uint64_t host_;
  const std::string address_;
  TcpStream stream_;
  TcpInbox inbox_;

  TcpOutbox outbox_;
  Fifo<std::pair<FrameHead, Bytes>> control_;
  Piece piece_;
  bool is_idle_ = true;     // nothing to write
  bool is_ending_ = false;  // see end()
  bool has_shut_ = false;   // the end of our stream was sent

  Reading reading_ = Reading::head;
  FrameHead head_{};
  std::size_t read_ = 0;         // of the head or the body
  std::uint64_t left_data_ = 0;  // of a message that has begun
  bool in_message_ = false;
  std::array<std::byte, kMostControlBytes> control_body_{};
  bool has_more_ = false;
  bool left_ = false;   // the peer said goodbye
  bool ended_ = false;  // the peer's stream ended, or broke when nothing was expected
  bool sent_ = false, heard_ = false;
};

}  // namespace oktopk
