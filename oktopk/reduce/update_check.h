// SPDX-License-Identifier: Apache-2.0
// ReducerOptions::check_every: after every so many steps the ranks compare hashes of the update, and of the bytes that
// the caller names, such as the weights. The hash travels with the notes before the next step, so it finds what went
// wrong before the step changes anything. COST: a pass over the update and those bytes; 16 bytes more per note.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "oktopk/comm/collectives.h"
#include "oktopk/reduce/reducer.h"

namespace oktopk {

class UpdateCheck {
 public:
  UpdateCheck() = default;
  explicit UpdateCheck(const ReducerOptions& options) : every_(options.check_every), bytes_(options.checked) {}

  bool is_on() const { return every_ > 0; }
  // All ranks compare in the next step; equal on all of them.
  bool is_due() const { return hash_.has_value(); }

  // After a step that counts.
  void note(const Update& update, std::uint64_t steps) {
    hash_.reset();
    if (!is_on() || steps % every_ != 0) return;
    const std::uint64_t indices = fast_hash(std::as_bytes(update.sparse.idx));
    const std::uint64_t values = fast_hash(std::as_bytes(update.sparse.val), indices);
    hash_ = fast_hash(std::as_bytes(update.dense), values);
  }

  // Before the next step, when the caller has applied the update. Nothing is due afterwards. 0: nothing was.
  std::uint64_t take_hash() {
    if (!is_due()) return 0;
    const std::uint64_t hash = *std::exchange(hash_, std::nullopt);
    return bytes_ ? fast_hash(bytes_(), hash) : hash;
  }
  void forget() { hash_.reset(); }

 private:
  std::uint64_t every_ = 0;
  decltype(ReducerOptions::checked) bytes_;
  std::optional<std::uint64_t> hash_;
};

}  // namespace oktopk
