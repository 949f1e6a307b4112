// SPDX-License-Identifier: Apache-2.0
// `oktopk run`: starts the ranks of a program for transport tcp on this host, with their places in the environment
// (docs/tcp.md). It serves the rendezvous, passes signals on, ends all ranks when one fails, and says which one.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/transports.h"
#include "tools/commands.h"
#include "tools/transport_options.h"

namespace oktopk {
namespace {

using RunClock = std::chrono::steady_clock;
constexpr auto kGrace = std::chrono::seconds(5);  // from SIGTERM to SIGKILL

struct RunOptions {
  int count = 0;
  int size = 0;
  int first_rank = 0;
  std::string rendezvous;
  std::string host_address = "127.0.0.1";
  std::string secret_file;
  bool encrypt = false;
  bool keep_going = false;
  int restarts = 0;
  double grace = 30;
  bool prefix = false;
  bool bind = false;
  std::vector<std::string> command;
};

struct Child {
  int rank = 0;
  pid_t pid = 0;
  bool is_running = true;
  std::thread printer;  // where output is prefixed
};

sigset_t signals_of_interest() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  return set;
}

// Copies lines to stdout with the rank in front, until the rank closes its end.
void print_prefixed(int fd, int rank) {
  static std::mutex mutex;  // lines of several ranks do not mix
  FILE* const in = fdopen(fd, "r");
  char* line = nullptr;
  std::size_t capacity = 0;
  while (getline(&line, &capacity, in) > 0) {
    const std::lock_guard lock(mutex);
    const std::string_view text(line);
    fmt::print("[{}] {}{}", rank, text, text.ends_with('\n') ? "" : "\n");
    std::fflush(stdout);
  }
  std::free(line);
  std::fclose(in);
}

// Gives a rank its share of the cores that the launcher may use. mpirun does so, too: two ranks that send to each other
// may otherwise share one core.
void bind_to_share(int place, int count) {
  cpu_set_t all, mine;
  CPU_ZERO(&mine);
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &all)) cores.push_back(core);
  const int total = static_cast<int>(cores.size());
  if (total < count) return;
  for (int i = total * place / count; i < total * (place + 1) / count; ++i)
    CPU_SET(cores[static_cast<std::size_t>(i)], &mine);
  sched_setaffinity(0, sizeof mine, &mine);
}

[[noreturn]] void become(const RunOptions& o, int rank, int output) {
  const sigset_t set = signals_of_interest();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // if the launcher is killed
  setenv("OKTOPK_RANK", std::to_string(rank).c_str(), 1);
  if (o.bind) bind_to_share(rank - o.first_rank, o.count);
  if (output >= 0) {
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
  }
  std::vector<char*> arguments;
  for (const std::string& word : o.command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  fmt::print(stderr, "oktopk run: cannot start {}: {}\n", o.command[0], std::strerror(errno));
  _exit(127);
}

Child start_rank(const RunOptions& o, int rank) {
  std::array<int, 2> ends{-1, -1};
  if (o.prefix && pipe2(ends.data(), O_CLOEXEC) != 0) fail<CommError>("run: cannot make a pipe");
  Child child{.rank = rank, .pid = fork(), .printer = {}};
  if (child.pid < 0) fail<CommError>("run: cannot start rank ", rank, ": ", std::strerror(errno));
  if (child.pid == 0) become(o, rank, ends[1]);
  if (o.prefix) {
    close(ends[1]);
    child.printer = std::thread([fd = ends[0], rank] { print_prefixed(fd, rank); });
  }
  return child;
}

// The ranks of this launcher.
class Job {
 public:
  explicit Job(const RunOptions& o) : options_(o) {}
  ~Job() {
    for (const Child& child : children_)
      if (child.is_running) kill(child.pid, SIGKILL);
    for (Child& child : children_)
      if (child.printer.joinable()) child.printer.join();
  }

  // Runs until all ranks have ended; the first bad status, or 0.
  int run() {
    for (int i = 0; i < options_.count; ++i) children_.push_back(start_rank(options_, options_.first_rank + i));
    const sigset_t set = signals_of_interest();
    while (is_running()) {
      const timespec pause{.tv_sec = 0, .tv_nsec = 100'000'000};
      const int signal = sigtimedwait(&set, nullptr, &pause);
      if (signal > 0 && signal != SIGCHLD) tell_all(signal);
      for (Child& child : children_) look_at(child);
      if (end_.has_value() && RunClock::now() > *end_) tell_all(SIGKILL);
    }
    return first_bad_;
  }

 private:
  bool is_running() const {
    for (const Child& child : children_)
      if (child.is_running) return true;
    return false;
  }

  void tell_all(int signal) {
    for (const Child& child : children_)
      if (child.is_running) kill(child.pid, signal);
  }

  // Starts the rank anew, to join a job whose ranks change. Not where another rank has ended well: the job is over.
  bool restart(Child& child, int code) {
    if (restarts_ == options_.restarts || has_ended_well_) return false;
    ++restarts_;
    fmt::print(stderr, "oktopk run: rank {} ended with status {} and is started anew\n", child.rank, code);
    if (child.printer.joinable()) child.printer.join();
    child = start_rank(options_, child.rank);
    return true;
  }

  void look_at(Child& child) {
    int status = 0;
    if (!child.is_running || waitpid(child.pid, &status, WNOHANG) != child.pid) return;
    child.is_running = false;
    const bool exited = WIFEXITED(status);
    const int code = exited ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    has_ended_well_ = has_ended_well_ || code == 0;
    if (code == 0 || end_.has_value()) return;
    if (restart(child, code)) return;
    const std::string how = exited ? fmt::format("exited with status {}", code)
                                   : fmt::format("was killed by signal {} ({})", code - 128, strsignal(code - 128));
    fmt::print(stderr, "oktopk run: rank {} {}{}\n", child.rank, how,
               options_.keep_going ? "" : "; the other ranks are ended");
    if (first_bad_ == 0) first_bad_ = code;
    if (options_.keep_going) return;
    end_ = RunClock::now() + kGrace;
    tell_all(SIGTERM);
  }

  const RunOptions& options_;
  std::vector<Child> children_;
  int first_bad_ = 0;
  int restarts_ = 0;
  bool has_ended_well_ = false;
  std::optional<RunClock::time_point> end_;  // of the grace, after a failure
};

void check_run_options(const RunOptions& o) {
  require(o.count >= 1, "-n ", o.count, ": it must be at least 1");
  require(o.first_rank >= 0 && o.first_rank + o.count <= o.size, "--first-rank ", o.first_rank, " -n ", o.count,
          " --size ", o.size, ": the ranks must be from 0 to size - 1");
  require(o.restarts >= 0, "--restart ", o.restarts, ": it must not be negative");
  require(o.restarts == 0 || o.keep_going, "--restart ", o.restarts, ": it needs --keep-going");
  require(o.grace > 0 && o.grace <= 3600, "--grace ", o.grace, ": it must be above 0 and at most 3600 seconds");
  require(o.count == o.size || (!o.rendezvous.empty() && !o.secret_file.empty()),
          "ranks on several hosts need --rendezvous and --secret-file, the same on all hosts");
}

// The rendezvous of this job: here, or null where another host has it.
std::unique_ptr<RendezvousServer> serve(RunOptions& o, const std::string& secret) {
  const bool is_given = !o.rendezvous.empty();
  if (!is_given) o.rendezvous = o.host_address + ":0";
  try {
    auto server = std::make_unique<RendezvousServer>(
        RendezvousServerOptions{.listen = o.rendezvous,
                                .secret = secret,
                                .encrypt = o.encrypt,
                                .grace = std::chrono::milliseconds(std::llround(1000 * o.grace))});
    o.rendezvous = server->address();
    return server;
  } catch (const CommError&) {
    if (!is_given) throw;
    return nullptr;
  }
}

int run_program(RunOptions o) {
  if (o.size == 0) o.size = o.count;
  check_run_options(o);
  const std::string secret = o.secret_file.empty() ? make_random_secret() : read_secret_file(o.secret_file);
  const sigset_t set = signals_of_interest();
  sigprocmask(SIG_BLOCK, &set, nullptr);  // before threads start: they inherit it
  const auto server = serve(o, secret);
  setenv("OKTOPK_RENDEZVOUS", o.rendezvous.c_str(), 1);
  setenv("OKTOPK_SIZE", std::to_string(o.size).c_str(), 1);
  setenv("OKTOPK_SECRET", secret.c_str(), 1);
  setenv("OKTOPK_ENCRYPT", o.encrypt ? "1" : "0", 1);
  const int status = Job(o).run();
  if (server != nullptr && server->refusals().count() > 0)
    fmt::print(stderr, "oktopk run: {} connections to the rendezvous were refused; the last: {}\n",
               server->refusals().count(), server->refusals().last().back());
  return status;
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand("run", "start the ranks of a program for transport tcp (docs/tcp.md)");
  auto o = std::make_shared<RunOptions>();
  sub->add_option("-n,--count", o->count, "ranks to start on this host")->required();
  sub->add_option("--size", o->size, "ranks of the job on all hosts (0: those of this host)");
  sub->add_option("--first-rank", o->first_rank, "the lowest rank of this host");
  sub->add_option("--rendezvous", o->rendezvous, "host:port where the ranks meet (empty: a free port of this host)");
  sub->add_option("--host-address", o->host_address, "address of this host for that free port");
  sub->add_option("--secret-file", o->secret_file, "its first line is the secret of the job (empty: a random one)");
  sub->add_flag("--encrypt", o->encrypt, "encrypt the messages");
  sub->add_flag("--keep-going", o->keep_going, "do not end the other ranks when one fails");
  sub->add_option("--restart", o->restarts, "with --keep-going: start ranks that fail anew, so many times in all");
  sub->add_option("--grace", o->grace, "train --elastic: seconds until members that do not answer are lost");
  sub->add_flag("--bind", o->bind, "give each rank its share of this host's cores, if there are enough");
  sub->add_flag("--prefix", o->prefix, "write [RANK] before each line of output");
  sub->add_option("command", o->command, "after --: the program and its arguments")->required();
  sub->callback([&action, o] { action = [o] { return run_program(*o); }; });
}

}  // namespace oktopk
