// SPDX-License-Identifier: Apache-2.0
// One rank's place in an NCCL communicator that does not block. NCCL answers "in progress", and the member asks again
// until the answer is another one or the limit has passed. Results are those of ncclResult_t; kNcclInProgress: the
// limit has passed. Only nccl.cc uses it.
#pragma once

#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/comm/nccl/gpu_calls.h"
#include "oktopk/comm/nccl/library.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {

class NcclMember {
 public:
  using Duration = Communicator::Duration;

  NcclMember(const NcclApi& api, Duration timeout) : api_(api), timeout_(timeout) {}
  ~NcclMember() { leave(); }
  NcclMember(const NcclMember&) = delete;
  NcclMember& operator=(const NcclMember&) = delete;

  // Collective.
  int join(GpuCalls& gpu, int P, int rank, const NcclId& id, Duration limit) {
    NcclConfig config;
    int result = kNcclSuccess;
    gpu.on_gpu([&] { result = api_.comm_init_rank_config(&group_, P, id, rank, &config); });
    return settle(result, limit);
  }

  // Calls act(api, group), which queues operations and returns a result, between the start and the end of a group call.
  // Returns when NCCL has queued them.
  template <class Act>
  int queue(GpuCalls& gpu, const Act& act) {
    int result = kNcclSuccess;
    gpu.on_gpu([&] {
      result = api_.group_start();
      if (result != kNcclSuccess) return;
      result = act(api_, group_);
      const int end = api_.group_end();  // also after an error: it ends what group_start() began
      if (is_fine(result)) result = end;
    });
    return settle(result, timeout_);
  }

  // Never kNcclInProgress, because queue() waits for that.
  int state() const {
    int result = kNcclSuccess;
    const int status = api_.comm_get_async_error(group_, &result);
    return status == kNcclSuccess ? result : status;
  }

  std::string text_of_result(int result) const {
    const std::string last = api_.get_last_error(nullptr);
    return text_of(api_.get_error_string(result), last.empty() ? "" : ": ", last,
                   " (NCCL_DEBUG=WARN in the environment makes NCCL say more)");
  }

  // Ends operations that are in flight, here and on the other ranks.
  void abort() noexcept {
    if (NcclGroup* group = std::exchange(group_, nullptr)) call_within_limit(api_.comm_abort, group);
  }

  static bool is_fine(int result) { return result == kNcclSuccess || result == kNcclInProgress; }

 private:
  // Both calls take far less where all is well.
  Duration limit_of_end() const { return std::min<Duration>(timeout_, std::chrono::seconds(5)); }

  int settle(int result, Duration limit) const {
    if (!is_fine(result)) return result;
    poll(limit, [&] { return (result = state()) != kNcclInProgress; });
    return result;
  }

  void leave() noexcept {
    if (group_ == nullptr) return;
    if (settle(api_.comm_finalize(group_), timeout_) == kNcclSuccess)  // waits for what is queued
      call_within_limit(api_.comm_destroy, std::exchange(group_, nullptr));
    else
      abort();
  }

  // These two calls of NCCL may block for ever where another rank has died: a thread makes them, and is left behind.
  void call_within_limit(int (*act)(NcclGroup*), NcclGroup* group) const noexcept {
    try {
      std::promise<void> promise;
      const std::future<void> end = promise.get_future();
      std::thread caller([act, group, promise = std::move(promise)]() mutable {
        act(group);
        promise.set_value();
      });
      end.wait_for(limit_of_end()) == std::future_status::ready ? caller.join() : caller.detach();
    } catch (...) {
      // No thread can be had: the group stays, and with it some memory.
    }
  }

  NcclApi api_;
  Duration timeout_;
  NcclGroup* group_ = nullptr;
};

}  // namespace oktopk
