// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/first_error.h"

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "tests/support/message.h"
#include "tests/support/world.h"

namespace oktopk::first_error_test {
namespace {

// The message of each rank's Error, when rank r does acts[r].
template <class Error>
std::vector<std::string> messages(const std::vector<std::function<void()>>& acts) {
  return gather_world("threads", static_cast<int>(acts.size()), [&](Communicator& comm) {
    const std::string mine = error_of(acts[static_cast<std::size_t>(comm.rank())]);
    return message_of<Error>([&] { throw_first_error(comm, "start", mine); });
  });
}

void expect_all(const std::vector<std::string>& found, const std::string& expected) {
  for (const std::string& text : found) EXPECT_EQ(text, expected);
}

const auto kFine = [] {};
const auto kLate = [] { throw LateError("nobody came"); };

TEST(FirstError, none_is_thrown_where_all_is_well) {
  expect_all(messages<CommError>({kFine, kFine, kFine}), "accepted");
}

TEST(FirstError, every_rank_throws_the_first_with_its_type) {
  const auto usage = [] { throw UsageError("k = 0"); };
  const auto device = [] { throw DeviceError("no GPU"); };
  const auto comm = [] { throw CommError("no network"); };
  expect_all(messages<UsageError>({kFine, usage, device}), "start: rank 1: k = 0");
  expect_all(messages<DeviceError>({kFine, device, usage}), "start: rank 1: no GPU");
  expect_all(messages<CommError>({comm, device, kFine}), "start: rank 0: no network");
  expect_all(messages<UsageError>({usage}), "start: rank 0: k = 0");
}

TEST(FirstError, cause_comes_before_those_who_waited) {
  const auto device = [] { throw DeviceError("no GPU"); };
  expect_all(messages<DeviceError>({kLate, kLate, device}), "start: rank 2: no GPU");
  expect_all(messages<CommError>({kFine, kLate, kLate}), "start: rank 1: nobody came");
}

TEST(FirstError, long_text_is_cut) {
  const auto usage = [] { throw UsageError(std::string(5000, 'x')); };
  expect_all(messages<UsageError>({kFine, usage}), "start: rank 1: " + std::string(kMostErrorBytes - 1, 'x'));
}

TEST(FirstError, other_exceptions_pass) {
  EXPECT_THROW(error_of([] { throw std::out_of_range("ours"); }), std::out_of_range);
}

}  // namespace
}  // namespace oktopk::first_error_test
