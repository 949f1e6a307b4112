// SPDX-License-Identifier: Apache-2.0
// One rank of a small training run that somebody disturbs: kill.py sends it signals, or the rank strikes itself at a
// message (--strike). It says in lines of its own what happens to it: "rank 2 start pid 17", "rank 2 ready pid 17
// member 3", "rank 2 struck", "rank 2 done loss ... weights ...", "rank 2 error: ...". With transport threads, the
// program runs many worlds, one after the other (thread_points.cc).
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/base/random.h"
#include "oktopk/comm/elastic_world.h"
#include "oktopk/comm/transports.h"
#include "tests/kill/rank.h"
#include "tests/kill/striking.h"
#include "tools/train/elastic_trainer.h"

namespace oktopk::kill {
namespace {

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
  options.join_timeout = seconds(o.join_timeout);
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

// The ranks of a job come one after the other.
TcpOptions begin(const Options& o) {
  const TcpOptions options = tcp_options(o);
  say("rank {} start pid {}", options.rank, getpid());
  if (o.stagger > 0)
    std::this_thread::sleep_for(
        std::chrono::milliseconds(Random(o.stagger_seed, static_cast<std::uint64_t>(options.rank)).below(o.stagger)));
  return options;
}

void run_elastic(const Options& o) {
  const TcpOptions tcp = begin(o);
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

int run(const Options& o) {
  if (o.transport == "mpi") return run_mpi(o);
  if (o.transport == "threads") run_points(o);
  if (o.transport == "elastic") run_elastic(o);
  return o.transport != "tcp" || run_fixed(*make_tcp_world(begin(o)), o) ? 0 : 3;
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
  app.add_option("--join-timeout", o.join_timeout, "seconds");
  app.add_option("--stagger", o.stagger, "milliseconds, at most, before a rank looks for the others");
  app.add_option("--stagger-seed", o.stagger_seed);
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
