// SPDX-License-Identifier: Apache-2.0
// What a tuner knows of the world that ranks run in: prices of rounds, messages, bytes and entries.
// calibrate() measures one; it must be equal on all ranks that decide by it.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "oktopk/base/state.h"
#include "oktopk/codec/codec.h"
#include "oktopk/tune/cost.h"

namespace oktopk {

// A dense allreduce that the caller makes himself (choose.h): its time is a line in its bytes.
struct ExternalPrice {
  double latency = 0;   // seconds, whatever the size
  double per_byte = 0;  // seconds per byte of the vector, 4 n of floats
};

struct Profile {
  std::string name = "assumed: 25 Gbit/s Ethernet";
  // Ranks on different hosts, or all ranks where hosts make no difference.
  Machine machine = {.alpha = 16e-6,
                     .beta = 3.2e-10,
                     .gamma = 3e-9,
                     .overhead = 4e-6,
                     .contention = 1,
                     .delta = 2.5e-10,
                     .sigma = 4e-10};
  std::optional<Machine> inside = std::nullopt;   // ranks that share a host
  std::optional<Machine> leaders = std::nullopt;  // one rank of each host, while the others wait
  int ranks_per_host = 1;
  std::optional<ExternalPrice> external_dense = std::nullopt;  // absent: priced like our dense
  // Seconds per entry, coding and decoding together, beyond those of coo32 and fp32; in enum order.
  std::array<double, 6> index_seconds = {0, 0.3e-9, 0.3e-9, 1e-9, 1e-9, 0};
  std::array<double, 4> value_seconds = {0, 0.1e-9, 2e-9, 2e-9};

  // The prices with this coding on the wire; for_leaders: where one rank of each host exchanges.
  Machine machine_with(Codec codec, bool for_leaders = false) const {
    Machine priced = for_leaders ? leaders.value_or(machine) : machine;
    priced.gamma +=
        index_seconds[static_cast<std::size_t>(codec.index)] + value_seconds[static_cast<std::size_t>(codec.value)];
    return priced;
  }
};

void save(const Profile& profile, StateWriter& state);
Profile take_profile(StateReader& state);

}  // namespace oktopk
