// SPDX-License-Identifier: Apache-2.0
#include "tools/transport_options.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "oktopk/base/error.h"

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

}  // namespace

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

}  // namespace oktopk
