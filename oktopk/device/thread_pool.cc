// SPDX-License-Identifier: Apache-2.0
#include "oktopk/device/thread_pool.h"

#include "oktopk/base/error.h"

namespace oktopk {

ThreadPool::ThreadPool(std::size_t threads) {
  errors_.resize(threads);
  OKTOPK_DCHECK(threads >= 1);
  workers_.reserve(threads - 1);
  try {
    for (std::size_t part = 1; part < threads; ++part) workers_.emplace_back([this, part] { work(part); });
  } catch (...) {
    stop();  // the system has no more threads: those that started must not outlive this
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  begin_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::call(const Task& task, std::size_t part) {
  try {
    task.call(task.body, part);
  } catch (...) {
    errors_[part] = std::current_exception();
  }
}

void ThreadPool::run_task(Task task, std::size_t parts) {
  OKTOPK_DCHECK(parts <= size());
  if (parts == 0) return;
  {
    const std::lock_guard lock(mutex_);
    task_ = task;
    parts_ = parts;
    running_ = workers_.size();
    ++round_;
  }
  begin_.notify_all();
  call(task, 0);
  {
    std::unique_lock lock(mutex_);
    end_.wait(lock, [this] { return running_ == 0; });
  }
  std::exception_ptr first;
  for (std::exception_ptr& error : errors_) {
    if (!first) first = error;
    error = nullptr;
  }
  if (first) std::rethrow_exception(first);
}

void ThreadPool::work(std::size_t part) {
  std::unique_lock lock(mutex_);
  for (std::size_t seen = 0;;) {
    begin_.wait(lock, [&] { return stopping_ || round_ != seen; });
    if (stopping_) return;
    seen = round_;
    if (part < parts_) {
      const Task task = task_;
      lock.unlock();
      call(task, part);
      lock.lock();
    }
    if (--running_ == 0) end_.notify_one();
  }
}

}  // namespace oktopk
