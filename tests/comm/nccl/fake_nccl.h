// SPDX-License-Identifier: Apache-2.0
// Switches and counters of fake_nccl.cc, an NCCL for threads of one process and host memory. fake_nccl() is its only
// function that NCCL does not have.
#pragma once

#include <atomic>
#include <cstdint>

namespace oktopk {

struct FakeNccl {
  // Switches. Each test starts with these values.
  std::atomic<int> version{22703};
  std::atomic<int> failing_rank{-1};  // this rank cannot start
  std::atomic<int> absent_rank{-1};   // this rank's start is not noticed by the others
  std::atomic<bool> ops_hang{false};  // no operation ends
  std::atomic<bool> has_error{false};
  std::atomic<bool> refuses{false};  // calls between the start and the end of a group call fail
  std::atomic<bool> abort_hangs{false};

  // Counters.
  std::atomic<int> finalised{0};
  std::atomic<int> destroyed{0};
  std::atomic<int> aborted{0};
  std::atomic<int> misused{0};  // calls that NCCL forbids: while it is busy, or outside of a group call

  std::atomic<int> open_groups{0};  // group calls that were started and not ended

  // Operations that were queued on a stream, and how many of them are done.
  std::uint64_t (*queued)(const void* stream) = nullptr;
  std::uint64_t (*done)(const void* stream) = nullptr;
};

}  // namespace oktopk

extern "C" oktopk::FakeNccl* fake_nccl();
