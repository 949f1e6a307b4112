// SPDX-License-Identifier: Apache-2.0
// Ranks that should hold the same bytes compare hashes of them (check_equal in collectives.h). The hash works on four
// words at a time, so that it runs about as fast as memory is read. Each step of a lane is invertible: a difference in
// one word changes the hash for certain.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <string>

#include "oktopk/base/hash.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/flight.h"

namespace oktopk {
namespace {

using Imprint = std::array<std::uint64_t, 2>;  // hash and size
static_assert(sizeof(Imprint) + kCheckBytes == kAgreementBytes);

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  return text;
}

void compare(Communicator& comm, std::string_view what, const Imprint& imprint, std::uint64_t step, Workspace& work) {
  const FlightLabel label(comm, "check_equal");
  std::vector<Imprint> all(static_cast<std::size_t>(comm.size()));
  allgather(comm, std::as_bytes(std::span(&imprint, 1)), std::as_writable_bytes(std::span(all)), work);
  if (std::ranges::count(all, all[0]) == comm.size()) return;
  std::map<Imprint, std::vector<int>> groups;
  for (std::size_t r = 0; r < all.size(); ++r) groups[all[r]].push_back(static_cast<int>(r));
  const auto largest = std::ranges::max_element(groups, {}, [](const auto& group) { return group.second.size(); });
  const bool is_majority = 2 * largest->second.size() > all.size();
  std::vector<int> others;
  for (const auto& [value, ranks] : groups)
    if (!is_majority || value != largest->first) others.insert(others.end(), ranks.begin(), ranks.end());
  std::ranges::sort(others);
  const std::string text =
      is_majority
          ? text_of(what, ": ", list_ranks(others), others.size() == 1 ? " differs" : " differ", " from the other ",
                    largest->second.size(), " ranks in step ", step)
          : text_of(what, ": ", list_ranks(others), " differ in step ", step, ", and no majority says who is right");
  comm.flight()->note_error(text);
  throw Divergence(text);
}

}  // namespace

std::uint64_t fast_hash(std::span<const std::byte> bytes, std::uint64_t seed) {
  constexpr std::size_t kLanes = 4;
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15U;
  std::array<std::uint64_t, kLanes> lanes = {1 ^ seed, 2, 3, 4};
  std::array<std::uint64_t, kLanes> words{};
  const std::size_t whole = bytes.size() / sizeof(words) * sizeof(words);
  for (std::size_t at = 0; at < whole; at += sizeof(words)) {
    std::memcpy(words.data(), bytes.data() + at, sizeof(words));
    for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = std::rotl((lanes[i] ^ words[i]) * kOdd, 29);
  }
  return hash_bytes(bytes.subspan(whole), hash_bytes(std::as_bytes(std::span(lanes))));
}

void compare_hashes(Communicator& comm, std::string_view what, std::uint64_t mine, std::uint64_t step,
                    Workspace& work) {
  compare(comm, what, {mine, 0}, step, work);
}

void check_equal(Communicator& comm, std::string_view what, std::span<const std::byte> mine, std::uint64_t step,
                 Workspace& work) {
  compare(comm, what, {fast_hash(mine), mine.size()}, step, work);
}

}  // namespace oktopk
