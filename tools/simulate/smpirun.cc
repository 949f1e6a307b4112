// SPDX-License-Identifier: Apache-2.0
#include "tools/simulate/smpirun.h"

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
#include <span>
#include <sstream>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

namespace fs = std::filesystem;

// What SMPI would do otherwise: multiply bandwidths and latencies by factors of a Gigabit Ethernet,
// let acknowledgements take bandwidth, limit bandwidth by latency, and time the ranks' code.
constexpr std::array kFlags = {
    "--cfg=smpi/privatization:no",   "--cfg=smpi/simulate-computation:no",
    "--cfg=smpi/host-speed:1Gf",     "--cfg=smpi/wtime:0",
    "--cfg=smpi/bw-factor:0:1.0",    "--cfg=smpi/lat-factor:0:1.0",
    "--cfg=network/crosstraffic:0",  "--cfg=network/TCP-gamma:1e12",
    "--cfg=smpi/coll-selector:ompi", "--cfg=smpi/test:1e-6",
    "--cfg=smpi/iprobe:1e-6",        "--cfg=smpi/grow-injected-times:no",
    "--log=root.thres:warning",
};

// A fresh directory in TMPDIR, removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (fs::temp_directory_path() / "oktopk-simulate-XXXXXX").string();
    require(mkdtemp(name.data()) != nullptr, "cannot make a directory ", name, ": ", std::strerror(errno));
    path_ = name;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

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

// While it lives, the signals that would end this program wait, so that it can clean up first.
class PatientSignals {
 public:
  PatientSignals() {
    sigemptyset(&ours_);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&ours_, number);
    sigprocmask(SIG_BLOCK, &ours_, &before_);
  }
  PatientSignals(const PatientSignals&) = delete;
  PatientSignals& operator=(const PatientSignals&) = delete;
  ~PatientSignals() { restore(); }

  void restore() const { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  // Which one came: SIGCHLD when a child changed.
  int next() const { return sigwaitinfo(&ours_, nullptr); }

 private:
  sigset_t ours_;
  sigset_t before_;
};

// In the child: never comes back. smpirun does not quote names of files: it gets relative ones, for
// itself in TMPDIR, too. Huge pages would be committed for buffers of a thousand ranks that are
// hardly filled.
[[noreturn]] void become(const fs::path& directory, std::span<char* const> argv) {
  const bool is_ready = chdir(directory.c_str()) == 0 && setenv("TMPDIR", ".", 1) == 0 &&
                        prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0 && prctl(PR_SET_PDEATHSIG, SIGTERM) == 0 &&
                        freopen("log", "a", stdout) != nullptr && dup2(STDOUT_FILENO, STDERR_FILENO) >= 0;
  if (is_ready) execv(argv.front(), argv.data());
  _exit(127);
}

// Runs the command in `directory` with its output in the file log there; its exit code. A signal
// that asks this program to end ends the command, too.
int run_in(const fs::path& directory, std::vector<std::string> command) {
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::fflush(stdout);
  const PatientSignals signals;
  const pid_t child = fork();
  require(child >= 0, "cannot start ", command.front(), ": ", std::strerror(errno));
  if (child == 0) {
    signals.restore();
    become(directory, argv);
  }
  int asked = 0;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    const int number = signals.next();
    if (number == SIGCHLD || number < 0) continue;
    asked = number;
    kill(child, SIGTERM);
  }
  if (asked != 0) fail<CommError>("the simulation was ended by signal ", asked);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::vector<SimulatedRow> read_rows(const fs::path& file) {
  std::vector<SimulatedRow> rows;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_discarded()) rows.push_back(row_from_json(json));
  }
  return rows;
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
  const TemporaryDirectory directory;
  write_text(directory.path() / "platform.xml", platform_xml(platform, spec.P, slow_link));
  write_text(directory.path() / "hosts", host_file(spec.P));
  write_text(directory.path() / "spec.json", to_json(spec).dump());
  std::vector<std::string> command = {programs.smpirun, "-np",  std::to_string(spec.P), "-platform", "platform.xml",
                                      "-hostfile",      "hosts"};
  command.insert(command.end(), kFlags.begin(), kFlags.end());
  command.push_back(fmt::format("--cfg=smpi/ois:0:{}:0", platform.send_overhead));
  for (const auto& word : {programs.simulated, std::string("spec.json"), std::string("rows")}) command.push_back(word);
  const int code = run_in(directory.path(), std::move(command));
  SimulatedRun run{.log = read_text(directory.path() / "log"), .rows = read_rows(directory.path() / "rows")};
  const std::size_t expected = spec.problems.size() * spec.presets.size();
  run.failed = code != 0 || reports_failure(run.log) || run.rows.size() != expected;
  if (run.failed) {
    run.log += fmt::format("exit code {}, {} of {} rows\n", code, run.rows.size(), expected);
  }
  return run;
}

}  // namespace oktopk
