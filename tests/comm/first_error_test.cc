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

using Act = std::function<void()>;
const Act kFine = [] {};
const Act kLate = [] { throw LateError("nobody came"); };
const Act kUsage = [] { throw UsageError("k = 0"); };
const Act kDevice = [] { throw DeviceError("no GPU"); };
const Act kComm = [] { throw CommError("no network"); };

// Rank r does acts[r]; all ranks must throw the same Error.
template <class Error>
void expect_all(const std::vector<Act>& acts, const std::string& expected) {
  run_world("threads", static_cast<int>(acts.size()), [&](Communicator& comm) {
    const std::string mine = error_of(acts[static_cast<std::size_t>(comm.rank())]);
    EXPECT_EQ(message_of<Error>([&] { throw_first_error(comm, "start", mine); }), expected);
  });
}

TEST(FirstError, every_rank_throws_the_first_cause_with_its_type_and_late_ones_last) {
  expect_all<CommError>({kFine, kFine, kFine}, "accepted");
  expect_all<UsageError>({kFine, kUsage, kDevice}, "start: rank 1: k = 0");
  expect_all<DeviceError>({kFine, kDevice, kUsage}, "start: rank 1: no GPU");
  expect_all<CommError>({kComm, kDevice, kFine}, "start: rank 0: no network");
  expect_all<UsageError>({kUsage}, "start: rank 0: k = 0");
  expect_all<DeviceError>({kLate, kLate, kDevice}, "start: rank 2: no GPU");
  expect_all<CommError>({kFine, kLate, kLate}, "start: rank 1: nobody came");
}

TEST(FirstError, long_text_is_cut) {
  const Act wordy = [] { throw UsageError(std::string(5000, 'x')); };
  expect_all<UsageError>({kFine, wordy}, "start: rank 1: " + std::string(kMostErrorBytes - 1, 'x'));
}

TEST(FirstError, other_exceptions_pass) {
  EXPECT_THROW(error_of([] { throw std::out_of_range("ours"); }), std::out_of_range);
}

}  // namespace
}  // namespace oktopk::first_error_test
