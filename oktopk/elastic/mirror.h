// SPDX-License-Identifier: Apache-2.0
// A copy of each owner's memory on the next rank of the epoch, for runs that lose ranks (elastic_reducer.h). In every
// step, before the members agree, an owner sends the places of its memory that changed, with their new values. The copy
// takes them when the step is committed, and drops them when it is rolled back: it is the owner's memory as of the last
// committed step, bit by bit. A new epoch, new cuts and a dense step send the whole memory instead, which is then empty
// or small.
//
// A message is a head of 72 bytes with a hash, and one frame (codec/frame.h) whose tag is that hash. Everything in it
// is checked before it is used.
// COST per step: one message of about 6 bytes for each entry that arrives at an owner or leaves its memory. Memory: n/P
// floats, and room for 6n bytes that only a message of that size would fill.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

struct Problem;

class OwnerMirror {
 public:
  // The step that was proposed, on this rank.
  struct Step {
    const Device& device;
    Allreduce& owner;
    Index n;
    std::uint64_t number;   // equal on all ranks
    bool is_dense = false;  // the memory was emptied
    float decay = 1;        // the memory was multiplied by it before the changes
  };

  // Collective. REQUIRES: at least two ranks.
  void exchange(Communicator& comm, const Step& step);
  // Local. Without an exchange before it, nothing is remembered any more.
  void commit();
  void drop();
  // The ranks have changed. The copy stays until the next commit.
  void begin_epoch() { drop(); }

  // The copy: the layout of the memory of the rank before, and its values by place.
  const MemoryLayout& layout() const { return layout_; }
  const std::vector<float>& values() const { return values_; }
  SparseVector entries() const;  // that are not zero, by index

  static Prediction predict(const Problem& problem);

 private:
  using Head = std::array<std::uint64_t, 9>;

  void write(const Step& step);
  void read(const Step& step, std::span<const std::byte> bytes);

  bool is_fresh_ = true;  // the next message has the whole memory
  MemoryLayout layout_;
  std::vector<float> values_;

  struct Changes {
    MemoryLayout layout;
    std::size_t places = 0;
    bool is_whole = false;
    float decay = 1;
  };
  std::optional<Changes> pending_;
  SparseVector changed_;  // of the pending message
  SparseVector own_;      // of this rank
  MemoryLayout own_layout_;
  Bytes out_, in_;
};

}  // namespace oktopk
