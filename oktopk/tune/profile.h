// SPDX-License-Identifier: Apache-2.0
// A profile has the prices by which preset auto decides. calibrate() measures one, read_profile() reads one from a JSON
// file. All ranks that decide by a profile must hold the same bits. ChoiceOptions limits the choice. docs/tuning.md
// explains all of it.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oktopk/allreduce/presets.h"
#include "oktopk/codec/codec.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/device/device.h"

namespace oktopk {

struct Problem;

// Prices of the network and the processor, in seconds.
struct Machine {
  double alpha = 0;       // per round: the latency of a message
  double beta = 0;        // per byte and direction, while all ranks exchange in pairs
  double gamma = 0;       // per sparse entry that goes into a merge
  double overhead = 0;    // per message: processor time, half of it on the sender
  double contention = 1;  // factor of beta while every rank sends to every other
  double delta = 0;       // per dense value
  double sigma = 0;       // per gradient value that is accumulated and selected from
};

// A dense allreduce that the caller makes himself (ChoiceOptions::external_dense): a line in its bytes.
struct ExternalPrice {
  double latency = 0;   // seconds for any size
  double per_byte = 0;  // seconds per byte of the vector: n floats have 4 n bytes
};

struct Profile {
  std::string name = "assumed: 25 Gbit/s Ethernet";
  // Between ranks on different hosts, or between all ranks where hosts make no difference.
  Machine machine = {
      .alpha = 16e-6, .beta = 3.2e-10, .gamma = 3e-9, .overhead = 4e-6, .delta = 2.5e-10, .sigma = 4e-10};
  std::optional<Machine> inside = std::nullopt;   // between ranks that share a host
  std::optional<Machine> leaders = std::nullopt;  // between one rank of each host, while the others wait
  int ranks_per_host = 1;
  std::optional<ExternalPrice> external_dense = std::nullopt;  // absent: as dear as preset dense
  // Seconds per entry, encoding and decoding together, beyond coo32 and fp32; in the order of the enums. A coding
  // without a price costs nothing.
  std::array<double, kIndexCodingCount> index_seconds = {0, 0.3e-9, 0.3e-9, 1e-9, 1e-9, 0};
  std::array<double, kValueCodingCount> value_seconds = {0, 0.1e-9, 2e-9, 2e-9};

  // The prices with this codec on the wire. for_leaders: where only one rank of each host exchanges.
  Machine machine_with(Codec codec, bool for_leaders = false) const {
    Machine priced = for_leaders ? leaders.value_or(machine) : machine;
    priced.gamma +=
        index_seconds[static_cast<std::size_t>(codec.index)] + value_seconds[static_cast<std::size_t>(codec.value)];
    return priced;
  }
};

// As JSON text. Reading checks every field: UsageError names `where` and the field. A coding that is missing keeps its
// price of Profile{}. Only builds with nlohmann_json have these three functions.
std::string to_json(const Profile& profile);
Profile profile_from_json(const std::string& text, const std::string& where);
Profile read_profile(const std::string& file);

using Clock = std::function<double()>;  // seconds since any moment

// Bytes that a rank may send to measure the network for steps of n values: as many as kMeasuredSteps dense steps, and
// always enough to tell a latency from a bandwidth.
inline constexpr double kMeasuredSteps = 4;
inline constexpr double kLeastMeasured = 1 << 18;
double most_measured(double n, int P);

// All but the clock must be equal on all ranks.
struct CalibrateOptions {
  double budget = 0.15;  // seconds, half of them for the network
  // That a rank sends in timed rounds, at least kLeastMeasured.
  double most_bytes = std::numeric_limits<double>::infinity();
  Clock now = {};       // of this rank; empty: the steady clock
  bool kernels = true;  // false: the prices of the processor are those of `assumed`
  Profile assumed = {};
  // Ranks 0 ... g-1 share a host, g ... 2g-1 the next one, and so on. Where 1 < g < P, three networks are measured:
  // between hosts, inside a host, and between one rank of each host. 1: hosts make no difference.
  int ranks_per_host = 1;
  std::size_t values = std::size_t{1} << 22;  // length of the vectors in passes over gradient values
  CpuOptions cpu = {};                        // threads that share these passes
  // The price that the caller measured on this rank; the dearest rank counts. On all ranks or on none.
  std::optional<ExternalPrice> external_dense = std::nullopt;
};

// Collective: measures a profile, equal bit by bit on all ranks. P = 1: sends nothing, and the network costs nothing.
// UsageError on all ranks where their options differ. COST: about `budget` seconds, but at least one round of each of
// 21 probes; 2 * values floats of memory.
Profile calibrate(Communicator& comm, const CalibrateOptions& options = {});

// A method with a preset, and perhaps more that is fixed.
struct PartialMethod {
  std::string preset;
  std::optional<Codec> codec = std::nullopt;
  std::optional<std::string> skips = std::nullopt;
  std::optional<int> group = std::nullopt;
  friend bool operator==(const PartialMethod&, const PartialMethod&) = default;
};

// An override rule: the method for all problems whose n, k, density and P are in [least, most].
struct Rule {
  PartialMethod method;
  std::array<double, 4> least, most;
  std::string text;  // in the form that Overrides::parse() reads
  friend bool operator==(const Rule&, const Rule&) = default;
};

// Rules of the user, such as "oktopk:n>=1M,density<0.02; dense:n<64K; circulant[codec=bf16,group=8]:P=16..64". The
// first rule that matches wins; the tuner chooses what the rule leaves open. docs/tuning.md has the grammar.
struct Overrides {
  std::vector<Rule> rules;

  // UsageError shows the text, the place and what was expected there.
  static Overrides parse(std::string_view text);
  const Rule* match(const Problem& problem) const;  // the first rule that matches; nullptr: none
  bool empty() const { return rules.empty(); }
  friend bool operator==(const Overrides&, const Overrides&) = default;
};
std::string to_string(const Overrides& overrides);  // in the form that parse() reads
Overrides read_overrides(const std::string& file);

struct ChoiceOptions {
  std::vector<std::string> presets = {};     // besides dense; empty: all presets whose counts can be predicted
  ValueCoding coarsest = ValueCoding::bf16;  // coarsest values that the wire may carry
  AllreduceOptions allreduce = {};           // tau, residual rule and the rest
  bool external_dense = false;               // the caller makes dense steps in fp32 himself
  bool groups = false;                       // also node-sum-first, in groups of Profile::ranks_per_host
  double preference = 0.03;  // dense and circulant win over others that are faster by at most this share
  bool review = true;        // false: no review after the first choice, so that two runs agree bitwise
  Overrides overrides = {};
  std::map<std::string, double> refreshes = {};  // share of the steps, by preset: the tuner's, from what it saw
};

}  // namespace oktopk
