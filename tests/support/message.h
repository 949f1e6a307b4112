// SPDX-License-Identifier: Apache-2.0
// The error text of an action that should be refused.
#pragma once

#include <string>

#include "oktopk/base/error.h"

namespace oktopk {

// The text of the Error that `act` throws, "accepted" when it throws nothing.
template <class Error = UsageError, class Act>
std::string message_of(Act act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace oktopk
