// SPDX-License-Identifier: Apache-2.0
// Fork and join: run(parts, f) calls f(0), ..., f(parts - 1) on the calling thread and on workers that sleep in
// between. Nothing is allocated per run. Belongs to one thread at a time. In a child of fork() there are no workers,
// and the caller does their parts.
#pragma once

#include <barrier>
#include <cstddef>
#include <exception>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "oktopk/base/process_mark.h"

namespace oktopk {

class ThreadPool {
 public:
  // `threads` includes the caller. REQUIRES: threads >= 1.
  explicit ThreadPool(std::size_t threads) : meeting_(static_cast<std::ptrdiff_t>(threads)) {
    errors_.resize(threads);
    try {
      for (std::size_t part = 1; part < threads; ++part) workers_.emplace_back([this, part] { work(part); });
    } catch (...) {
      // The system has no more threads: nobody waits for the missing ones, and those that started end.
      for (std::size_t part = workers_.size() + 1; part < threads; ++part) meeting_.arrive_and_drop();
      stop();
      throw;
    }
  }
  ~ThreadPool() { stop(); }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::size_t size() const { return workers_.size() + 1; }

  // Returns when all calls have returned; rethrows the exception of the lowest part that failed. REQUIRES:
  // parts <= size(); f does not run the same pool.
  template <class F>
  void run(std::size_t parts, const F& f) {
    if (parts == 0) return;
    task_ = std::ref(f);
    parts_ = parts;
    if (mark_.is_forked()) {
      for (std::size_t part = 0; part < parts; ++part) call(part);
    } else {
      meeting_.arrive_and_wait();  // workers begin
      call(0);
      meeting_.arrive_and_wait();  // all have finished
    }
    std::exception_ptr first;
    for (std::exception_ptr& error : errors_)
      if (const std::exception_ptr thrown = std::exchange(error, nullptr); !first) first = thrown;
    if (first) std::rethrow_exception(first);
  }

 private:
  void call(std::size_t part) {
    try {
      task_(part);
    } catch (...) {
      errors_[part] = std::current_exception();
    }
  }

  void work(std::size_t part) {
    for (;;) {
      meeting_.arrive_and_wait();
      if (parts_ == 0) return;
      if (part < parts_) call(part);
      meeting_.arrive_and_wait();
    }
  }

  void stop() {
    if (mark_.is_forked()) return leak(std::move(workers_));
    parts_ = 0;
    meeting_.arrive_and_wait();
    for (std::thread& worker : workers_) worker.join();
  }

  const ProcessMark mark_;
  std::barrier<> meeting_;
  std::function<void(std::size_t)> task_;
  std::size_t parts_ = 0;                   // 0: the workers end
  std::vector<std::exception_ptr> errors_;  // by part
  std::vector<std::thread> workers_;
};

}  // namespace oktopk
