// SPDX-License-Identifier: Apache-2.0
// Ranks as processes, for tests that kill, stop and continue them. The parent makes no threads, so that it can fork.
#pragma once

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace oktopk {

class Processes {
 public:
  // Runs body(rank, say) in P processes. `say` writes a line that the parent reads; an exception is the last one.
  using Say = std::function<void(const std::string&)>;
  Processes(int P, const std::function<void(int, const Say&)>& body) {
    for (int rank = 0; rank < P; ++rank) children_.push_back(start(rank, body));
  }
  ~Processes() {
    for (Child& child : children_) {
      ::kill(child.pid, SIGKILL);
      ::waitpid(child.pid, nullptr, 0);
      ::close(child.fd);
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  void signal(int rank, int number) const { ::kill(at(rank).pid, number); }

  // The next line of the rank; "" when it has ended, "timeout" when nothing came for a long time.
  std::string line(int rank) {
    Child& child = children_[static_cast<std::size_t>(rank)];
    while (child.text.find('\n') == std::string::npos) {
      pollfd entry{child.fd, POLLIN, 0};
      if (::poll(&entry, 1, 60'000) <= 0) return "timeout";
      std::array<char, 4096> bytes{};
      const auto count = ::read(child.fd, bytes.data(), bytes.size());
      if (count <= 0) return std::exchange(child.text, {});
      child.text.append(bytes.data(), static_cast<std::size_t>(count));
    }
    const std::size_t end = child.text.find('\n');
    std::string line = child.text.substr(0, end);
    child.text.erase(0, end + 1);
    return line;
  }

 private:
  struct Child {
    pid_t pid;
    int fd;
    std::string text;
  };
  const Child& at(int rank) const { return children_[static_cast<std::size_t>(rank)]; }

  static Child start(int rank, const std::function<void(int, const Say&)>& body) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) return {-1, -1, {}};
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(ends[0]);
      run(rank, body, ends[1]);
    }
    ::close(ends[1]);
    return {pid, ends[0], {}};
  }

  [[noreturn]] static void run(int rank, const std::function<void(int, const Say&)>& body, int fd) {
    const Say say = [fd](const std::string& text) {
      const std::string line = text + "\n";
      [[maybe_unused]] const auto written = ::write(fd, line.data(), line.size());
    };
    try {
      body(rank, say);
    } catch (const std::exception& error) {
      say(error.what());
    }
    ::_exit(0);
  }

  std::vector<Child> children_;
};

}  // namespace oktopk
