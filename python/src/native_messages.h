// SPDX-License-Identifier: Apache-2.0
// A native communicator that moves the messages of a Python transport (python_communicator.h), and its maker for
// transport "tcp": no Python per message. Python may close it while the object is still referred to, so that peers get
// a goodbye when the interpreter ends.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/comm/communicator.h"

namespace oktopk::python {

class NativeMessages {
 public:
  explicit NativeMessages(std::unique_ptr<Communicator> comm)
      : open_(std::make_shared<std::unique_ptr<Communicator>>(std::move(comm))) {}

  // CommError after close(), of this object or of a copy.
  Communicator& comm() const {
    if (*open_ == nullptr) fail<CommError>("tcp: the communicator is closed");
    return **open_;
  }
  void abandon(std::uint64_t ticket) const noexcept {
    if (*open_ != nullptr) (*open_)->abandon(ticket);
  }
  void close() const { open_->reset(); }

 private:
  std::shared_ptr<std::unique_ptr<Communicator>> open_;  // of all copies
};

Communicator::Duration duration_of(double seconds);  // UsageError unless positive
void bind_native_messages(nanobind::module_& m);

}  // namespace oktopk::python
