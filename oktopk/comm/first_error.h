// SPDX-License-Identifier: Apache-2.0
// An error of one rank becomes the same error on all ranks. For a start in several steps, each of which needs that all
// ranks have done the one before.
// COST: an allreduce of one number; the text travels only where there is one.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/communicator.h"

namespace oktopk {

inline constexpr std::size_t kMostErrorBytes = 2048;

// A rank waited in vain: another one knows the cause.
struct LateError : CommError {
  using CommError::CommError;
};

// The error of this library that act throws: a letter for its type and its text; nothing when act throws nothing.
template <class Act>
std::string error_of(const Act& act) {
  try {
    act();
    return {};
  } catch (const LateError& error) {
    return std::string("l") + error.what();
  } catch (const UsageError& error) {
    return std::string("u") + error.what();
  } catch (const CommError& error) {
    return std::string("c") + error.what();
  } catch (const DeviceError& error) {
    return std::string("d") + error.what();
  }
}

// Collective, with what error_of() gave each rank: all ranks throw the first rank's error. Errors of ranks that waited
// in vain come last. The text is cut after kMostErrorBytes.
inline void throw_first_error(Communicator& comm, std::string_view who, const std::string& mine) {
  Workspace work;
  const auto P = static_cast<std::uint32_t>(comm.size());
  const std::uint32_t turn = mine.empty() ? 2 : mine[0] == 'l' ? 1 : 0;
  const std::uint32_t vote = turn * P + static_cast<std::uint32_t>(comm.rank());
  const std::uint32_t least = allreduce_small(comm, vote, Reduction::min, work);
  if (least >= 2 * P) return;
  const std::uint32_t first = least % P;
  std::array<char, kMostErrorBytes> text{};
  std::size_t size = std::min(mine.size(), text.size());
  std::memcpy(text.data(), mine.data(), size);
  size = broadcast_up_to(comm, static_cast<int>(first), std::as_writable_bytes(std::span(text)), size);
  const std::string why = text_of(who, ": rank ", first, ": ", std::string_view(text.data() + 1, size - 1));
  if (text[0] == 'u') throw UsageError(why);
  if (text[0] == 'c' || text[0] == 'l') throw CommError(why);
  throw DeviceError(why);
}

}  // namespace oktopk
