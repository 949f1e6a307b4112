// SPDX-License-Identifier: Apache-2.0
// How the ranks of transport "tcp" find each other: a small store of keys and values that all ranks can reach. It is a
// server at host:port (RendezvousServer), a shared directory, or two functions of the caller (a torch Store). Each rank
// writes its address, reads those of lower ranks, and connects to them (tcp.h). In a library built without tcp
// (no_tcp.cc) everything here throws UsageError.
// COST: about P small requests per rank, once per world.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "oktopk/comm/communicator.h"

namespace oktopk {

// A store for addresses. get() waits for the key up to the timeout and returns nothing when it did not come; both throw
// CommError when the store cannot be reached. Values are bytes. remove may be empty: keys then stay.
struct KeyValueStore {
  std::function<void(const std::string& key, const std::string& value)> set;
  std::function<std::optional<std::string>(const std::string& key, Communicator::Duration timeout)> get;
  std::function<void(const std::string& key)> remove;
};

// Connections that a listener dropped: garbage, half a handshake, a wrong secret. Any thread may read and write it.
class RefusalLog {
 public:
  static constexpr std::size_t kMostReasons = 16;

  void add(std::string reason);
  std::uint64_t count() const;
  std::vector<std::string> last() const;  // the newest last, at most kMostReasons

 private:
  mutable std::mutex mutex_;
  std::uint64_t count_ = 0;
  std::vector<std::string> last_;
};

// Files in a directory that all ranks see, made if it is absent; one file per key.
KeyValueStore make_file_store(const std::string& directory);

// The store of a RendezvousServer at `address` (host:port). It is reached anew whenever the connection broke, within
// `patience` per request. REQUIRES: the server has the same secret and job.
struct ServerStoreOptions {
  std::string address;
  std::string secret;
  std::string job;
  bool encrypt = false;
  Communicator::Duration patience = Communicator::kDefaultTimeout;
};
KeyValueStore make_server_store(const ServerStoreOptions& options);

// Serves such a store from a thread of its own until it is destroyed. CommError when it cannot listen there.
struct RendezvousServerOptions {
  std::string listen = "127.0.0.1:0";  // port 0: a free one
  std::string secret;
  std::string job;
  bool encrypt = false;
  // Elastic jobs (tcp_elastic.h): how long members are waited for once one of them asks for the next epoch.
  Communicator::Duration grace = std::chrono::seconds(30);
};
class RendezvousServer {
 public:
  explicit RendezvousServer(const RendezvousServerOptions& options);
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  std::string address() const;  // host:port
  const RefusalLog& refusals() const;

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

// Random text of 64 hexadecimal digits, for a secret or the name of a job.
std::string make_random_secret();
inline constexpr std::size_t kLeastSecretBytes = 16;

}  // namespace oktopk
