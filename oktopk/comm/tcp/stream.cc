// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/tcp/stream.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

constexpr std::size_t kPlainBuffer = std::size_t{16} << 10;
constexpr std::size_t kLengthBytes = sizeof(std::uint32_t);

iovec to_iovec(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};  // sendmsg does not write there
}

// The result of a system call on a socket: its count, or 0 when it would have to wait.
std::size_t count_or_throw(ssize_t count) {
  if (count >= 0) return static_cast<std::size_t>(count);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
  fail<CommError>("broke the connection (", std::generic_category().message(errno), ")");
}

void await_stream(int fd, short events, Deadline deadline) {
  pollfd entry{fd, events, 0};
  if (::poll(&entry, 1, milliseconds_until(deadline)) > 0) return;
  if (std::chrono::steady_clock::now() >= deadline) fail<CommError>("did not answer in time");
}

}  // namespace

TcpStream::TcpStream(TcpSession session) : socket_(std::move(session.socket)) {
  buffer_.resize(session.encrypt ? kRecordBytes : kPlainBuffer);
  if (!session.encrypt) return;
  sealer_ = std::make_unique<RecordCipher>(session.to_peer);
  opener_ = std::make_unique<RecordCipher>(session.from_peer);
  sealed_in_.resize(kLengthBytes + kRecordBytes + RecordCipher::kTagBytes);
}

std::size_t TcpStream::read(std::span<std::byte> bytes) {
  if (from_ == to_ && opener_ != nullptr) read_record();
  if (from_ == to_) return opener_ != nullptr ? 0 : read_plain(bytes);
  const std::size_t count = std::min(bytes.size(), to_ - from_);
  std::copy_n(buffer_.data() + from_, count, bytes.data());
  from_ += count;
  return count;
}

// Fills the bytes that were asked for, then the buffer.
std::size_t TcpStream::read_plain(std::span<std::byte> bytes) {
  if (std::exchange(dry_, false)) return 0;
  std::array<iovec, 2> parts{to_iovec(bytes), to_iovec(buffer_)};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t got = ::recvmsg(socket_.fd(), &message, 0);
  if (got == 0) fail<CommError>("closed the connection");
  const std::size_t count = count_or_throw(got);
  dry_ = count > 0 && count < bytes.size() + buffer_.size();
  const std::size_t direct = std::min(count, bytes.size());
  from_ = 0;
  to_ = count - direct;
  return direct;
}

// Reads on the next record, and opens it when it is complete.
void TcpStream::read_record() {
  std::uint32_t length = 0;
  const auto read_up_to = [&](std::size_t size) {
    if (sealed_size_ < size)
      sealed_size_ += read_some(socket_, std::span(sealed_in_).subspan(sealed_size_, size - sealed_size_));
    return sealed_size_ >= size;
  };
  if (!read_up_to(kLengthBytes)) return;
  std::memcpy(&length, sealed_in_.data(), kLengthBytes);
  if (length == 0 || length > kRecordBytes) fail<CommError>("sent a record of ", length, " bytes, which is no length");
  if (!read_up_to(kLengthBytes + length + RecordCipher::kTagBytes)) return;
  const auto sealed = std::span(sealed_in_).subspan(kLengthBytes, length + RecordCipher::kTagBytes);
  if (!opener_->open(sealed, std::span(buffer_).first(length))) fail<CommError>("sent a record that is not authentic");
  sealed_size_ = 0;
  from_ = 0;
  to_ = length;
}

std::size_t TcpStream::write(std::span<const std::byte> head, std::span<const std::byte> body) {
  if (sealer_ == nullptr) {
    std::array<iovec, 2> parts{to_iovec(head), to_iovec(body)};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    return count_or_throw(::sendmsg(socket_.fd(), &message, MSG_NOSIGNAL));
  }
  if (!flush()) return 0;
  std::array<std::byte, kRecordBytes> plain;
  const std::size_t of_head = std::min(head.size(), plain.size());
  const std::size_t of_body = std::min(body.size(), plain.size() - of_head);
  const auto length = static_cast<std::uint32_t>(of_head + of_body);
  if (length == 0) return 0;
  std::copy_n(head.data(), of_head, plain.data());
  std::copy_n(body.data(), of_body, plain.data() + of_head);
  sealed_out_.resize(kLengthBytes + length + RecordCipher::kTagBytes);
  std::memcpy(sealed_out_.data(), &length, kLengthBytes);
  sealer_->seal(std::span(plain).first(length), std::span(sealed_out_).subspan(kLengthBytes));
  out_from_ = 0;
  flush();
  return length;
}

bool TcpStream::flush() {
  while (out_from_ < sealed_out_.size()) {
    const std::size_t count = write_some(socket_, std::span(sealed_out_).subspan(out_from_));
    if (count == 0) return false;
    out_from_ += count;
  }
  return true;
}

void TcpStream::end_writing() { ::shutdown(socket_.fd(), SHUT_WR); }

void TcpStream::read_fully(std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const std::size_t count = read(bytes);
    bytes = bytes.subspan(count);
    if (count == 0) await_stream(fd(), POLLIN, deadline);
  }
}

void TcpStream::write_fully(std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty() || !flush()) {
    const std::size_t count = bytes.empty() ? 0 : write(bytes, {});
    bytes = bytes.subspan(count);
    if (count == 0) await_stream(fd(), POLLOUT, deadline);
  }
}

}  // namespace oktopk
