// SPDX-License-Identifier: Apache-2.0
#include "lab/simulate/smpirun.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

namespace fs = std::filesystem;

// Without these, SMPI multiplies bandwidths and latencies by factors of a Gigabit Ethernet, lets acknowledgements take
// bandwidth, limits bandwidth by latency, and times the ranks' code.
constexpr std::array kFlags = {
    "--cfg=smpi/privatization:no",   "--cfg=smpi/simulate-computation:no",
    "--cfg=smpi/host-speed:1Gf",     "--cfg=smpi/wtime:0",
    "--cfg=smpi/bw-factor:0:1.0",    "--cfg=smpi/lat-factor:0:1.0",
    "--cfg=network/crosstraffic:0",  "--cfg=network/TCP-gamma:1e12",
    "--cfg=smpi/coll-selector:ompi", "--cfg=smpi/test:1e-6",
    "--cfg=smpi/iprobe:1e-6",        "--cfg=smpi/grow-injected-times:no",
    "--log=root.thres:warning",
};

// Ends of messages that are closer than this share of a long latency count as one event: at each event the simulator
// shares the links anew among all messages in flight, which over a long latency are all P^2 of a step.
constexpr double kLongLatency = 1e-3, kSameInstant = 1e-4;

constexpr int kDetachedBytes = 65536;  // a send of fewer bytes does not wait for its receiver: SMPI's default

// A fresh directory in TMPDIR, removed with the last copy of the pointer.
std::shared_ptr<const fs::path> make_directory() {
  std::string name = (fs::temp_directory_path() / "oktopk-simulate-XXXXXX").string();
  require(mkdtemp(name.data()) != nullptr, "cannot make a directory ", name, ": ", std::strerror(errno));
  return {new fs::path(name), [](const fs::path* path) {
            std::error_code ignored;
            fs::remove_all(*path, ignored);
            delete path;
          }};
}

void write_text(const fs::path& file, const std::string& text) {
  std::ofstream out(file);
  out << text;
  out.close();
  require(out.good(), "cannot write ", file.string());
}

std::string read_text(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// In the child: never returns. smpirun does not quote names of files, so it gets relative ones, also in TMPDIR. Huge
// pages would be committed for buffers of a thousand ranks that are hardly filled.
[[noreturn]] void become(const fs::path& directory, std::span<char* const> argv) {
  const bool is_ready = chdir(directory.c_str()) == 0 && setenv("TMPDIR", ".", 1) == 0 &&
                        prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0 && prctl(PR_SET_PDEATHSIG, SIGTERM) == 0 &&
                        freopen("log", "a", stdout) != nullptr && dup2(STDOUT_FILENO, STDERR_FILENO) >= 0;
  if (is_ready) execv(argv.front(), argv.data());
  _exit(127);
}

// Runs the command in `directory`, prints to the file log there, and returns the exit code. A signal that asks this
// program to end ends the command instead, so that the caller can clean up.
int run_in(const fs::path& directory, std::vector<std::string> command) {
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::fflush(stdout);
  sigset_t ours, before;
  sigemptyset(&ours);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&ours, number);
  sigprocmask(SIG_BLOCK, &ours, &before);
  const pid_t child = fork();
  if (child == 0) {
    sigprocmask(SIG_SETMASK, &before, nullptr);
    become(directory, argv);
  }
  int asked = 0;
  int status = 0;
  while (child > 0 && waitpid(child, &status, WNOHANG) == 0) {
    const int number = sigwaitinfo(&ours, nullptr);
    if (number == SIGCHLD || number < 0) continue;
    asked = number;
    kill(child, SIGTERM);
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  require(child > 0, "cannot start ", command.front());
  if (asked != 0) fail<CommError>("the simulation was ended by signal ", asked);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string find_in_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path file = fs::path(folder) / name;
    if (access(file.c_str(), X_OK) == 0) return file.string();
  }
  return {};
}

}  // namespace

SimulatorPrograms find_simulator() {
  std::error_code ignored;
  const fs::path self = fs::read_symlink("/proc/self/exe", ignored);
  SimulatorPrograms found{.smpirun = find_in_path("smpirun"),
                          .simulated = (self.parent_path() / "oktopk-simulated").string()};
  require(!found.smpirun.empty(),
          "simulate: SimGrid's smpirun is not in the PATH; install SimGrid (Debian and Ubuntu: "
          "libsimgrid-dev) and build again");
  require(fs::exists(found.simulated), "simulate: there is no ", found.simulated,
          "; install SimGrid (Debian and Ubuntu: libsimgrid-dev) and build again");
  return found;
}

bool reports_failure(const std::string& log) {
  for (const char* sign : {"CRITICAL", "MPI_Abort was called", "Deadlock"})
    if (log.find(sign) != std::string::npos) return true;
  return false;
}

SimulatedRun run_simulator(const SimulatorPrograms& programs, const Platform& platform, const SlowLink& slow_link,
                           const SimulationSpec& spec) {
  const auto directory = make_directory();
  write_text(*directory / "platform.xml", platform_xml(platform.with_slower_links(spec.scale), spec.P, slow_link));
  std::string hosts;
  for (int r = 0; r < spec.P; ++r) hosts += fmt::format("rank-{}\n", r);
  write_text(*directory / "hosts", hosts);
  write_text(*directory / "spec.json", nlohmann::json(spec).dump());
  std::vector<std::string> command = {programs.smpirun, "-np",  std::to_string(spec.P), "-platform", "platform.xml",
                                      "-hostfile",      "hosts"};
  command.insert(command.end(), kFlags.begin(), kFlags.end());
  command.push_back(fmt::format("--cfg=smpi/ois:0:{}:0", platform.overhead));
  command.push_back(fmt::format("--cfg=smpi/send-is-detached-thresh:{}", kDetachedBytes / spec.scale));
  if (platform.latency >= kLongLatency)
    command.push_back(fmt::format("--cfg=surf/precision:{}", kSameInstant * platform.latency));
  command.insert(command.end(), {programs.simulated, "spec.json", "row.json"});
  const int code = run_in(*directory, std::move(command));
  SimulatedRun run{.log = read_text(*directory / "log")};
  const auto row = nlohmann::json::parse(read_text(*directory / "row.json"), nullptr, false);
  run.failed = code != 0 || reports_failure(run.log) || row.is_discarded();
  if (!run.failed) run.row = row.get<SimulatedRow>();
  if (run.failed) run.log += fmt::format("exit code {}, {}\n", code, row.is_discarded() ? "no result" : "a result");
  return run;
}

}  // namespace oktopk
