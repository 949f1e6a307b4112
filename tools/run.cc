// SPDX-License-Identifier: Apache-2.0
// `oktopk run`: starts the ranks of a program for transport tcp on this host, with their places in the environment
// (docs/tcp.md). It serves the rendezvous, passes signals on, ends all ranks when one fails, and says which one. A rank
// leads a process group: signals reach its children, too. No process outlives the launcher unless the launcher is
// killed. With --serve-only it serves the rendezvous alone, until a signal ends it: for ranks that are started by hand
// or by a scheduler on several hosts, and for elastic jobs, whose arbiter must outlive every rank. Connections that it
// refuses and changes of members are lines on stderr.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/transports.h"
#include "tools/commands.h"

namespace oktopk {
namespace {

using RunClock = std::chrono::steady_clock;

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
  std::string state;
  double grace = 30;
  double kill_after = 30;
  bool join = false;
  bool prefix = false;
  bool bind = false;
  bool serve_only = false;
  std::string job;  // of the ranks that --serve-only serves
  std::vector<std::string> command;
};

// Signals that ask for the end, those of job control, and SIGCHLD.
sigset_t signals_of_interest() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT}) sigaddset(&set, signal);
  return set;
}

// Copies the lines of a rank to stdout, with its number in front, on a thread of its own.
class Printer {
 public:
  Printer(int fd, int rank) : fd_(fd), stop_(eventfd(0, EFD_CLOEXEC)), rank_(rank) {
    fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
    thread_ = std::thread([this] { run(); });
  }
  // Prints what is there, and does not wait for a process that holds the other end.
  ~Printer() {
    eventfd_write(stop_, 1);
    thread_.join();
    close(fd_);
    close(stop_);
  }
  Printer(const Printer&) = delete;
  Printer& operator=(const Printer&) = delete;

 private:
  static constexpr std::size_t kMostAtTheEnd = std::size_t{1} << 20;

  void run() {
    std::array<char, 4096> piece{};
    std::array<pollfd, 2> entries{{{fd_, POLLIN, 0}, {stop_, POLLIN, 0}}};
    std::size_t at_the_end = 0;
    while (at_the_end < kMostAtTheEnd) {
      ::poll(entries.data(), entries.size(), -1);
      const bool is_ending = entries[1].revents != 0;
      const auto count = ::read(fd_, piece.data(), piece.size());
      if (count > 0) take({piece.data(), static_cast<std::size_t>(count)});
      if (count > 0 && is_ending) at_the_end += static_cast<std::size_t>(count);
      if (count == 0 || (count < 0 && is_ending)) break;
    }
    if (!line_.empty()) print_line();
  }

  void take(std::string_view text) {
    for (const char byte : text) {
      if (byte == '\n')
        print_line();
      else
        line_ += byte;
    }
  }

  void print_line() {
    static std::mutex mutex;  // lines of several ranks do not mix
    const std::lock_guard lock(mutex);
    fmt::print("[{}] {}\n", rank_, line_);
    std::fflush(stdout);
    line_.clear();
  }

  const int fd_, stop_, rank_;
  std::string line_;
  std::thread thread_;
};

// A rank, which leads a process group. It is reaped late, so that its number stands for this group alone.
struct Child {
  int rank = 0;
  pid_t pid = 0;
  bool is_running = true;
  std::unique_ptr<Printer> printer;  // where output is prefixed
};

struct Process {
  pid_t pid = 0;
  char state = 0;  // as /proc tells it
};

// The processes whose parent this one is.
std::vector<Process> own_children() {
  std::vector<Process> found;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", code)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::string line;
    std::getline(std::ifstream(entry.path() / "stat"), line);
    const std::size_t end = line.rfind(')');  // of the name, which may have any character
    if (end == std::string::npos) continue;
    std::istringstream in(line.substr(end + 1));
    Process process{.pid = std::stoi(name)};
    pid_t parent = 0;
    in >> process.state >> parent;
    if (parent == getpid()) found.push_back(process);
  }
  return found;
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

// A background process that reads from the terminal is stopped: it finds nothing to read instead.
void leave_terminal() {
  std::signal(SIGTTOU, SIG_IGN);  // its output may go there
  if (isatty(STDIN_FILENO) == 0) return;
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing >= 0) dup2(nothing, STDIN_FILENO);
}

[[noreturn]] void become(const RunOptions& o, int rank, int output) {
  setpgid(0, 0);
  leave_terminal();
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
  if (o.prefix && pipe2(ends.data(), O_CLOEXEC) != 0)
    fail<CommError>("run: cannot make a pipe for rank ", rank, ": ", std::strerror(errno));
  Child child{.rank = rank, .pid = fork(), .printer = {}};
  if (child.pid < 0) fail<CommError>("run: cannot start rank ", rank, ": ", std::strerror(errno));
  if (child.pid == 0) become(o, rank, ends[1]);
  setpgid(child.pid, child.pid);  // whichever of both comes first
  if (o.prefix) {
    close(ends[1]);
    child.printer = std::make_unique<Printer>(ends[0], rank);
  }
  return child;
}

// The ranks of this launcher, and all processes that they start: what a rank leaves behind becomes a child of the
// launcher (a subreaper), and is ended after the ranks.
class Job {
 public:
  explicit Job(const RunOptions& o) : options_(o) { prctl(PR_SET_CHILD_SUBREAPER, 1); }
  ~Job() {
    if (is_running()) tell_all(SIGKILL);
    end_leftovers();
    for (const Child& child : children_) waitpid(child.pid, nullptr, WNOHANG);
  }

  // Runs until all ranks have ended; the first bad status, or 0.
  int run() {
    for (int i = 0; i < options_.count; ++i) children_.push_back(start_rank(options_, options_.first_rank + i));
    const sigset_t set = signals_of_interest();
    while (is_running()) {
      const timespec pause{.tv_sec = 0, .tv_nsec = 100'000'000};
      const int signal = sigtimedwait(&set, nullptr, &pause);
      if (signal > 0) obey(signal);
      for (Child& child : children_) look_at(child);
      if (deadline_.has_value() && RunClock::now() > *deadline_) kill_the_late();
    }
    return first_bad_;
  }

 private:
  bool is_running() const { return std::ranges::any_of(children_, &Child::is_running); }

  // To the groups of all ranks, those that have ended included.
  void tell_all(int signal) const {
    for (const Child& child : children_) kill(-child.pid, signal);
  }

  void obey(int signal) {
    if (signal == SIGCHLD) return reap_strangers();
    tell_all(signal);
    if (signal == SIGTSTP) raise(SIGSTOP);  // the terminal's Ctrl-Z, which reached the launcher alone
    if (signal != SIGTSTP && signal != SIGCONT) end_soon();
  }

  void end_soon() {
    if (!deadline_.has_value()) deadline_ = RunClock::now() + seconds_of(options_.kill_after);
  }

  // The grace is over: SIGKILL, and soon after no more waiting.
  void kill_the_late() {
    for (Child& child : children_) {
      if (!child.is_running) continue;
      fmt::print(
          stderr, "oktopk run: rank {} {}\n", child.rank,
          is_killing_ ? "cannot be ended" : fmt::format("did not end within {} s and is killed", options_.kill_after));
      if (is_killing_) child.is_running = false;
    }
    tell_all(SIGKILL);
    if (first_bad_ == 0) first_bad_ = 128 + SIGKILL;
    is_killing_ = true;
    deadline_ = RunClock::now() + kUnkillable;
  }

  static RunClock::duration seconds_of(double seconds) {
    return std::chrono::milliseconds(std::llround(1000 * seconds));
  }

  bool is_rank(pid_t pid) const {
    return std::ranges::any_of(children_, [pid](const Child& child) { return child.pid == pid; });
  }

  // Processes that ranks left behind, and that have ended.
  void reap_strangers() const {
    for (const Process& process : own_children())
      if (process.state == 'Z' && !is_rank(process.pid)) waitpid(process.pid, nullptr, WNOHANG);
  }

  // Ends what the ranks left behind: SIGTERM to what does not go by itself, then SIGKILL; at most kill_after + 3 s.
  void end_leftovers() const {
    const auto begin = RunClock::now();
    const auto kill_time = std::max(begin + kLeave, deadline_.value_or(begin + seconds_of(options_.kill_after)));
    std::vector<pid_t> told;
    while (true) {
      std::vector<Process> left = own_children();
      std::erase_if(left, [](const Process& process) { return process.state == 'Z'; });
      if (left.empty() || RunClock::now() > kill_time + kUnkillable) {
        report(told.size(), left.size());
        return;
      }
      const bool is_late = RunClock::now() > kill_time;
      for (const Process& process : left) {
        if (RunClock::now() < begin + kLeave) continue;
        const bool is_new = std::ranges::find(told, process.pid) == told.end();
        if (is_new) told.push_back(process.pid);
        if (is_new || is_late) kill(process.pid, is_late ? SIGKILL : SIGTERM);
      }
      std::this_thread::sleep_for(kLook);
    }
  }

  static void report(std::size_t ended, std::size_t left) {
    if (ended > left)
      fmt::print(stderr, "oktopk run: ended {} processes that the ranks had left behind\n", ended - left);
    if (left > 0) fmt::print(stderr, "oktopk run: {} processes cannot be ended\n", left);
  }

  // Starts the rank anew, to join a job whose ranks change. Not where another rank has ended well: the job is over.
  bool restart(Child& child, int code) {
    if (restarts_ == options_.restarts || has_ended_well_) return false;
    ++restarts_;
    fmt::print(stderr, "oktopk run: rank {} ended with status {} and is started anew\n", child.rank, code);
    kill(-child.pid, SIGKILL);  // its children
    waitpid(child.pid, nullptr, 0);
    child.printer.reset();
    child = start_rank(options_, child.rank);
    return true;
  }

  void look_at(Child& child) {
    siginfo_t info{};
    if (!child.is_running || waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid != child.pid)
      return;
    child.is_running = false;
    const bool exited = info.si_code == CLD_EXITED;
    const int code = exited ? info.si_status : 128 + info.si_status;
    has_ended_well_ = has_ended_well_ || code == 0;
    if (code == 0) return;
    const bool is_ending = deadline_.has_value();
    if (!is_ending && restart(child, code)) return;
    if (first_bad_ == 0) first_bad_ = code;
    if (is_ending) return;
    const std::string how = exited ? fmt::format("exited with status {}", code)
                                   : fmt::format("was killed by signal {} ({})", code - 128, strsignal(code - 128));
    fmt::print(stderr, "oktopk run: rank {} {}{}\n", child.rank, how,
               options_.keep_going ? "" : "; the other ranks are ended");
    if (options_.keep_going) return;
    end_soon();
    tell_all(SIGTERM);
  }

  static constexpr auto kLeave = std::chrono::milliseconds(500);  // helpers of a rank see its end by themselves
  static constexpr auto kUnkillable = std::chrono::milliseconds(2500);
  static constexpr auto kLook = std::chrono::milliseconds(20);

  const RunOptions& options_;
  std::vector<Child> children_;
  int first_bad_ = 0;
  int restarts_ = 0;
  bool has_ended_well_ = false;
  bool is_killing_ = false;
  std::optional<RunClock::time_point> deadline_;  // after a failure or a signal
};

void check_grace(double grace) {
  require(grace > 0 && grace <= 86400, "--grace ", grace, ": it must be above 0 and at most 86400 seconds");
}

void check_run_options(const RunOptions& o) {
  require(!o.command.empty(), "run: no program to start; give it after -n RANKS --");
  require(o.count >= 1, "-n ", o.count, ": it must be at least 1");
  require(o.first_rank >= 0 && o.first_rank + o.count <= o.size, "--first-rank ", o.first_rank, " -n ", o.count,
          " --size ", o.size, ": the ranks must be from 0 to size - 1");
  require(o.job.empty(), "--job ", o.job, ": with --serve-only only");
  require(o.restarts >= 0, "--restart ", o.restarts, ": it must not be negative");
  require(o.restarts == 0 || o.keep_going, "--restart ", o.restarts, ": it needs --keep-going");
  check_grace(o.grace);
  require(o.kill_after > 0 && o.kill_after <= 86400, "--kill-after ", o.kill_after,
          ": it must be above 0 and at most 86400 seconds");
  require(!o.join || !o.rendezvous.empty(), "--join: it needs --rendezvous, where one is served already");
  require(o.count == o.size || (!o.rendezvous.empty() && !o.secret_file.empty()),
          "ranks on several hosts need --rendezvous and --secret-file, the same on all hosts");
}

RendezvousServerOptions server_options(const RunOptions& o, const std::string& secret) {
  return {.listen = o.rendezvous,
          .secret = secret,
          .job = o.job,
          .encrypt = o.encrypt,
          .grace = std::chrono::milliseconds(std::llround(1000 * o.grace)),
          .state = o.state,
          .log = [](const std::string& text) { fmt::print(stderr, "oktopk run: {}\n", text); }};
}

// The rendezvous of this job: here, or null where another process has it.
std::unique_ptr<RendezvousServer> serve(RunOptions& o, const std::string& secret) {
  if (o.join) return nullptr;
  const bool is_given = !o.rendezvous.empty();
  if (!is_given) o.rendezvous = o.host_address + ":0";
  try {
    auto server = std::make_unique<RendezvousServer>(server_options(o, secret));
    o.rendezvous = server->address();
    return server;
  } catch (const AddressError& error) {
    if (!is_given) throw;
    // The launcher of rank 0 serves where the address is of its host; the others expect to find it.
    if (error.is_taken && o.first_rank == 0)
      fail<CommError>("run: --rendezvous ", o.rendezvous, " is taken, perhaps by another start of this job. If the ",
                      "ranks shall meet at a rendezvous that is served there already, give --join");
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
    if (fresh > shown) fmt::print(stderr, "oktopk run: refused {} connections more\n", fresh - shown);
    for (std::size_t i = last.size() - shown; i < last.size(); ++i)
      fmt::print(stderr, "oktopk run: refused {}\n", last[i]);
    printed_ = count;
  }

 private:
  const RefusalLog& log_;
  std::uint64_t printed_ = 0;
};

int serve_until_a_signal(const RunOptions& o) {
  require(tcp_available(), "run --serve-only: this build has no TCP; install OpenSSL 3 and build again");
  require(o.command.empty() && o.count == 0, "--serve-only: it starts no ranks; leave out -n and the program");
  require(!o.rendezvous.empty() && !o.secret_file.empty(), "--serve-only: it needs --rendezvous and --secret-file");
  check_grace(o.grace);
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);  // before threads start: they inherit it
  const RendezvousServer server(server_options(o, read_secret_file(o.secret_file)));
  fmt::print("oktopk run: listens at {}\n", server.address());
  std::fflush(stdout);
  RefusalPrinter printer(server.refusals());
  while (true) {
    const timespec pause{.tv_sec = 0, .tv_nsec = 250'000'000};
    const int signal = sigtimedwait(&set, nullptr, &pause);
    printer.print();
    if (signal <= 0) continue;
    fmt::print("oktopk run: ends, signal {} ({})\n", signal, strsignal(signal));
    return 0;
  }
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand("run", "starts the ranks of a program for transport tcp (docs/tcp.md)");
  sub->group("Launch");
  auto o = std::make_shared<RunOptions>();
  sub->add_option("-n,--count", o->count, "ranks to start on this host");
  sub->add_option("--size", o->size, "ranks of the job on all hosts (0: those of this host)");
  sub->add_option("--first-rank", o->first_rank, "the lowest rank of this host");
  sub->add_option("--rendezvous", o->rendezvous, "host:port where the ranks meet (empty: a free port of this host)");
  add_former(*sub, "--listen", "--rendezvous", o->rendezvous);
  sub->add_option("--host-address", o->host_address, "address of this host for that free port");
  sub->add_flag("--keep-going", o->keep_going, "do not end the other ranks when one fails");
  sub->add_option("--restart", o->restarts, "with --keep-going: start ranks that fail anew, so many times in all");
  sub->add_option("--kill-after", o->kill_after,
                  "seconds from the signal that ends the ranks to SIGKILL, for them and what they left behind");
  sub->add_flag("--join", o->join, "a rendezvous is served at --rendezvous already: do not serve one");
  sub->add_flag("--bind", o->bind, "give each rank its share of this host's cores, if there are enough");
  sub->add_flag("--prefix", o->prefix, "write [RANK] before each line of output");
  sub->add_option("command", o->command, "after --: the program and its arguments");
  sub->add_flag("--serve-only", o->serve_only, "serve the rendezvous alone, until SIGINT, SIGTERM or SIGHUP ends it");
  sub->add_option("--secret-file", o->secret_file, "its first line is the secret of the job (empty: a random one)");
  sub->add_flag("--encrypt", o->encrypt, "encrypt the messages");
  sub->add_option("--grace", o->grace, "elastic jobs: seconds until members that do not answer are lost");
  sub->add_option("--state", o->state, "elastic jobs: a file with which a new start of the rendezvous goes on");
  sub->add_option("--job", o->job, "--serve-only: TcpOptions::job of the ranks");
  sub->footer(
      "Examples:\n"
      "  oktopk run -n 4 -- python train.py\n"
      "  oktopk run --keep-going -n 4 -- oktopk train --elastic\n"
      "  oktopk run --serve-only --rendezvous host0:29400 --secret-file secret");
  sub->callback([&action, o] { action = [o] { return o->serve_only ? serve_until_a_signal(*o) : run_program(*o); }; });
}

}  // namespace oktopk
