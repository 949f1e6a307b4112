// SPDX-License-Identifier: Apache-2.0
// `oktopk rendezvous`: serves the meeting place of a job of transport tcp alone, until a signal ends it. For ranks that
// are started by hand or by a scheduler on several hosts, and for elastic jobs, whose arbiter must outlive every rank
// (docs/tcp.md). Connections that it refuses and changes of members are lines on stderr.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/transports.h"
#include "tools/commands.h"
#include "tools/transport_options.h"

namespace oktopk {
namespace {

struct RendezvousOptions {
  std::string listen;
  std::string secret_file;
  std::string job;
  std::string state;
  double grace = 30;
  bool encrypt = false;
};

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  return set;
}

// Prints the refusals that were added since the last call.
class RefusalPrinter {
 public:
  explicit RefusalPrinter(const RefusalLog& log) : log_(log) {}

  void print() {
    std::uint64_t count = 0;
    std::vector<std::string> last;
    do {  // until both are of one moment
      count = log_.count();
      last = log_.last();
    } while (count != log_.count());
    const std::uint64_t fresh = count - printed_;
    const std::size_t shown = std::min<std::size_t>(fresh, last.size());
    if (fresh > shown) fmt::print(stderr, "oktopk rendezvous: refused {} connections more\n", fresh - shown);
    for (std::size_t i = last.size() - shown; i < last.size(); ++i)
      fmt::print(stderr, "oktopk rendezvous: refused {}\n", last[i]);
    printed_ = count;
  }

 private:
  const RefusalLog& log_;
  std::uint64_t printed_ = 0;
};

void check_rendezvous_options(const RendezvousOptions& o) {
  require(tcp_available(), "rendezvous: this build has no TCP; install OpenSSL 3 and build again");
  require(o.grace > 0 && o.grace <= 86400, "--grace ", o.grace, ": it must be in (0, 86400] seconds");
}

int serve_until_a_signal(const RendezvousOptions& o) {
  check_rendezvous_options(o);
  const sigset_t set = ending_signals();
  sigprocmask(SIG_BLOCK, &set, nullptr);  // before threads start: they inherit it
  const auto grace = std::chrono::duration_cast<Communicator::Duration>(std::chrono::duration<double>(o.grace));
  const RendezvousServer server(
      {.listen = o.listen,
       .secret = read_secret_file(o.secret_file),
       .job = o.job,
       .encrypt = o.encrypt,
       .grace = grace,
       .state = o.state,
       .log = [](const std::string& text) { fmt::print(stderr, "oktopk rendezvous: {}\n", text); }});
  fmt::print("oktopk rendezvous: listens at {}\n", server.address());
  std::fflush(stdout);
  RefusalPrinter printer(server.refusals());
  while (true) {
    const timespec pause{.tv_sec = 0, .tv_nsec = 250'000'000};
    const int signal = sigtimedwait(&set, nullptr, &pause);
    printer.print();
    if (signal <= 0) continue;
    fmt::print("oktopk rendezvous: ends, signal {} ({})\n", signal, strsignal(signal));
    return 0;
  }
}

}  // namespace

void add_rendezvous(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand("rendezvous", "serves the meeting place of a job over tcp alone (docs/tcp.md)");
  auto o = std::make_shared<RendezvousOptions>();
  sub->add_option("--listen", o->listen, "host:port; port 0: a free one, which is printed")->required();
  sub->add_option("--secret-file", o->secret_file, "its first line is the secret of the job")->required();
  sub->add_option("--job", o->job, "TcpOptions::job of the ranks");
  sub->add_option("--grace", o->grace, "elastic jobs: seconds to wait for members once one asks for the next epoch");
  sub->add_option("--state", o->state, "elastic jobs: a file with which a new start goes on exactly (empty: none)");
  sub->add_flag("--encrypt", o->encrypt, "the ranks encrypt, too");
  sub->footer(
      "It ends, with status 0, by SIGINT, SIGTERM or SIGHUP. Refused connections and changes of members are lines on "
      "stderr.");
  sub->callback([&action, o] { action = [o] { return serve_until_a_signal(*o); }; });
}

}  // namespace oktopk
