// SPDX-License-Identifier: Apache-2.0
// oktopk_soak STEPS [SEED]: makes random steps until STEPS are done, and checks that resident memory, open files and
// threads stay as they were after the first tenth. A round is one world of threads: ranks make steps with some preset,
// meet a bad gradient and go on, save and load, split and close communicators, and now and then one of them dies.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/random.h"
#include "oktopk/comm/transports.h"
#include "oktopk/laws/inputs.h"
#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/node_reducer.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_options.h"

namespace {

using namespace oktopk;

struct Level {
  std::size_t bytes = 0;  // resident
  std::size_t files = 0;
  std::size_t threads = 0;
};

Level measure() {
  malloc_trim(0);
  Level level;
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  level.bytes = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto count = [](const char* folder) {
    using Entries = std::filesystem::directory_iterator;
    return static_cast<std::size_t>(std::distance(Entries(folder), Entries()));
  };
  level.files = count("/proc/self/fd");
  level.threads = count("/proc/self/task");
  return level;
}

// Equal on all ranks of the round.
struct Round {
  std::uint64_t seed = 0;
  int P = 1;
  std::uint64_t n = 0;
  std::uint64_t steps = 0;
  unsigned shape = 0;
  ReducerOptions options;
  std::uint64_t bad_step = 0;    // one rank's gradient is not finite
  std::uint64_t save_step = 0;   // saved, and loaded into a new object
  std::uint64_t death_step = 0;  // a rank gives up; none when beyond the last step
};

Round draw_round(std::uint64_t seed) {
  Random random(seed);
  Round round;
  round.seed = seed;
  round.P = 1 + static_cast<int>(random.below(5));
  round.n = 10 + random.below(std::uint64_t{1} << (4 + random.below(9)));
  round.steps = 5 + random.below(40);
  round.shape = static_cast<unsigned>(random.below(3));
  round.options.preset = presets()[random.below(presets().size())].name;
  round.options.k = 2 + random.below(round.n / 4);
  round.options.allreduce.codec =
      Codec{static_cast<IndexCoding>(random.below(5)), static_cast<ValueCoding>(random.below(4))};
  round.options = only_used(round.options);
  round.bad_step = random.below(round.steps);
  round.save_step = random.below(round.steps);
  // A rank alone sends no messages, so it does not notice.
  round.death_step = round.P == 1 ? round.steps : random.below(3 * round.steps);
  return round;
}

std::unique_ptr<Synchroniser> make(const Round& round, Communicator& comm) {
  if (round.shape == 1)
    return std::make_unique<BucketedReducer>(comm, std::vector<std::uint64_t>{round.n / 2, round.n - round.n / 2},
                                             round.options, FusionOptions{.policy = FusionPolicy::tensor});
  if (round.shape == 2) return std::make_unique<NodeReducer>(comm, round.n, round.options, NodeOptions{2});
  return std::make_unique<Reducer>(comm, round.n, round.options);
}

std::vector<float> gradient_of(const Round& round, int rank, std::uint64_t step) {
  return make_input(Input::dyadic, static_cast<Index>(round.n), rank, step, round.seed);
}

// All ranks must refuse the bad gradient of one.
void meet_bad_gradient(const Round& round, Synchroniser& sync) {
  std::vector<float> gradient = gradient_of(round, sync.comm().rank(), 0);
  if (sync.comm().rank() == round.P - 1) gradient[round.n / 2] = std::numeric_limits<float>::quiet_NaN();
  try {
    sync.step(gradient);
  } catch (const UsageError&) {
    return;
  }
  fail<std::logic_error>("a gradient with NaN was taken");
}

void run_rank(const Round& round, Communicator& comm, std::atomic<std::uint64_t>& made) {
  std::unique_ptr<Synchroniser> sync = make(round, comm);
  for (std::uint64_t step = 0; step < round.steps; ++step) {
    if (step == round.bad_step) meet_bad_gradient(round, *sync);
    if (step == round.death_step && comm.rank() == round.P / 2) comm.kill();
    sync->step(gradient_of(round, comm.rank(), step));
    if (comm.rank() == 0) ++made;
    if (step != round.save_step) continue;
    const Bytes state = sync->save();
    sync = make(round, comm);
    sync->load(state);
    const auto part = comm.split(comm.rank() % 2, -comm.rank());
    barrier(*part);
  }
  sync->flush();
}

void run_round(const Round& round, std::atomic<std::uint64_t>& made) {
  try {
    run_threads(
        round.P, [&](Communicator& comm) { run_rank(round, comm, made); }, std::chrono::seconds(60));
  } catch (const CommError& error) {
    if (round.death_step >= round.steps) fail<std::logic_error>("round ", round.seed, ": ", error.what());
    return;
  }
  if (round.death_step < round.steps) fail<std::logic_error>("round ", round.seed, ": a death was not noticed");
}

void print(const char* when, const Level& level) {
  std::printf("%s: %.1f MiB resident, %zu files, %zu threads\n", when, static_cast<double>(level.bytes) / (1 << 20),
              level.files, level.threads);
}

int soak(std::uint64_t steps, std::uint64_t seed) {
  std::atomic<std::uint64_t> made = 0;
  const auto run_until = [&](std::uint64_t count) {
    while (made < count) run_round(draw_round(seed++), made);
  };
  run_until(steps / 10);
  const Level first = measure();
  print("after a tenth", first);
  run_until(steps);
  const Level last = measure();
  print("at the end", last);
  // The heaps of threads grow and shrink a little.
  const bool is_flat = last.bytes <= first.bytes + first.bytes / 10 + (std::size_t{4} << 20) &&
                       last.files == first.files && last.threads == first.threads;
  std::printf("%llu steps, last round %llu: %s\n", static_cast<unsigned long long>(made.load()),
              static_cast<unsigned long long>(seed - 1), is_flat ? "flat" : "NOT FLAT");
  return is_flat ? 0 : 1;
}

}  // namespace

int main(int count, char** values) {
  try {
    require(count == 2 || count == 3, "usage: oktopk_soak STEPS [SEED]");
    const std::uint64_t steps = std::strtoull(values[1], nullptr, 10);
    require(steps >= 10, "oktopk_soak ", values[1], ": STEPS must be at least 10");
    return soak(steps, count == 3 ? std::strtoull(values[2], nullptr, 10) : 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "oktopk_soak: %s\n", error.what());
    return 2;
  }
}
