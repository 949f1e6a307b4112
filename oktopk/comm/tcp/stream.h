// SPDX-License-Identifier: Apache-2.0
// The bytes of a connection after the handshake, plain or in sealed records. Nothing waits: read() and write() do what
// they can now. Small reads are served from a buffer, so that a short message costs one system call; large ones go
// straight to their place. A record is its length (4 bytes) and up to kRecordBytes, encrypted, with a tag.
// All calls throw CommError when the connection broke, ended, or a record is not authentic.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "oktopk/base/bytes.h"
#include "oktopk/comm/tcp/crypto.h"
#include "oktopk/comm/tcp/handshake.h"

namespace oktopk {

class TcpStream {
 public:
  static constexpr std::size_t kRecordBytes = std::size_t{64} << 10;

  explicit TcpStream(TcpSession session);

  int fd() const { return socket_.fd(); }
  // Sends nothing.
  void close() { socket_.close(); }

  // The number of bytes that were read; 0 when there are none now.
  std::size_t read(std::span<std::byte> bytes);

  // The number of bytes of head and body together that the stream took. It may still hold some of them: see flush().
  std::size_t write(std::span<const std::byte> head, std::span<const std::byte> body);
  // Sends on what the stream holds; true when it holds nothing.
  bool flush();

  // No more writes: the peer reads the end of the stream after all that was written.
  void end_writing();

  // Both wait, for small messages; CommError at the deadline.
  void read_fully(std::span<std::byte> bytes, Deadline deadline);
  void write_fully(std::span<const std::byte> bytes, Deadline deadline);

 private:
  std::size_t read_plain(std::span<std::byte> bytes);
  void read_record();

  Socket socket_;
  std::unique_ptr<RecordCipher> sealer_, opener_;
  Bytes buffer_;  // plain bytes that were read and not yet asked for: [from_, to_)
  std::size_t from_ = 0, to_ = 0;
  bool dry_ = false;              // the last read took all that was there
  Bytes sealed_in_, sealed_out_;  // a record, as far as it was read; a record that is being written
  std::size_t sealed_size_ = 0;   // of sealed_in_
  std::size_t out_from_ = 0;      // sealed_out_ from here on is not sent yet
};

}  // namespace oktopk
