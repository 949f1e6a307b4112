// SPDX-License-Identifier: Apache-2.0
// Fork and join: run(parts, f) calls f(0), ..., f(parts - 1) on the calling thread and on workers that sleep in
// between. Nothing is allocated per run. Belongs to one thread at a time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace oktopk {

class ThreadPool {
 public:
  // `threads` includes the caller. REQUIRES: threads >= 1.
  explicit ThreadPool(std::size_t threads) {
    errors_.resize(threads);
    try {
      for (std::size_t part = 1; part < threads; ++part) workers_.emplace_back([this, part] { work(part); });
    } catch (...) {
      stop();  // the system has no more threads: those that started must not outlive this
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
    {
      const std::lock_guard lock(mutex_);
      task_ = std::ref(f);
      parts_ = parts;
      running_ = workers_.size();
      ++round_;
    }
    begin_.notify_all();
    call(0);
    {
      std::unique_lock lock(mutex_);
      end_.wait(lock, [this] { return running_ == 0; });
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
    std::unique_lock lock(mutex_);
    for (std::size_t seen = 0;;) {
      begin_.wait(lock, [&] { return stopping_ || round_ != seen; });
      if (stopping_) return;
      seen = round_;
      if (part < parts_) {
        lock.unlock();
        call(part);
        lock.lock();
      }
      if (--running_ == 0) end_.notify_one();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    begin_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  std::mutex mutex_;
  std::condition_variable begin_;
  std::condition_variable end_;
  std::function<void(std::size_t)> task_;
  std::size_t parts_ = 0;
  std::size_t running_ = 0;  // workers that have not finished the task
  std::size_t round_ = 0;
  bool stopping_ = false;
  std::vector<std::exception_ptr> errors_;  // by part
  std::vector<std::thread> workers_;
};

}  // namespace oktopk
