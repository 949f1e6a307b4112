// SPDX-License-Identifier: Apache-2.0
// The common ground of all subcommands: options with one meaning each, and the frame around all (run_app).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "oktopk/base/simd.h"
#include "oktopk/comm/transports.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/tune/candidates.h"
#include "tools/text.h"

namespace oktopk {

// From -b to -e, times -f.
struct SizeOptions {
  std::string begin = "1M", end, factor = "2";

  void add_to(CLI::App& sub);
  std::vector<Index> sizes() const;  // checked
};

// How and where the kernels compute; changes times, never results.
struct ComputeOptions {
  std::string simd = "best";
  int threads = 1;
  std::string device = "cpu";
  std::string exchange = "comm";

  // `many`: whether --simd all makes sense.
  void add_to(CLI::App& sub, bool many);
  void add_device_to(CLI::App& sub);
  void add_exchange_to(CLI::App& sub);
  // The levels to use, the slowest first. UsageError names a level that the machine lacks.
  std::vector<SimdLevel> levels() const;
  void check() const;
  // The GPU that --device names; empty: the CPU.
  std::optional<int> gpu() const;
  // A device for one rank.
  std::shared_ptr<const Device> make_device() const;
  // Null unless messages go from GPU to GPU. Collective.
  std::shared_ptr<GpuExchange> make_exchange(Communicator& comm) const;
};

// Presets, codec and the other options that a Reducer is made from.
struct MethodOptions {
  std::string presets = "all";
  std::string codec = "coo32+fp32";
  std::string skips = "halving";
  std::string selector;
  std::string residual;
  double density = 0.01;
  int tau = 64;
  int tau_prime = 32;
  std::string thresholds = "steered";
  std::string group = "1";
  std::string profile_file;  // preset auto; empty: measured before the first step
  std::string overrides;     // preset auto: rules, or @FILE
  std::string coarsest = "bf16";

  void add_problem_to(CLI::App& sub);  // --density and --group
  // The others. Without auto: no preset auto, and none of its options.
  void add_to(CLI::App& sub, bool with_auto = true);
  std::vector<std::string> names() const;  // checked
  int ranks_per_node() const;              // checked; as NodeOptions::group, 1: no nodes
  // For one preset of several: a residual rule that only others can use is left out. Options that the preset ignores
  // are in it; make_synchroniser() drops them.
  ReducerOptions reducer(const std::string& preset) const;
  nlohmann::json json() const;
  // UsageError now, rather than in the middle of a run, if a preset cannot work with these options on so many ranks.
  void check(const std::vector<int>& ranks) const;
};

// --coarsest, --override and --overlap: limits of the tuner's choice.
struct ChoiceFlags {
  std::string coarsest = "bf16";
  std::string overrides;
  double overlap = 1;

  void add_to(CLI::App& sub);
  ChoiceOptions options() const;  // checked
};

// --transport, and the place of this process in a job of transport tcp: flags, or the variables that `oktopk run` sets
// (docs/tcp.md). A flag wins over its variable.
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

void add_json_to(CLI::App& sub, std::string& file);  // -J, --json

// "oktopk: FORMER is now PRESENT" on stderr.
void note_former(const std::string& former, const std::string& present);

// An option under the name it had before: it still sets `value`, and a line on stderr says how it is called now.
template <class T>
void add_former(CLI::App& sub, const std::string& former, const std::string& present, T& value) {
  sub.add_option_function<T>(former,
                             [&sub, &value, former, present](const T& given) {
                               note_former(sub.get_name() + " " + former, sub.get_name() + " " + present);
                               value = given;
                             })
      ->group("");
}
// An option that is refused with an answer in words.
void add_refused(CLI::App& sub, const std::string& former, const std::string& answer);

using Action = std::function<int()>;

// Parses the command line, runs the action that it chose, and turns errors into words and exit codes: 0 fine, 1 a wrong
// result, 2 bad usage, 3 the world failed, or standard output cannot be written.
int run_app(CLI::App& app, const Action& action, int argc, const char* const* argv);

}  // namespace oktopk
