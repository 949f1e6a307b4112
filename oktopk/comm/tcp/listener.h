// SPDX-License-Identifier: Apache-2.0
// Accepts connections and takes them through the handshake, many at a time, without waiting for any: a caller that
// sends garbage, half a handshake or nothing costs a place until kHandshakeTime is over, and a line in the log.
#pragma once

#include <poll.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/tcp/handshake.h"
#include "oktopk/comm/transports.h"

namespace oktopk {

class TcpListener {
 public:
  static constexpr auto kHandshakeTime = std::chrono::seconds(5);
  static constexpr auto kRest = std::chrono::milliseconds(500);  // when descriptors have run out
  static constexpr std::size_t kMostUnproved = 256;              // a newer one pushes the oldest out

  TcpListener(Socket socket, TcpIdentity identity, std::shared_ptr<RefusalLog> refusals)
      : socket_(std::move(socket)), identity_(std::move(identity)), refusals_(std::move(refusals)) {}

  const Socket& socket() const { return socket_; }
  void close_in_child() {
    socket_.close();
    for (const auto& one : unproved_) one->close_in_child();
  }
  const TcpIdentity& identity() const { return identity_; }
  // Why no connection can be accepted at present; empty if they can.
  const std::string& trouble() const { return trouble_; }

  void add_to(std::vector<pollfd>& entries) const {
    // poll() ignores a negative descriptor. A connection that cannot be accepted would wake it without end.
    entries.push_back({is_resting() ? -1 : socket_.fd(), POLLIN, 0});
    for (const auto& one : unproved_) entries.push_back({one->fd(), POLLIN, 0});
  }

  // Accepts and reads what is there; the connections that have proved themselves.
  std::vector<TcpSession> advance() {
    for (Socket next = accept_next(); next.is_open(); next = accept_next()) {
      if (unproved_.size() >= kMostUnproved) {
        refuse(*unproved_.front(), "was pushed out by newer connections");
        unproved_.erase(unproved_.begin());
      }
      const Deadline deadline = std::chrono::steady_clock::now() + kHandshakeTime;
      unproved_.push_back(std::make_unique<ServerHandshake>(std::move(next), deadline));
    }
    std::vector<TcpSession> proved;
    std::erase_if(unproved_, [&](const auto& one) { return is_over(*one, proved); });
    return proved;
  }

  void refuse(const std::string& address, const std::string& reason) {
    if (refusals_ != nullptr) refusals_->add(text_of(address, " ", reason));
  }

 private:
  void refuse(const ServerHandshake& handshake, const std::string& reason) { refuse(handshake.address(), reason); }

  bool is_resting() const { return std::chrono::steady_clock::now() < rest_until_; }

  // Without a descriptor for the next connection, rests, and says so once until there is one again.
  Socket accept_next() {
    if (is_resting()) return {};
    try {
      Socket next = accept_from(socket_);
      if (next.is_open()) trouble_.clear();
      return next;
    } catch (const CommError& error) {
      if (trouble_.empty()) refuse(Endpoint{local_host(socket_), local_port(socket_)}.text(), error.what());
      trouble_ = error.what();
      rest_until_ = std::chrono::steady_clock::now() + kRest;
      return {};
    }
  }

  bool is_over(ServerHandshake& handshake, std::vector<TcpSession>& proved) {
    try {
      if (!handshake.advance(identity_)) return false;
      proved.push_back(handshake.take());
    } catch (const CommError& error) {
      refuse(handshake, error.what());
    }
    return true;
  }

  Socket socket_;
  TcpIdentity identity_;
  std::shared_ptr<RefusalLog> refusals_;
  std::vector<std::unique_ptr<ServerHandshake>> unproved_;
  std::string trouble_;
  Deadline rest_until_;
};

}  // namespace oktopk
