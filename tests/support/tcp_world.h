// SPDX-License-Identifier: Apache-2.0
// Worlds of transport "tcp" for tests: P threads of this process, each with its own rank over loopback.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "oktopk/comm/communicator.h"
#include "oktopk/comm/transports.h"

namespace oktopk {

inline const std::string kTestSecret = "a secret for tests only";

// A store in this process.
inline KeyValueStore make_memory_store() {
  struct Memory {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::string, std::string> values;
  };
  const auto memory = std::make_shared<Memory>();
  return {[memory](const std::string& key, const std::string& value) {
            const std::lock_guard lock(memory->mutex);
            memory->values[key] = value;
            memory->changed.notify_all();
          },
          [memory](const std::string& key, Communicator::Duration timeout) -> std::optional<std::string> {
            std::unique_lock lock(memory->mutex);
            if (!memory->changed.wait_for(lock, timeout, [&] { return memory->values.contains(key); })) return {};
            return memory->values[key];
          },
          [memory](const std::string& key) {
            const std::lock_guard lock(memory->mutex);
            memory->values.erase(key);
          }};
}

// Runs act(rank) on P threads and throws the first error of the lowest rank that has one, if any.
inline void run_ranks(int P, const std::function<void(int)>& act) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(P));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < P; ++rank)
    threads.emplace_back([&, rank] {
      try {
        act(rank);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  threads.clear();
  for (const std::exception_ptr& error : errors)
    if (error != nullptr) std::rethrow_exception(error);
}

// The options of one rank of a test; `store` is common to all of them.
inline TcpOptions tcp_options(int rank, int P, const KeyValueStore& store, Communicator::Duration timeout) {
  TcpOptions options{.rank = rank, .size = P, .store = store, .secret = kTestSecret};
  options.interface = "127.0.0.1";
  options.timeout = timeout;
  return options;
}

inline void run_tcp(int P, const std::function<void(Communicator&)>& body, Communicator::Duration timeout) {
  if (!tcp_available()) return;  // a build without OpenSSL
  const KeyValueStore store = make_memory_store();
  run_ranks(P, [&](int rank) {
    const auto comm = make_tcp_world(tcp_options(rank, P, store, timeout));
    try {
      body(*comm);
    } catch (...) {
      comm->kill();
      throw;
    }
  });
}

}  // namespace oktopk
