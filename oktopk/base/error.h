// SPDX-License-Identifier: Apache-2.0
// Errors, sorted by who has to act (docs/errors.md): the caller (UsageError), the world (CommError, DeviceError), the
// authors (OKTOPK_DCHECK, debug builds only). After a CommError the communicator is dead: build a new one. After a
// UsageError the object that threw it is unchanged.
#pragma once

#include <cassert>
#include <sstream>
#include <stdexcept>
#include <string>

namespace oktopk {

// The caller broke a stated rule; the message names the value and the rule.
struct UsageError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// A peer, the network or received bytes failed; the message names rank, peer and operation.
struct CommError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An accelerator failed.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The parts, written one after the other.
template <class... Parts>
std::string text_of(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

template <class Error, class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(text_of(parts...));
}

// Throws UsageError with the concatenated parts unless `holds`.
template <class... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) [[unlikely]]
    fail<UsageError>(parts...);
}

}  // namespace oktopk

#define OKTOPK_DCHECK(condition) assert(condition)
