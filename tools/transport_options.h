// SPDX-License-Identifier: Apache-2.0
// --transport, and the place of this process in a job of transport tcp: flags, or the variables that `oktopk run` sets
// (docs/tcp.md). A flag wins over its variable.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "oktopk/comm/transports.h"

namespace oktopk {

struct TransportOptions {
  std::string transport = "threads";
  // Transport tcp only; empty: as the variable says.
  std::string rank, world_size, rendezvous, secret_file, interface;
  bool encrypt = false;  // false: as the variable says

  void add_transport_to(CLI::App& sub);
  // UsageError if there is no such transport, or if flags are given that another one has no use for.
  void check_transport() const;
  // UsageError names the flag and the variable of a value that is absent or no number.
  TcpOptions tcp() const;
};

}  // namespace oktopk
