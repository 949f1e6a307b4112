// SPDX-License-Identifier: Apache-2.0
// Worlds to be ruined, one after the other: check_courage asks for a fresh one per fault. A rank's
// communicator must be made before its peers use theirs, so all worlds are made first.
#pragma once

#include <memory>
#include <vector>

#include "oktopk/comm/transports.h"

namespace oktopk {

class FreshWorlds {
 public:
  FreshWorlds(int P, std::size_t count, Communicator::Duration timeout) : used_(static_cast<std::size_t>(P), 0) {
    for (std::size_t i = 0; i < count; ++i) worlds_.push_back(make_thread_world(P, timeout));
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
