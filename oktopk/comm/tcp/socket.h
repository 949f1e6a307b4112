// SPDX-License-Identifier: Apache-2.0
// Sockets for transport "tcp": addresses, listening, connecting, and reading and writing small messages with a
// deadline. All sockets are nonblocking; every wait ends at its deadline with a CommError. IPv4 and IPv6.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace oktopk {

using Deadline = std::chrono::steady_clock::time_point;
// Milliseconds for poll(), from 0 to a day.
int milliseconds_until(Deadline deadline);

// An address as text: a name or a number, and a port.
struct Endpoint {
  std::string host;
  std::string port;

  std::string text() const;  // host:port, with brackets around IPv6
};
// UsageError unless the text is host:port.
Endpoint parse_endpoint(const std::string& text);

// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void close();

 private:
  int fd_ = -1;
};

// A socket that listens. AddressError (transports.h) when the address is taken or not of this host; CommError
// otherwise. This function and the others that open descriptors say in a CommError which limit was reached when none is
// left.
Socket listen_at(const Endpoint& endpoint);
// The next connection, or a closed socket when there is none. CommError when there is no descriptor for it; it then
// waits, and the listener stays readable.
Socket accept_from(const Socket& listener);
Socket connect_to(const Endpoint& endpoint, Deadline deadline);

std::string local_host(const Socket& socket);
std::string local_port(const Socket& socket);
std::string peer_text(const Socket& socket);

// Reads at most bytes.size(); 0 when nothing is there. CommError at the end of the stream or when the connection broke.
std::size_t read_some(const Socket& socket, std::span<std::byte> bytes);
// Writes what the connection takes now.
std::size_t write_some(const Socket& socket, std::span<const std::byte> bytes);
void read_fully(const Socket& socket, std::span<std::byte> bytes, Deadline deadline);
void write_fully(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline);

// The addresses of this host, loopback last; with a name, those of that interface. An address stands for itself.
std::vector<std::string> addresses_of(const std::string& interface);
// The address of this host from which `endpoint` is reached; empty when it cannot be known.
std::string address_towards(const Endpoint& endpoint);
// Equal for processes of one running system only.
std::uint64_t host_identity();

// A pipe by which a thread ends the poll() of another.
class WakePipe {
 public:
  WakePipe();
  int fd() const { return read_.fd(); }
  void wake() const;
  void close() { read_.close(), write_.close(); }
  void drain() const;

 private:
  Socket read_, write_;
};

}  // namespace oktopk
