// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/ordered_worker.h"

#include <utility>

#include "oktopk/base/error.h"

namespace oktopk {

OrderedWorker::OrderedWorker() : thread_([this] { work(); }) {}

OrderedWorker::~OrderedWorker() { stop(); }

void OrderedWorker::start(std::vector<std::size_t> needs, Task task) {
  const std::lock_guard lock(mutex_);
  OKTOPK_DCHECK(is_over() && !stopped_);
  task_ = std::move(task);
  needs_ = std::move(needs);
  next_ = done_ = 0;
  error_ = nullptr;
  wake_.notify_one();
}

void OrderedWorker::release(std::size_t i) {
  const std::lock_guard lock(mutex_);
  if (is_over()) return;  // a task before it failed
  if (--needs_[i] == 0) wake_.notify_one();
}

void OrderedWorker::finish() {
  std::unique_lock lock(mutex_);
  over_.wait(lock, [&] { return is_over(); });
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

std::size_t OrderedWorker::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

bool OrderedWorker::is_busy() const {
  const std::lock_guard lock(mutex_);
  return !is_over();
}

bool OrderedWorker::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  return is_over();
}

void OrderedWorker::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopped_ || (!is_over() && needs_[next_] == 0); });
    if (stopped_) return;
    const std::size_t i = next_;
    lock.unlock();
    bool goes_on = false;
    std::exception_ptr error;
    try {
      goes_on = task_(i);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
    if (error == nullptr) ++done_;
    next_ = goes_on ? next_ + 1 : needs_.size();
    if (is_over()) over_.notify_all();
  }
}

}  // namespace oktopk
