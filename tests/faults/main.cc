// SPDX-License-Identifier: Apache-2.0
// oktopk_faults: runs jobs under simulated faults, one per seed, and checks the laws (docs/fault_simulation.md). Prints
// everything that is needed to repeat a failure. Exit code 1 when a law is broken.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

#include "oktopk/base/error.h"
#include "tests/faults/job.h"

namespace {

using namespace oktopk;
using namespace oktopk::faults;

struct Arguments {
  std::uint64_t first = 1, last = 300;
  Limits limits;
  bool is_verbose = false;
  bool is_elastic = false;
};

std::pair<std::uint64_t, std::uint64_t> range_of(std::string_view name, const std::string& text) {
  char* end = nullptr;
  const std::uint64_t first = std::strtoull(text.c_str(), &end, 10);
  require(end != text.c_str(), name, " ", text, ": must be a number or a range A..B");
  if (*end == '\0') return {first, first};
  require(std::strncmp(end, "..", 2) == 0, name, " ", text, ": must be a number or a range A..B");
  const char* second = end + 2;
  const std::uint64_t last = std::strtoull(second, &end, 10);
  require(end != second && *end == '\0' && first <= last, name, " ", text, ": must be a range A..B with A <= B");
  return {first, last};
}

Arguments parse(int count, char** values) {
  Arguments arguments;
  for (int i = 1; i < count; i += 2) {
    const std::string_view name = values[i];
    if (name == "--elastic") {
      arguments.is_elastic = true;
      --i;  // it has no value
      continue;
    }
    require(i + 1 < count, name,
            ": a value must follow; options: --elastic --seeds A..B --steps N --ranks A..B --verbose SEED");
    const auto [first, last] = range_of(name, values[i + 1]);
    if (name == "--seeds" || name == "--verbose") {
      arguments.first = first;
      arguments.last = last;
      arguments.is_verbose = name == "--verbose";
    } else if (name == "--steps") {
      require(first >= 1 && first <= 1000, "--steps ", first, ": must be 1 to 1000");
      arguments.limits.steps = first;
    } else if (name == "--ranks") {
      require(first >= 1 && last <= 64, "--ranks ", values[i + 1], ": must lie in 1 to 64");
      arguments.limits.least_ranks = static_cast<int>(first);
      arguments.limits.most_ranks = static_cast<int>(last);
    } else {
      fail<UsageError>("unknown option ", name, "; there are --elastic, --seeds, --steps, --ranks, --verbose");
    }
  }
  return arguments;
}

void print(const Plan& plan, const JobResult& result) {
  std::printf("%s\n", describe(plan).c_str());
  for (const std::string& fault : result.faults) std::printf("  %s\n", fault.c_str());
  for (const std::string& failure : result.failures) std::printf("  BROKEN: %s\n", failure.c_str());
  std::printf("%s", result.report.c_str());
}

int run(const Arguments& arguments) {
  std::uint64_t broken = 0, attempts = 0, struck = 0, arbiter_struck = 0, refused = 0, refusals = 0;
  std::map<MassCheck, std::uint64_t> mass;
  for (std::uint64_t seed = arguments.first; seed <= arguments.last; ++seed) {
    const bool is_elastic = arguments.is_elastic;
    const Plan plan = is_elastic ? draw_elastic_plan(seed, arguments.limits) : draw_plan(seed, arguments.limits);
    const JobResult result = is_elastic ? run_elastic_job(plan) : run_job(plan);
    attempts += static_cast<std::uint64_t>(result.attempts);
    struck += result.struck;
    arbiter_struck += result.arbiter_struck;
    refused += result.refused;
    refusals += result.refusals;
    broken += result.failures.empty() ? 0 : 1;
    ++mass[result.mass];
    if (arguments.is_verbose || !result.failures.empty()) print(plan, result);
  }
  std::printf("%llu seeds, %llu epochs, %llu faults struck, %llu old frames refused: %llu broken\n",
              static_cast<unsigned long long>(arguments.last - arguments.first + 1),
              static_cast<unsigned long long>(attempts), static_cast<unsigned long long>(struck),
              static_cast<unsigned long long>(refused), static_cast<unsigned long long>(broken));
  if (arguments.is_elastic)
    std::printf("%llu faults of the arbiter, %llu refusals; mass: %llu exact seeds checked, %llu left out\n",
                static_cast<unsigned long long>(arbiter_struck), static_cast<unsigned long long>(refusals),
                static_cast<unsigned long long>(mass[MassCheck::made]),
                static_cast<unsigned long long>(mass[MassCheck::left_out]));
  return broken == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** values) {
  try {
    return run(parse(count, values));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "oktopk_faults: %s\n", error.what());
    return 2;
  }
}
