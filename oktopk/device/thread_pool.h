// SPDX-License-Identifier: Apache-2.0
// Fork and join: run(parts, f) calls f(0), ..., f(parts - 1) on the calling thread and on workers
// that sleep in between. Nothing is allocated per run. Belongs to one thread at a time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace oktopk {

class ThreadPool {
 public:
  explicit ThreadPool(std::size_t threads);  // the caller's included. REQUIRES: threads >= 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::size_t size() const { return workers_.size() + 1; }

  // Returns when all calls have; rethrows what the lowest of the parts that failed has thrown.
  // REQUIRES: parts <= size(); f does not run the same pool.
  template <class F>
  void run(std::size_t parts, const F& f) {
    run_task({&f, [](const void* body, std::size_t part) { (*static_cast<const F*>(body))(part); }}, parts);
  }

 private:
  struct Task {
    const void* body = nullptr;
    void (*call)(const void* body, std::size_t part) = nullptr;
  };

  void run_task(Task task, std::size_t parts);
  void work(std::size_t part);
  void call(const Task& task, std::size_t part);
  void stop();

  std::mutex mutex_;
  std::condition_variable begin_;
  std::condition_variable end_;
  Task task_;
  std::size_t parts_ = 0;
  std::size_t running_ = 0;  // workers that have not finished the task
  std::size_t round_ = 0;
  bool stopping_ = false;
  std::vector<std::exception_ptr> errors_;  // by part
  std::vector<std::thread> workers_;
};

}  // namespace oktopk
