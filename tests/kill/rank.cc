// SPDX-License-Identifier: Apache-2.0
// One rank of a small training run that somebody disturbs: kill.py sends it signals, or the rank strikes itself at a
// message (--strike). It says in lines of its own what happens to it: "rank 2 ready pid 17 member 3", "rank 2 struck",
// "rank 2 done loss ... weights ...", "rank 2 error: ...". With transport threads, the program runs many worlds, one
// after the other, each with one rank that throws or stops.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/random.h"
#include "oktopk/comm/mpi.h"
#include "oktopk/comm/tcp_elastic.h"
#include "oktopk/comm/threads.h"
#include "tests/kill/striking.h"
#include "tools/train/elastic_trainer.h"

namespace oktopk::kill {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string transport = "tcp";
  std::uint64_t steps = 200;
  std::uint64_t seed = 1;
  double timeout = 10, silence = 3;
  int struck_rank = -1;
  std::uint64_t at = 0;
  std::string kind;
  int pace = 200;             // microseconds before each exchange
  int points = 0, ranks = 5;  // threads
};

Communicator::Duration seconds(double value) {
  return std::chrono::duration_cast<Communicator::Duration>(std::chrono::duration<double>(value));
}

template <class... Args>
void say(fmt::format_string<Args...> text, Args&&... args) {
  const std::string line = fmt::format(text, std::forward<Args>(args)...) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  require(value != nullptr, "the variable ", name, " is not set: start the ranks with oktopk run");
  return value;
}

TcpOptions tcp_options(const Options& o) {
  TcpOptions options{.rank = std::stoi(variable("OKTOPK_RANK")), .size = std::stoi(variable("OKTOPK_SIZE"))};
  options.rendezvous = variable("OKTOPK_RENDEZVOUS");
  options.secret = variable("OKTOPK_SECRET");
  options.timeout = seconds(o.timeout);
  options.silence = seconds(o.silence);
  return options;
}

const LearningProblem& problem() {
  static const LearningProblem made =
      make_teacher({.features = 24, .classes = 5, .hidden = 16, .train = 4096, .test = 1024});
  return made;
}

TrainOptions train_options(const Options& o) {
  TrainOptions options;
  options.reducer.preset = "circulant";
  options.reducer.density = 0.1;
  options.recipe.optimiser = "momentum";
  options.model = "mlp:24";
  options.steps = o.steps;
  options.batch = 8;
  options.seed = o.seed;
  options.points = 10;
  options.evaluations = 1;
  return options;
}

void arm(Strike& strike, const Options& o, int rank) {
  strike.pace = std::chrono::microseconds(o.pace);
  if (rank != o.struck_rank) return;
  strike.at = o.at;
  strike.kind = o.kind;
  strike.before = [rank] { say("rank {} struck", rank); };
}

// Says what happens to the rank while its communicator lives: its end may take a while.
bool run_fixed(Communicator& comm, const Options& o) try {
  Strike strike;
  arm(strike, o, comm.rank());
  StrikingCommunicator striking(comm, strike);
  say("rank {} ready pid {} member {}", comm.rank(), getpid(), comm.rank());
  const TrainingRun run = train(striking, problem(), train_options(o));
  // Only rank 0 evaluates.
  say("rank {} done loss {:.6f} weights {} messages {}", comm.rank(), run.test_loss, run.weights,
      strike.messages.load());
  return true;
} catch (const std::exception& error) {
  say("rank {} error: {}", comm.rank(), error.what());
  comm.kill();  // the others need not wait for their timeout
  return false;
}

void run_elastic(const Options& o) {
  const TcpOptions tcp = tcp_options(o);
  const auto world = make_tcp_elastic_world({.tcp = tcp, .least = tcp.size});
  Strike strike;
  // A rank that was started anew is not struck again.
  arm(strike, o, world->membership().epoch == 1 ? tcp.rank : -1);
  StrikingWorld striking(*world, strike);
  const Membership& first = world->membership();
  say("rank {} ready pid {} member {}", tcp.rank, getpid(), first.ids[static_cast<std::size_t>(world->comm().rank())]);
  const auto batch = 8 * static_cast<std::uint64_t>(tcp.size);
  const ElasticRun run = train_elastic(striking, problem(), train_options(o), batch);
  say("rank {} done loss {:.6f} weights {} messages {} epoch {} members {} lost {}", tcp.rank, run.test_loss,
      run.weights, strike.messages.load(), run.epoch, fmt::join(run.members, ","), fmt::join(run.lost, ","));
}

// mpirun ends all ranks as soon as one ends badly: a rank that failed stays until the others have had their say.
int run_mpi(const Options& o) {
  const MpiSession session;
  const auto comm = make_mpi_world({.timeout = seconds(o.timeout)});
  if (run_fixed(*comm, o)) return 0;
  usleep(static_cast<useconds_t>(3e6 * o.timeout));
  _exit(3);
}

// Waits for the words of the other ranks after one rank was struck.
class Witness {
 public:
  explicit Witness(int P) : open_(P - 1) {}
  void hit() {
    const std::lock_guard lock(mutex_);
    begin_ = Clock::now();
  }
  double heard() {
    const std::lock_guard lock(mutex_);
    --open_;
    changed_.notify_all();
    return std::chrono::duration<double>(Clock::now() - begin_).count();
  }
  void await() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(120), [&] { return open_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int open_;
  Clock::time_point begin_ = Clock::now();
};

void run_point(const Options& o, int point, std::uint64_t messages) {
  Random random(o.seed, static_cast<std::uint64_t>(point));
  const int victim = static_cast<int>(random.below(static_cast<std::uint64_t>(o.ranks)));
  const std::uint64_t at = random.below(messages);
  Witness witness(o.ranks);
  const auto body = [&](Communicator& comm) {
    Strike strike;
    if (comm.rank() == victim) {
      strike.at = at;
      strike.kind = o.kind == "stop" ? "" : "throw";
      // A thread cannot be stopped: it sleeps until all others have failed.
      strike.before = [&] { witness.hit(), o.kind == "stop" ? witness.await() : void(); };
    }
    StrikingCommunicator striking(comm, strike);
    try {
      train(striking, problem(), train_options(o));
      say("point {} victim {} rank {} error: none", point, victim, comm.rank());
    } catch (const std::exception& error) {
      if (comm.rank() != victim)
        say("point {} victim {} rank {} seconds {:.3f} error: {}", point, victim, comm.rank(), witness.heard(),
            error.what());
      throw;
    }
  };
  try {
    run_threads(o.ranks, body, seconds(o.timeout));
  } catch (const std::exception&) {
    return;  // every rank has said it
  }
}

void run_points(const Options& o) {
  std::atomic<std::uint64_t> messages = std::numeric_limits<std::uint64_t>::max();
  run_threads(o.ranks, [&](Communicator& comm) {
    Strike strike;
    StrikingCommunicator striking(comm, strike);
    train(striking, problem(), train_options(o));
    std::uint64_t fewest = messages;
    while (strike.messages < fewest && !messages.compare_exchange_weak(fewest, strike.messages)) {
    }
  });
  for (int point = 0; point < o.points; ++point) run_point(o, point, messages);
}

int run(const Options& o) {
  if (o.transport == "mpi") return run_mpi(o);
  if (o.transport == "threads") run_points(o);
  if (o.transport == "elastic") run_elastic(o);
  return o.transport != "tcp" || run_fixed(*make_tcp_world(tcp_options(o)), o) ? 0 : 3;
}

}  // namespace
}  // namespace oktopk::kill

int main(int argc, char** argv) {
  oktopk::kill::Options o;
  CLI::App app{"one rank of a training run that is disturbed; kill.py starts it"};
  app.add_option("--transport", o.transport)->check(CLI::IsMember({"tcp", "elastic", "mpi", "threads"}));
  app.add_option("--steps", o.steps);
  app.add_option("--seed", o.seed);
  app.add_option("--timeout", o.timeout, "seconds");
  app.add_option("--silence", o.silence, "seconds");
  app.add_option("--struck-rank", o.struck_rank);
  app.add_option("--at", o.at, "message");
  app.add_option("--kind", o.kind, "kill, stop, throw or give_up");
  app.add_option("--pace", o.pace, "microseconds before each exchange");
  app.add_option("--points", o.points, "threads: number of worlds");
  app.add_option("--ranks", o.ranks, "threads: of each world");
  CLI11_PARSE(app, argc, argv);
  try {
    return oktopk::kill::run(o);
  } catch (const std::exception& error) {
    const char* const rank = std::getenv("OKTOPK_RANK");
    oktopk::kill::say("rank {} error: {}", rank == nullptr ? "-" : rank, error.what());
    return 3;
  }
}
