// SPDX-License-Identifier: Apache-2.0
// A native communicator that moves the messages of a Python transport (python_communicator.cc), and its maker for
// transport "tcp": no Python per message. Python may close it while the object is still referred to, so that peers get
// a goodbye when the interpreter ends, and while another thread is inside an exchange: that thread gets a CommError.
#pragma once

#include <nanobind/nanobind.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "oktopk/base/process_mark.h"
#include "oktopk/comm/communicator.h"

namespace oktopk::python {

class NativeMessages {
  // All copies have the same one.
  struct Shared {
    const ProcessMark mark;
    std::mutex mutex;
    std::condition_variable left;
    std::shared_ptr<Communicator> comm;  // null after close()
    int users = 0;                       // threads in a call
  };

 public:
  // One call of the communicator, which lives as long.
  class Use {
   public:
    explicit Use(std::shared_ptr<Shared> shared);  // CommError after close()
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    Communicator* operator->() const { return comm_.get(); }

   private:
    std::shared_ptr<Shared> shared_;
    std::shared_ptr<Communicator> comm_;
  };

  explicit NativeMessages(std::unique_ptr<Communicator> comm) : shared_(std::make_shared<Shared>()) {
    shared_->comm = std::move(comm);
  }

  Use use() const { return Use(shared_); }
  void abandon(std::uint64_t ticket) const noexcept;
  // Any thread may call it, and ends the exchanges of others.
  void kill() const noexcept;
  // Kills the world where a thread is inside a call, and waits for it, for a limited time.
  void close() const;
  void close_in_child() const noexcept;

 private:
  std::shared_ptr<Communicator> held() const;  // null after close()

  std::shared_ptr<Shared> shared_;
};

Communicator::Duration duration_of(double seconds);  // UsageError unless positive
void bind_native_messages(nanobind::module_& m);

}  // namespace oktopk::python
