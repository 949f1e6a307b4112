// SPDX-License-Identifier: Apache-2.0
// A Communicator whose messages a Python object moves: torch.distributed process groups, mpi4py, or anything a user
// writes (python/oktopk/transport.py has the protocol). Called from C++ without the GIL, which it takes for the time of
// each call. An exception of the Python object becomes a CommError, after which the communicator is dead. An object
// with an attribute `native` (NativeMessages) only forms groups and answers questions: its messages need no Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "oktopk/base/process_mark.h"
#include "oktopk/comm/communicator.h"
#include "python/src/native_messages.h"

namespace oktopk::python {

class PythonCommunicator final : public Communicator {
 public:
  // With the GIL held.
  PythonCommunicator(nanobind::object transport, double timeout_seconds);
  ~PythonCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view transport() const override { return name_; }
  Duration timeout() const override { return timeout_; }
  std::unique_ptr<Communicator> split(int color, int key) override;
  int host() override;

  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override;
  void finish(std::uint64_t ticket) override;
  void abandon(std::uint64_t ticket) noexcept override;
  void kill() noexcept override;
  bool can_kill_waits() const override { return native_.has_value(); }
  bool is_forked() const override { return mark_.is_forked(); }

  nanobind::handle python_transport() const { return transport_; }

 private:
  template <class Act>
  auto guarded(const char* what, const Act& act);
  [[noreturn]] void die(const std::string& reason);

  const ProcessMark mark_;
  nanobind::object transport_;
  std::optional<NativeMessages> native_;
  int rank_;
  int size_;
  std::string name_;
  Duration timeout_;
  std::uint64_t next_ticket_ = 0;
  std::map<std::uint64_t, std::span<Recv>> open_;
  bool is_dead_ = false;
  std::string reason_;
};

}  // namespace oktopk::python
