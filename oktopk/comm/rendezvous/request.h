// SPDX-License-Identifier: Apache-2.0
// Requests to a RendezvousServer and its replies: a length of 4 bytes, a letter, two numbers, a key and a value. Both
// ends check every length against kMostRequestBytes before they allocate. RendezvousClient asks one at a time.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/tcp/handshake.h"
#include "oktopk/comm/tcp/stream.h"
#include "oktopk/comm/transports.h"

namespace oktopk {

inline constexpr std::uint32_t kMostRequestBytes = std::uint32_t{1} << 20;
inline constexpr std::size_t kRequestLengthBytes = sizeof(std::uint32_t);

enum class RequestKind : std::uint8_t {
  set = 's',  // key, value; reply: done
  get = 'g',  // key; number: milliseconds to wait; reply: value or nothing
  done = 'd',
  value = 'v',
  nothing = 'n',
  member = 'm',      // value: write_word(); reply: wait, membership or refused
  wait = 'w',        // number: candidates; value: why
  membership = 'e',  // number: the id of the member; value: write_membership()
  refused = 'x',     // value: why
};

struct RendezvousRequest {
  RequestKind kind = RequestKind::done;
  std::uint64_t number = 0;
  std::string key, value;
};

// With its length in front.
inline Bytes write_request(const RendezvousRequest& request) {
  const auto key_size = static_cast<std::uint32_t>(request.key.size());
  std::string text;
  const auto put = [&](const auto& number) { text.append(reinterpret_cast<const char*>(&number), sizeof number); };
  put(static_cast<std::uint32_t>(1 + sizeof request.number + sizeof key_size + key_size + request.value.size()));
  put(request.kind);
  put(request.number);
  put(key_size);
  text += request.key + request.value;
  const std::size_t length = text.size() - kRequestLengthBytes;
  require(length <= kMostRequestBytes, "rendezvous: a request of ", length, " bytes, at most ", kMostRequestBytes,
          " are allowed");
  const auto bytes = std::as_bytes(std::span(text));
  return Bytes(bytes.begin(), bytes.end());
}

// The length of what follows. CommError if it cannot be one.
inline std::uint32_t read_request_length(const std::byte* bytes) {
  std::uint32_t length = 0;
  std::memcpy(&length, bytes, sizeof length);
  if (length < 1 + sizeof(std::uint64_t) + sizeof(std::uint32_t) || length > kMostRequestBytes)
    fail<CommError>("sent a request of ", length, " bytes, which is no length");
  return length;
}

// Without its length.
inline RendezvousRequest read_request(std::string_view text) {
  RendezvousRequest request;
  std::uint32_t key_size = 0;
  const auto get = [&](auto& number) {
    std::memcpy(&number, text.data(), sizeof number);
    text.remove_prefix(sizeof number);
  };
  get(request.kind);
  get(request.number);
  get(key_size);
  if (key_size > text.size()) fail<CommError>("sent a request with a key of ", key_size, " bytes, which does not fit");
  request.key = text.substr(0, key_size);
  request.value = text.substr(key_size);
  return request;
}

// The next request or reply of a stream. CommError when there is none by the deadline.
RendezvousRequest read_request(TcpStream& stream, Deadline deadline);

// A new connection to the server. CommError when there is none by the deadline.
std::unique_ptr<TcpStream> connect_to_server(const ServerStoreOptions& options, Deadline deadline);

// A connection to the store of a RendezvousServer: one request and its reply at a time, from any thread.
class RendezvousClient {
 public:
  explicit RendezvousClient(const ServerStoreOptions& options) : options_(options) {}

  // Connects if need be, asks, and waits for the reply for `wait` and the patience; over a new connection whenever the
  // old one broke. CommError when the patience is at its end.
  RendezvousRequest ask(const RendezvousRequest& request, Communicator::Duration wait);

 private:
  RendezvousRequest ask_by(const RendezvousRequest& request, Deadline deadline);

  const ServerStoreOptions options_;
  std::mutex mutex_;
  std::unique_ptr<TcpStream> stream_;
};

}  // namespace oktopk
