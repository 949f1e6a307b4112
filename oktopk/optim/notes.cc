// SPDX-License-Identifier: Apache-2.0
#include "oktopk/optim/notes.h"

#include <algorithm>
#include <array>
#include <vector>

namespace oktopk {
namespace {

constexpr std::size_t kTextBytes = 240;
using Text = std::array<char, kTextBytes>;

}  // namespace

Note compare_notes(Communicator& comm, const Note& note, Workspace& work) {
  const auto gravest = static_cast<Severity>(
      allreduce_small(comm, static_cast<std::uint32_t>(note.severity), Reduction::max, work));
  if (gravest == Severity::fine) return {};
  Text mine{};
  if (note.severity == gravest)
    std::copy_n(note.text.begin(), std::min(note.text.size(), kTextBytes), mine.begin());
  std::vector<Text> all(static_cast<std::size_t>(comm.size()));
  allgather_checked(comm, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)),
                    work);
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto end = std::find(all[r].begin(), all[r].end(), '\0');
    if (end != all[r].begin())
      return {gravest, "rank " + std::to_string(r) + ": " + std::string(all[r].begin(), end)};
  }
  fail_world(comm, "a rank reported trouble but not which");
}

Cost notes_cost(int P) {
  return {static_cast<double>(ceil_log2(P)), (P - 1.0) * (sizeof(std::uint32_t) + kCheckBytes), 0};
}

}  // namespace oktopk
