// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "oktopk/comm/threads.h"

namespace oktopk {

// check_courage asks for a fresh world per fault; a rank's communicator must be made before its
// peers use theirs, so all worlds are made first.
class FreshWorlds {
 public:
  FreshWorlds(int P, std::size_t count) : used_(static_cast<std::size_t>(P), 0) {
    for (std::size_t i = 0; i < count; ++i)
      worlds_.push_back(make_thread_world(P, std::chrono::milliseconds(500)));
  }
  std::unique_ptr<Communicator> take(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    return std::move(worlds_.at(used_[r]++).at(r));
  }

 private:
  std::vector<std::vector<std::unique_ptr<Communicator>>> worlds_;
  std::vector<std::size_t> used_;
};

}  // namespace oktopk
