// SPDX-License-Identifier: Apache-2.0
// A child of fork() for tests.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>

namespace oktopk {

// Whether body() is true in a child, which has the memory of this process and one thread. False where it does not end
// within 60 s.
inline bool holds_in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    bool holds = false;
    try {
      holds = body();
    } catch (...) {
    }
    ::_exit(holds ? 0 : 1);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// The sockets and pipes that this process has open.
inline std::ptrdiff_t count_connections() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::ranges::count_if(all, [](const auto& entry) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    return target.starts_with("socket:") || target.starts_with("pipe:");
  });
}

}  // namespace oktopk
