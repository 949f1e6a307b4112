// SPDX-License-Identifier: Apache-2.0
// The error text of an action that should be refused.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

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

inline std::size_t count_of(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t i = text.find(part); i != text.npos; i = text.find(part, i + 1)) ++found;
  return found;
}

inline void expect_contains(std::string_view text, std::string_view words) {
  EXPECT_NE(text.find(words), std::string_view::npos) << "\"" << words << "\" is not in: " << text;
}

// `act` must throw an Error whose text contains the words.
template <class Error = UsageError, class Act>
void expect_error(std::string_view words, Act act) {
  expect_contains(message_of<Error>(act), words);
}

}  // namespace oktopk
