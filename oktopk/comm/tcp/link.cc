// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/tcp/link.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

constexpr int kPiecesPerRead = 64;  // then other connections have their turn

std::span<const std::byte> after(std::span<const std::byte> bytes, std::size_t count) {
  return bytes.subspan(std::min(count, bytes.size()));
}

Bytes failure_body(std::int32_t culprit, const std::string& reason) {
  const std::size_t size = std::min(reason.size(), kMostControlBytes - sizeof culprit);
  Bytes body(sizeof culprit + size);
  std::memcpy(body.data(), &culprit, sizeof culprit);
  std::memcpy(body.data() + sizeof culprit, reason.data(), size);
  return body;
}

}  // namespace

TcpLink::TcpLink(TcpSession session, const TcpLinkOptions& options)
    : options_(options),
      host_(session.host),
      address_(session.address),
      stream_(std::move(session)),
      inbox_(options.mine, options.peer, options.early_bytes) {
  tell({FrameKind::credit, 0, options.early_bytes, 0, {}}, {});
}

void TcpLink::send(TcpSlot& slot) {
  if (left_ || inbox_.has_left(slot.channel)) fail<CommError>("left, and rank ", options_.mine, " sends to it");
  outbox_.push(slot);
  is_idle_ = false;
}

void TcpLink::receive(TcpSlot& slot) {
  if (inbox_.post(slot)) tell(FrameKind::accept, slot.channel);
  give_credit();
}

void TcpLink::tell(FrameHead head, Bytes body) {
  if (left_ || is_ending_) return;
  head.length = static_cast<std::uint32_t>(body.size());
  head.tags = options_.tags;
  control_.push({head, std::move(body)});
  is_idle_ = false;
}

void TcpLink::give_credit() {
  const std::uint64_t bytes = inbox_.take_credit();
  if (bytes > 0) tell({FrameKind::credit, 0, bytes, 0, {}}, {});
}

void TcpLink::close_channel(std::uint64_t channel) {
  inbox_.close(channel);
  give_credit();
  tell(FrameKind::leave, channel);
}

// Takes the next frame out of the queues: control first.
bool TcpLink::next_piece() {
  if (piece_.is_set) return true;
  piece_.sent = 0;
  piece_.slot = control_.empty() ? outbox_.next() : nullptr;
  while (const auto offered = outbox_.next_offer())
    tell({FrameKind::offer, 0, (*offered)->source.size(), (*offered)->channel, {}}, {});
  if (piece_.slot != nullptr) {
    TcpSlot& slot = *piece_.slot;
    const std::size_t left = slot.source.size() - slot.done;
    const std::size_t length = std::min(left, kPieceBytes);
    piece_.body = slot.source.subspan(slot.done, length);
    piece_.head = {FrameKind::data, static_cast<std::uint32_t>(length), left, slot.channel, options_.tags};
  } else if (!control_.empty()) {
    std::tie(piece_.head, piece_.own) = control_.pop();
    piece_.body = piece_.own;
  } else {
    return false;
  }
  return piece_.is_set = true;
}

void TcpLink::end_piece() {
  piece_.is_set = false;
  if (piece_.slot == nullptr) return;
  TcpSlot& slot = *piece_.slot;
  slot.done += piece_.body.size();
  if (slot.done == slot.source.size()) outbox_.end();
}

void TcpLink::write() {
  if (has_shut_ || ended_) return;
  try {
    while (next_piece()) {
      const auto head = std::as_bytes(std::span(&piece_.head, 1));
      const std::size_t in_body = piece_.sent - std::min(piece_.sent, head.size());
      const std::size_t count = stream_.write(after(head, piece_.sent), after(piece_.body, in_body));
      if (count == 0) return;
      sent_ = true;
      piece_.sent += count;
      if (piece_.sent == head.size() + piece_.body.size()) end_piece();
    }
    is_idle_ = stream_.flush();
  } catch (const CommError& error) {
    // The reason, or a goodbye, may still be there to read.
    if (!is_ending_ && !left_) {
      read();
      if (!left_ && !ended_) fail<CommError>(error.what(), ": it died or was killed");
    }
    ended_ = true;
  }
  if (is_idle_ && is_ending_) {
    stream_.end_writing();
    has_shut_ = true;
  }
}

void TcpLink::read() {
  if (is_ending_) return discard();
  has_more_ = false;
  for (int i = 0; i < kPiecesPerRead; ++i)
    if (!read_frames()) return;
  has_more_ = true;
}

// One step further; false when there is nothing more to read now.
bool TcpLink::read_frames() {
  if (ended_) return false;
  if (reading_ == Reading::head) return read_head();
  return reading_ == Reading::data ? read_data() : read_control();
}

std::size_t TcpLink::read_stream(std::span<std::byte> bytes) {
  try {
    const std::size_t count = stream_.read(bytes);
    heard_ = heard_ || count > 0;
    return count;
  } catch (const CommError& error) {
    if (!left_) fail<CommError>(error.what(), ": it died or was killed");
    ended_ = true;
    return 0;
  }
}

bool TcpLink::read_head() {
  if (read_ < sizeof head_) {
    const std::size_t count = read_stream(std::as_writable_bytes(std::span(&head_, 1)).subspan(read_));
    read_ += count;
    if (read_ < sizeof head_) return count > 0;
  }
  if (head_.tags.epoch != options_.tags.epoch)
    fail<CommError>("sent a frame of epoch ", head_.tags.epoch, ", this is epoch ", options_.tags.epoch);
  if (head_.tags.membership != options_.tags.membership) fail<CommError>("sent a frame of another start of the job");
  return begin_body();
}

bool TcpLink::begin_body() {
  if (head_.kind != FrameKind::data) {
    if (head_.length > kMostControlBytes) fail<CommError>("sent a control frame of ", head_.length, " bytes");
    reading_ = Reading::control;
    read_ = 0;
    return true;
  }
  const bool fits = in_message_ ? head_.left == left_data_ : head_.length > 0 || head_.left == 0;
  if (!fits || head_.length > kPieceBytes || head_.length > head_.left)
    fail<CommError>("sent a piece of ", head_.length, " bytes out of ", head_.left, ", which does not fit");
  if (!in_message_) {
    inbox_.begin(head_.channel, head_.left);
    in_message_ = true;
    left_data_ = head_.left;
  }
  reading_ = Reading::data;
  read_ = 0;
  return true;
}

bool TcpLink::read_data() {
  if (read_ < head_.length) {
    const std::size_t count = read_stream(inbox_.rest().first(head_.length - read_));
    if (count == 0) return false;
    read_ += count;
    left_data_ -= count;
    inbox_.advance(count);
    if (read_ < head_.length) return true;
  } else {
    inbox_.advance(0);  // an empty message
  }
  in_message_ = left_data_ > 0;
  reading_ = Reading::head;
  read_ = 0;
  give_credit();
  return true;
}

bool TcpLink::read_control() {
  if (read_ < head_.length) {
    const std::size_t count = read_stream(std::span(control_body_).subspan(read_, head_.length - read_));
    read_ += count;
    if (read_ < head_.length) return count > 0;
  }
  reading_ = Reading::head;
  read_ = 0;
  obey();
  return true;
}

void TcpLink::obey() {
  switch (head_.kind) {
    case FrameKind::heartbeat:
      return;
    case FrameKind::leave:
      outbox_.drop(head_.channel);
      return inbox_.leave(head_.channel);
    case FrameKind::credit:
      return outbox_.grant(head_.left);
    case FrameKind::offer:
      if (inbox_.offer(head_.channel)) tell(FrameKind::accept, head_.channel);
      return;
    case FrameKind::accept:
      outbox_.accept(head_.channel);
      is_idle_ = false;
      return;
    case FrameKind::goodbye:
      left_ = true;
      inbox_.leave_all();
      if (!outbox_.empty()) fail<CommError>("left while rank ", options_.mine, " sent to it");
      return end();
    case FrameKind::failure: {
      std::int32_t culprit = -1;
      if (head_.length < sizeof culprit) fail<CommError>("failed without a reason");
      std::memcpy(&culprit, control_body_.data(), sizeof culprit);
      throw TcpFailure(culprit, std::string(reinterpret_cast<const char*>(control_body_.data()) + sizeof culprit,
                                            head_.length - sizeof culprit));
    }
    default:
      fail<CommError>("sent a frame of kind ", static_cast<std::uint32_t>(head_.kind), ", which there is not");
  }
}

// Reads on and throws away, so that the peer gets our last words and not a reset.
void TcpLink::discard() {
  std::array<std::byte, 16384> bytes;
  try {
    while (!ended_ && stream_.read(bytes) > 0) heard_ = true;
  } catch (const CommError&) {
    ended_ = true;
  }
}

void TcpLink::end() {
  is_ending_ = true;
  is_idle_ = false;
}

// The rest of a frame that has begun is copied: without it, the peer could not find the next one.
void TcpLink::own_rest() {
  if (!piece_.is_set || piece_.slot == nullptr) return;
  piece_.slot = nullptr;
  if (piece_.sent == 0) {
    piece_.is_set = false;
    return;
  }
  piece_.own.assign(piece_.body.begin(), piece_.body.end());
  piece_.body = piece_.own;
}

void TcpLink::die(int culprit, const std::string& reason) {
  own_rest();
  outbox_.clear();
  inbox_.clear();
  in_message_ = false;
  tell(FrameKind::failure, 0, failure_body(culprit, reason));
  end();
}

}  // namespace oktopk
