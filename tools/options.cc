// SPDX-License-Identifier: Apache-2.0
#include "tools/options.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "oktopk/comm/gpu_exchange.h"
#include "oktopk/reduce/reducer_options.h"
#include "tools/text.h"

namespace oktopk {
namespace {

// A setting of transport tcp: its flag, or else its variable.
struct Setting {
  const char* flag;
  const char* variable;
  const std::string& given;

  bool is_given() const { return !given.empty(); }
  std::string name() const { return is_given() ? flag : variable; }
  // Empty when it is absent.
  std::string value() const {
    if (is_given()) return given;
    const char* const found = std::getenv(variable);
    return found == nullptr ? "" : found;
  }
  std::string needed() const {
    std::string text = value();
    require(!text.empty(), "transport tcp: ", variable, " is not set; start the ranks with: oktopk run -n RANKS -- ",
            "COMMAND, or give ", flag);
    return text;
  }
  int number() const {
    const std::string text = needed();
    int number = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    require(error == std::errc() && end == text.data() + text.size(), "transport tcp: ", name(), " = \"", text,
            "\", must be a number");
    return number;
  }
};

Overrides parse_overrides(const std::string& text) {
  return text.starts_with('@') ? read_overrides(text.substr(1)) : Overrides::parse(text);
}

// Output must reach its end: a full disk or a closed pipe is no success.
int checked(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  fmt::print(stderr, "oktopk: cannot write to standard output: {}\n", std::strerror(errno));
  return status == 0 ? 3 : status;
}

}  // namespace

void SizeOptions::add_to(CLI::App& sub) {
  sub.add_option("-b,--begin", begin, "smallest n in elements (K, M, G)");
  sub.add_option("-e,--end", end, "largest n (default: the smallest)");
  sub.add_option("-f,--factor", factor, "from one n to the next");
}

std::vector<Index> SizeOptions::sizes() const {
  const std::uint64_t first = parse_count(begin, "-b");
  const std::uint64_t last = end.empty() ? first : parse_count(end, "-e");
  const std::uint64_t times = parse_count(factor, "-f");
  require(first >= 1 && first <= last, "-b ", begin, " -e ", end.empty() ? begin : end,
          ": sizes must satisfy 1 <= b <= e");
  require(last < (std::uint64_t{1} << 32), "n = ", last, ", but n must be below 2^32");
  require(times >= 2, "-f ", factor, ": the factor must be at least 2");
  std::vector<Index> out;
  for (std::uint64_t n = first; n <= last; n *= times) out.push_back(static_cast<Index>(n));
  return out;
}

void ComputeOptions::add_to(CLI::App& sub, bool many) {
  sub.add_option("--simd", simd,
                 many ? "vector instructions: scalar, avx2, avx512, best, or all that there are"
                      : "vector instructions: scalar, avx2, avx512 or best");
  sub.add_option("--threads", threads, "threads of each rank that share a pass over n elements");
}

void ComputeOptions::add_device_to(CLI::App& sub) {
  sub.add_option("--device", device, "where gradient, residual and owner memory live: cpu, cuda or cuda:ORDINAL");
}

void ComputeOptions::add_exchange_to(CLI::App& sub) {
  sub.add_option("--exchange", exchange,
                 "how the messages of preset slots travel on cuda: comm (by --transport) or nccl (from GPU to GPU)");
}

std::shared_ptr<GpuExchange> ComputeOptions::make_exchange(Communicator& comm) const {
  require(exchange == "comm" || exchange == "nccl", "--exchange ", exchange, ": it must be comm or nccl");
  if (exchange == "comm") return nullptr;
  const std::optional<int> ordinal = gpu();
  require(ordinal.has_value(), "--exchange nccl moves memory of GPUs: it needs --device cuda");
  return make_nccl_exchange(comm, {.ordinal = *ordinal});
}

std::optional<int> ComputeOptions::gpu() const {
  if (device == "cpu") return {};
  const bool is_cuda = device == "cuda" || device.starts_with("cuda:");
  require(is_cuda, "--device ", device, ": it must be cpu, cuda or cuda:ORDINAL");
  return device == "cuda" ? 0 : static_cast<int>(parse_count(device.substr(5), "--device"));
}

std::shared_ptr<const Device> ComputeOptions::make_device() const {
  const CpuOptions cpu{.threads = threads};
  const std::optional<int> ordinal = gpu();
  if (!ordinal) return make_cpu_device(cpu);
  return make_cuda_device({.ordinal = *ordinal, .cpu = cpu});
}

std::vector<SimdLevel> ComputeOptions::levels() const {
  const auto available = simd_levels();
  if (simd == "all") return {available.begin(), available.end()};
  if (simd == "best") return {available.back()};
  const SimdLevel level = find_simd_level(simd);
  require(level <= available.back(), "--simd ", simd, ": this machine goes up to ", to_string(available.back()));
  return {level};
}

void ComputeOptions::check() const {
  levels();
  gpu();
  require(threads >= 1 && threads <= 1024, "--threads ", threads, ": it must be in 1..1024");
}

void MethodOptions::add_problem_to(CLI::App& sub) {
  sub.add_option("--density", density, "k / n, in (0, 1]");
  sub.add_option("--group", group, "G ranks, or those of a host, sum densely first and act as one: a number or host");
}

void MethodOptions::add_to(CLI::App& sub, bool with_auto) {
  sub.add_option("--preset", presets,
                 with_auto ? "one preset, several with commas, all (oktopk list), or auto"
                           : "one preset, several with commas, or all (oktopk list)");
  sub.add_option("--codec", codec, "index+value coding of all frames; of dense, the values'");
  sub.add_option("--skips", skips, "circulant's schedule: direct, halving, grid, radix:R or a list");
  sub.add_option("--selector", selector, "another selector than the preset's own");
  sub.add_option("--residual", residual, "another residual rule than the preset's own, where it can");
  sub.add_option("--tau", tau, "oktopk: steps between repartitions");
  sub.add_option("--thresholds", thresholds,
                 "oktopk: paper (tau' only), published (the released code's drift control) or steered");
  sub.add_option("--tau-prime", tau_prime, "oktopk: steps between exact thresholds");
  if (!with_auto) return;
  sub.add_option("--profile", profile_file, "auto: decide by this profile (oktopk tune -o), not by a measurement");
  sub.add_option("--override", overrides, "auto: rules, or @FILE: docs/tuning.md");
  sub.add_option("--coarsest", coarsest, "auto: value coding that the wire may carry");
}

std::vector<std::string> MethodOptions::names() const {
  std::vector<std::string> known;
  for (const Preset& p : oktopk::presets()) known.emplace_back(p.name);
  std::vector<std::string> chosen = split_names(presets, known);
  for (const std::string& name : chosen)
    if (name != "auto") find_preset(name);
  return chosen;
}

int MethodOptions::ranks_per_node() const {
  if (group == "host") return 0;
  const std::uint64_t ranks = parse_count(group, "--group");
  require(ranks >= 1 && ranks <= (1U << 20U), "--group ", group, ": it must be host or a number of ranks, at least 1");
  return static_cast<int>(ranks);
}

ReducerOptions MethodOptions::reducer(const std::string& preset) const {
  ReducerOptions options;
  options.preset = preset;
  options.density = density;
  options.selector = selector;
  options.allreduce.codec = parse_codec(codec);
  options.allreduce.skips = skips;
  options.allreduce.tau = tau;
  options.allreduce.tau_prime = tau_prime;
  options.allreduce.thresholds = find_threshold_rule(thresholds);
  if (!profile_file.empty()) options.profile = read_profile(profile_file);
  options.choice.overrides = parse_overrides(overrides);
  options.choice.coarsest = find_value_coding(coarsest);
  if (!residual.empty()) {
    const ResidualKind kind = find_residual(residual);
    const bool fits = preset == "auto" || find_preset(preset).takes(kind);
    require(fits || names().size() > 1, "preset ", preset, " cannot work with residual rule ", residual);
    if (fits) options.allreduce.residual = kind;
  }
  return options;
}

void MethodOptions::check(const std::vector<int>& ranks) const {
  require(density > 0 && density <= 1, "--density ", density, ": it must be in (0, 1]");
  const int per_node = ranks_per_node();
  for (const std::string& name : names()) {
    const ReducerOptions options = reducer(name);
    if (name == "auto") continue;
    const auto allreduce = make_allreduce(find_preset(name), options.allreduce);
    for (const int all : ranks) {
      if (per_node == 0) continue;  // the number of hosts is not known yet
      const int P = (all + per_node - 1) / per_node;
      allreduce->check_ranks(P);
      make_selector(selector_of(options, find_preset(name), options.allreduce), selector_options(options.allreduce, P));
    }
  }
}

nlohmann::json MethodOptions::json() const {
  return {{"density", density},     {"codec", codec},           {"skips", skips},
          {"selector", selector},   {"residual", residual},     {"tau", tau},
          {"tau_prime", tau_prime}, {"thresholds", thresholds}, {"group", group}};
}

void ChoiceFlags::add_to(CLI::App& sub) {
  sub.add_option("--coarsest", coarsest, "the coarsest values on the wire: fp32, bf16, log8, log4");
  sub.add_option("--override", overrides,
                 "rules that come before the model, such as \"dense:n<64K; circulant:P>=16\", or @FILE "
                 "(docs/tuning.md)");
  sub.add_option("--overlap", overlap, "g: m ranks' selections overlap like those of m^g random ones; 0: identical");
}

ChoiceOptions ChoiceFlags::options() const {
  return {.coarsest = find_value_coding(coarsest), .overrides = parse_overrides(overrides)};
}

void TransportOptions::add_transport_to(CLI::App& sub) {
  sub.add_option("--transport", transport, "threads, mpi or tcp");
  const std::string group = sub.option_defaults()->get_group();
  sub.option_defaults()->group("Ranks over tcp, started by hand (docs/tcp.md)");
  sub.add_option("--rank", rank, "number of this process (default: OKTOPK_RANK)");
  sub.add_option("--world-size", world_size, "number of processes (default: OKTOPK_SIZE)");
  sub.add_option("--rendezvous", rendezvous,
                 "host:port or file:DIRECTORY where they meet (default: OKTOPK_RENDEZVOUS)");
  sub.add_option("--secret-file", secret_file, "its first line is the secret of the job (default: OKTOPK_SECRET)");
  sub.add_option("--interface", interface, "address or interface to listen at (default: OKTOPK_INTERFACE)");
  sub.add_flag("--encrypt", encrypt, "encrypt the messages (default: OKTOPK_ENCRYPT)");
  sub.option_defaults()->group(group);
}

void TransportOptions::check_transport() const {
  require(transport == "threads" || transport == "mpi" || transport == "tcp", "unknown transport '", transport,
          "'; there are: threads, mpi, tcp");
  if (transport == "tcp") return;
  const std::array<std::pair<const char*, bool>, 6> given{{{"--rank", !rank.empty()},
                                                           {"--world-size", !world_size.empty()},
                                                           {"--rendezvous", !rendezvous.empty()},
                                                           {"--secret-file", !secret_file.empty()},
                                                           {"--interface", !interface.empty()},
                                                           {"--encrypt", encrypt}}};
  for (const auto& [flag, is_given] : given)
    require(!is_given, flag, ": for --transport tcp only, this is ", transport);
}

TcpOptions TransportOptions::tcp() const {
  require(tcp_available(), "transport tcp: this build has no TCP; install OpenSSL 3 and build again");
  TcpOptions options{.rank = Setting{"--rank", "OKTOPK_RANK", rank}.number(),
                     .size = Setting{"--world-size", "OKTOPK_SIZE", world_size}.number()};
  options.rendezvous = Setting{"--rendezvous", "OKTOPK_RENDEZVOUS", rendezvous}.needed();
  const Setting secret{"--secret-file", "OKTOPK_SECRET", secret_file};
  options.secret = secret.is_given() ? read_secret_file(secret_file) : secret.needed();
  const std::string none;
  options.encrypt = encrypt || Setting{"--encrypt", "OKTOPK_ENCRYPT", none}.value() == "1";
  options.interface = Setting{"--interface", "OKTOPK_INTERFACE", interface}.value();
  return options;
}

void add_json_to(CLI::App& sub, std::string& file) {
  sub.add_option("-J,--json", file, "also write the results to this file");
}

void note_former(const std::string& former, const std::string& present) {
  fmt::print(stderr, "oktopk: '{}' is now '{}'; the old name will go\n", former, present);
}

void add_refused(CLI::App& sub, const std::string& former, const std::string& answer) {
  const auto refuse = [&sub, former, answer](const std::string& /*value*/) {
    fail<UsageError>(sub.get_name(), " ", former, ": ", answer);
  };
  sub.add_option_function<std::string>(former, refuse)->expected(0, 1)->group("");
}

int run_app(CLI::App& app, const Action& action, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return checked(action());
  } catch (const CLI::ParseError& error) {
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty()) {
      fmt::print(stderr, "oktopk: unknown subcommand '{}'; --help lists them\n", argv[1]);
      return 2;
    }
    return app.exit(error) == 0 ? checked(0) : 2;
  } catch (const UsageError& error) {
    fmt::print(stderr, "oktopk: {}\n", error.what());
    return 2;
  } catch (const CommError& error) {
    fmt::print(stderr, "oktopk: communication failed: {}\n", error.what());
  } catch (const std::exception& error) {
    fmt::print(stderr, "oktopk: {}\n", error.what());
  }
  return 3;
}

}  // namespace oktopk
