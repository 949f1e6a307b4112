// SPDX-License-Identifier: Apache-2.0
// Many worlds of threads, one after the other; in each of them one rank throws, stops or pauses at a random message.
// Each rank says in a line how it ended: "point 7 victim 2 rank 0 seconds 1.9 error: ...", or "... weights ...". The
// first line has the weights of a run that nobody disturbs.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "oktopk/base/random.h"
#include "oktopk/comm/transports.h"
#include "tests/kill/rank.h"
#include "tests/kill/striking.h"

namespace oktopk::kill {
namespace {

using Clock = std::chrono::steady_clock;

// Waits for the words of the other ranks after one rank was struck.
class Witness {
 public:
  explicit Witness(int P) : open_(P - 1) {}
  void hit() {
    const std::lock_guard lock(mutex_);
    begin_ = Clock::now();
  }
  // Seconds since the blow.
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

// A thread cannot be stopped: it sleeps, until all others have failed or for a quarter of the timeout.
void arm(Strike& strike, const Options& o, std::uint64_t at, Witness& witness) {
  strike.at = at;
  strike.kind = o.kind == "throw" ? "throw" : "";
  strike.before = [&] {
    witness.hit();
    if (o.kind == "stop" || o.kind == "long pause") witness.await();
    if (o.kind == "short pause") std::this_thread::sleep_for(seconds(o.timeout / 4));
  };
}

void run_point(const Options& o, int point, std::uint64_t messages) {
  Random random(o.seed, static_cast<std::uint64_t>(point));
  const int victim = static_cast<int>(random.below(static_cast<std::uint64_t>(o.ranks)));
  const std::uint64_t at = random.below(messages);
  Witness witness(o.ranks);
  const auto body = [&](Communicator& comm) {
    Strike strike;
    if (comm.rank() == victim) arm(strike, o, at, witness);
    StrikingCommunicator striking(comm, strike);
    try {
      const TrainingRun run = train(striking, problem(), train_options(o));
      say("point {} victim {} rank {} weights {}", point, victim, comm.rank(), run.weights);
    } catch (const std::exception& error) {
      const double after = comm.rank() == victim ? 0 : witness.heard();
      say("point {} victim {} rank {} seconds {:.3f} error: {}", point, victim, comm.rank(), after, error.what());
      throw;
    }
  };
  try {
    run_threads(o.ranks, body, seconds(o.timeout));
  } catch (const std::exception&) {
    return;  // every rank has said it
  }
}

}  // namespace

void run_points(const Options& o) {
  std::mutex mutex;
  std::uint64_t messages = std::numeric_limits<std::uint64_t>::max();
  run_threads(o.ranks, [&](Communicator& comm) {
    Strike strike;
    StrikingCommunicator striking(comm, strike);
    const TrainingRun run = train(striking, problem(), train_options(o));
    if (comm.rank() == 0) say("calm weights {}", run.weights);
    const std::lock_guard lock(mutex);
    messages = std::min(messages, strike.messages.load());
  });
  for (int point = 0; point < o.points; ++point) run_point(o, point, messages);
}

}  // namespace oktopk::kill
