// SPDX-License-Identifier: Apache-2.0
// One thread that does numbered tasks in their order, each not before it was released: so the buckets are exchanged in
// the same order on all ranks, for any order in which tensors get ready. start(), finish() and stop() belong to one
// caller; release() and done() may be called from any thread. A task sees what was written before its release; the
// caller sees what the tasks wrote after finish().
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "oktopk/base/process_mark.h"

namespace oktopk {

class OrderedWorker {
 public:
  // Does task i; false leaves out those that follow, as an exception does.
  using Task = std::function<bool(std::size_t i)>;

  OrderedWorker();
  ~OrderedWorker();
  OrderedWorker(const OrderedWorker&) = delete;
  OrderedWorker& operator=(const OrderedWorker&) = delete;

  // A new run: task i may begin after needs[i] calls of release(i). REQUIRES: the run before it is finished.
  void start(std::vector<std::size_t> needs, Task task);
  void release(std::size_t i);
  // Blocks until the run is over: all tasks are done, or some left out. Rethrows the exception of a task. REQUIRES: all
  // tasks are released.
  void finish();

  // Whether this is a child of fork(), which has no such thread. stop() and the destructor must not be called there.
  bool is_forked() const { return mark_.is_forked(); }

  // Tasks of this run that came to their end without an exception.
  std::size_t done() const;
  // Whether a task is under way or awaited.
  bool is_busy() const;
  // Ends the thread after the task that it is in. Returns whether the run was over.
  bool stop() noexcept;

 private:
  void work();
  bool is_over() const { return next_ == needs_.size(); }

  const ProcessMark mark_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_, over_;
  Task task_;
  std::vector<std::size_t> needs_;  // releases that are missing, by task
  std::size_t next_ = 0;            // the task that is under way or awaited
  std::size_t done_ = 0;
  std::exception_ptr error_;
  bool stopped_ = false;

  std::thread thread_;
};

}  // namespace oktopk
