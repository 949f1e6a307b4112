// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/tcp/socket.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <string_view>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/comm/transports.h"

namespace oktopk {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// The process or its host has no descriptor or no memory left.
bool is_exhausted(int code) { return code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM; }

std::string error_text(int code) {
  std::string text = std::generic_category().message(code);
  rlimit limit{};
  if (code == EMFILE && ::getrlimit(RLIMIT_NOFILE, &limit) == 0)
    text += text_of("; this process may open ", limit.rlim_cur, " files (ulimit -n)");
  if (code == ENFILE) text += "; this host may open no more files (sysctl fs.file-max)";
  return text;
}

Addresses resolve(const Endpoint& endpoint, int type, bool listens) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = type;
  hints.ai_flags = listens ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  const int status =
      getaddrinfo(endpoint.host.empty() ? nullptr : endpoint.host.c_str(), endpoint.port.c_str(), &hints, &found);
  if (status != 0)
    fail<CommError>("tcp: cannot find the address ", endpoint.text(), ": ",
                    status == EAI_SYSTEM ? error_text(errno) : gai_strerror(status));
  return {found, &freeaddrinfo};
}

void set_option(int fd, int level, int option) {
  const int on = 1;
  setsockopt(fd, level, option, &on, sizeof on);
}

// A closed one where this host does not know that family of addresses.
Socket new_socket(const addrinfo& address) {
  Socket socket(::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
  if (!socket.is_open() && is_exhausted(errno)) fail<CommError>("tcp: cannot open a socket: ", error_text(errno));
  if (!socket.is_open()) return socket;
  if (address.ai_socktype == SOCK_STREAM) set_option(socket.fd(), IPPROTO_TCP, TCP_NODELAY);
  return socket;
}

std::pair<std::string, std::string> name_of(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  const int status =
      getnameinfo(address, size, host.data(), host.size(), port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  if (status != 0) return {"unknown", "0"};
  // A socket for both families shows an IPv4 peer so.
  constexpr std::string_view kMapped = "::ffff:";
  std::string_view name = host.data();
  if (name.starts_with(kMapped) && name.find('.') != std::string_view::npos) name.remove_prefix(kMapped.size());
  return {std::string(name), port.data()};
}

std::pair<std::string, std::string> local_name(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return {"unknown", "0"};
  return name_of(reinterpret_cast<const sockaddr*>(&address), size);
}

// False at the deadline.
bool wait_for(const Socket& socket, short events, Deadline deadline) {
  pollfd entry{socket.fd(), events, 0};
  while (true) {
    const int count = ::poll(&entry, 1, milliseconds_until(deadline));
    if (count > 0) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
  }
}

// Empty when the connection stands.
std::string connect_error(const Socket& socket, const addrinfo& address, Deadline deadline) {
  if (::connect(socket.fd(), address.ai_addr, address.ai_addrlen) == 0) return {};
  if (errno != EINPROGRESS && errno != EINTR) return error_text(errno);
  if (!wait_for(socket, POLLOUT, deadline)) return "no answer in time";
  int code = 0;
  socklen_t size = sizeof code;
  getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &code, &size);
  return code == 0 ? std::string() : error_text(code);
}

}  // namespace

int milliseconds_until(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 86'400'000));
}

std::string Endpoint::text() const {
  return host.find(':') == std::string::npos ? host + ":" + port : "[" + host + "]:" + port;
}

Endpoint parse_endpoint(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  require(colon != std::string::npos, "tcp: address \"", text, "\", must be host:port");
  Endpoint endpoint{text.substr(0, colon), text.substr(colon + 1)};
  const bool in_brackets = endpoint.host.size() >= 2 && endpoint.host.front() == '[' && endpoint.host.back() == ']';
  if (in_brackets) endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  require(in_brackets || endpoint.host.find(':') == std::string::npos, "tcp: address \"", text,
          "\", an IPv6 address must stand in brackets: [::1]:29400");
  require(!endpoint.host.empty(), "tcp: address \"", text, "\", must name a host: host:port");
  const bool is_number = !endpoint.port.empty() && endpoint.port.size() <= 5 &&
                         endpoint.port.find_first_not_of("0123456789") == std::string::npos;
  require(is_number && std::stoi(endpoint.port) <= 65535, "tcp: address \"", text,
          "\", its port must be a number of at most 65535");
  return endpoint;
}

Socket::~Socket() { close(); }

void Socket::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Socket listen_at(const Endpoint& endpoint) {
  const Addresses addresses = resolve(endpoint, SOCK_STREAM, true);
  int code = EADDRNOTAVAIL;
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    Socket socket = new_socket(*at);
    if (!socket.is_open()) continue;
    set_option(socket.fd(), SOL_SOCKET, SO_REUSEADDR);
    if (::bind(socket.fd(), at->ai_addr, at->ai_addrlen) == 0 && ::listen(socket.fd(), SOMAXCONN) == 0) return socket;
    code = errno;
  }
  const std::string text = text_of("tcp: cannot listen at ", endpoint.text(), ": ", error_text(code));
  if (code == EADDRINUSE || code == EADDRNOTAVAIL) throw AddressError(text, code == EADDRINUSE);
  fail<CommError>(text);
}

Socket accept_from(const Socket& listener) {
  Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket.is_open() && is_exhausted(errno)) fail<CommError>("cannot accept connections: ", error_text(errno));
  if (!socket.is_open()) return socket;
  set_option(socket.fd(), IPPROTO_TCP, TCP_NODELAY);
  return socket;
}

Socket connect_to(const Endpoint& endpoint, Deadline deadline) {
  const Addresses addresses = resolve(endpoint, SOCK_STREAM, false);
  std::string why = "no address";
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    Socket socket = new_socket(*at);
    if (!socket.is_open()) continue;
    why = connect_error(socket, *at, deadline);
    if (why.empty()) return socket;
  }
  fail<CommError>("tcp: cannot connect to ", endpoint.text(), ": ", why);
}

std::string local_host(const Socket& socket) { return local_name(socket).first; }
std::string local_port(const Socket& socket) { return local_name(socket).second; }

std::string peer_text(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return "unknown";
  const auto [host, port] = name_of(reinterpret_cast<const sockaddr*>(&address), size);
  return Endpoint{host, port}.text();
}

std::size_t read_some(const Socket& socket, std::span<std::byte> bytes) {
  const auto count = ::recv(socket.fd(), bytes.data(), bytes.size(), 0);
  if (count > 0) return static_cast<std::size_t>(count);
  if (count == 0) fail<CommError>("closed the connection");
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
  fail<CommError>("broke the connection: ", error_text(errno));
}

std::size_t write_some(const Socket& socket, std::span<const std::byte> bytes) {
  const auto count = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (count >= 0) return static_cast<std::size_t>(count);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
  fail<CommError>("broke the connection: ", error_text(errno));
}

void read_fully(const Socket& socket, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    if (!wait_for(socket, POLLIN, deadline)) fail<CommError>("did not answer in time");
    bytes = bytes.subspan(read_some(socket, bytes));
  }
}

void write_fully(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    if (!wait_for(socket, POLLOUT, deadline)) fail<CommError>("did not take a message in time");
    bytes = bytes.subspan(write_some(socket, bytes));
  }
}

std::vector<std::string> addresses_of(const std::string& interface) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) {
    if (is_exhausted(errno)) fail<CommError>("tcp: cannot list the addresses of this host: ", error_text(errno));
    return {"127.0.0.1"};
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, &freeifaddrs);
  std::vector<std::string> outside, loopback;
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const auto size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    const std::string host = name_of(at->ifa_addr, static_cast<socklen_t>(size)).first;
    if (!interface.empty() && interface != at->ifa_name && interface != host) continue;
    ((at->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : outside).push_back(host);
  }
  outside.insert(outside.end(), loopback.begin(), loopback.end());
  return outside;
}

std::string address_towards(const Endpoint& endpoint) {
  const Addresses addresses = resolve(endpoint, SOCK_DGRAM, false);
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    const Socket socket = new_socket(*at);
    // Connecting a datagram socket sends nothing: it only chooses the route.
    if (socket.is_open() && ::connect(socket.fd(), at->ai_addr, at->ai_addrlen) == 0) return local_host(socket);
  }
  return {};
}

std::uint64_t host_identity() {
  std::string boot;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  // Without it the ranks of one host would believe that they are on several.
  if (!file && is_exhausted(errno)) fail<CommError>("tcp: cannot read the identity of this host: ", error_text(errno));
  std::getline(file, boot);
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return hash_text(boot, hash_text(name.data()));
}

WakePipe::WakePipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC) != 0)
    fail<CommError>("tcp: cannot make a pipe: ", error_text(errno));
  read_ = Socket(ends[0]);
  write_ = Socket(ends[1]);
}

void WakePipe::wake() const {
  const char byte = 0;
  [[maybe_unused]] const auto written = ::write(write_.fd(), &byte, 1);  // a full pipe wakes as well
}

void WakePipe::drain() const {
  std::array<char, 64> bytes{};
  while (::read(read_.fd(), bytes.data(), bytes.size()) > 0) {
  }
}

}  // namespace oktopk
