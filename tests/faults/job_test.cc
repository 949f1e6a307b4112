// SPDX-License-Identifier: Apache-2.0
// Jobs under simulated faults keep the laws, a seed gives the same run again, and planted bugs are found.
#include "tests/faults/job.h"

#include <gtest/gtest.h>

#include <string>

#include "oktopk/comm/decorators.h"
#include "tests/faults/scheduler.h"
#include "tests/support/message.h"

namespace oktopk::faults::job_test {

// Kinds of broken laws over a few seeds, one after the other.
std::string findings(const std::function<JobResult(Plan)>& run, std::uint64_t seeds) {
  std::string all;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed)
    for (const std::string& failure : run(draw_plan(seed)).failures) all += failure + "\n";
  return all;
}

TEST(FaultJob, laws_hold_over_seeds) {
  std::uint64_t struck = 0, refused = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    const Plan plan = draw_plan(seed);
    const JobResult result = run_job(plan);
    struck += result.struck;
    refused += result.refused;
    for (const std::string& failure : result.failures)
      ADD_FAILURE() << describe(plan) << "\n" << failure << "\n" << result.report;
  }
  EXPECT_GT(struck, 50u);
  EXPECT_GT(refused, 50u);
}

TEST(FaultJob, run_of_a_seed_repeats_event_by_event) {
  for (std::uint64_t seed = 20; seed < 40; ++seed) {
    const JobResult first = run_job(draw_plan(seed));
    const JobResult second = run_job(draw_plan(seed));
    EXPECT_EQ(first.history, second.history) << "seed " << seed;
    EXPECT_EQ(first.report, second.report);
  }
}

TEST(FaultJob, updates_are_those_of_a_run_without_faults) {
  for (std::uint64_t seed = 40; seed < 80; ++seed) {
    const Plan stormy = draw_plan(seed);
    Plan calm = stormy;
    calm.weather = {};
    calm.fault_rate = 0;
    EXPECT_EQ(run_job(stormy).updates, run_job(calm).updates) << describe(stormy);
  }
}

TEST(FaultJob, transport_that_takes_frames_of_an_old_epoch_is_found) {
  const std::string found = findings(
      [](Plan plan) {
        plan.weather.takes_old_frames = true;
        return run_job(plan);
      },
      60);
  expect_contains(found, "failed without any fault");
}

TEST(FaultJob, residual_rule_that_loses_mass_is_found) {
  const std::string found = findings(
      [](Plan plan) {
        plan.options = {.preset = "gtopk", .k = plan.options.k};
        plan.options.allreduce.residual = ResidualKind::sender_keeps;
        return run_job(plan);
      },
      40);
  expect_contains(found, "mass: index");
}

// A transport with a planted bug, which its parts have, too.
template <class Bug>
class Buggy : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<Bug>(inner().split(color, key));
  }
  static std::string findings_of(std::uint64_t seeds) {
    const auto wrap = [](std::unique_ptr<Communicator> comm) { return std::make_unique<Bug>(std::move(comm)); };
    return findings([&](const Plan& plan) { return run_job(plan, wrap); }, seeds);
  }
};

// Loses the last bytes of its messages, now and then: the sum lacks an entry.
class Careless final : public Buggy<Careless> {
 public:
  using Buggy::Buggy;
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    std::vector<Send> shorter(sends.begin(), sends.end());
    for (Send& send : shorter)
      if (++count_ % 7 == 0 && send.bytes.size() > 8) send.bytes = send.bytes.first(send.bytes.size() - 8);
    return inner().begin(shorter, recvs);
  }

 private:
  int count_ = 0;
};

TEST(FaultJob, transport_that_loses_an_entry_is_found) {
  expect_contains(Careless::findings_of(20), "failed without any fault");
}

// Takes the death of its own process for an error of a peer.
class Undying final : public Buggy<Undying> {
 public:
  using Buggy::Buggy;
  void finish(std::uint64_t ticket) override {
    try {
      inner().finish(ticket);
    } catch (const Killed&) {
      inner().abandon(ticket);
      throw CommError("some peer died");
    }
  }
};

TEST(FaultJob, death_that_is_swallowed_is_found) {
  expect_contains(Undying::findings_of(60), "the death of a rank became an error");
}

TEST(FaultElasticJob, laws_hold_over_seeds) {
  std::uint64_t struck = 0, arbiter_struck = 0, epochs = 0, exact = 0, left_out = 0, refusals = 0;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    const Plan plan = draw_elastic_plan(seed);
    const JobResult result = run_elastic_job(plan);
    struck += result.struck;
    arbiter_struck += result.arbiter_struck;
    epochs += static_cast<std::uint64_t>(result.attempts);
    refusals += result.refusals;
    exact += result.mass == MassCheck::made ? 1 : 0;
    left_out += result.mass == MassCheck::left_out ? 1 : 0;
    for (const std::string& failure : result.failures)
      ADD_FAILURE() << describe(plan) << "\n" << failure << "\n" << result.report;
  }
  EXPECT_GT(struck, 40u);
  EXPECT_GT(arbiter_struck, 80u);
  EXPECT_GT(epochs, 200u);
  EXPECT_GT(exact, 30u);
  EXPECT_GT(refusals, 80u);
  EXPECT_EQ(left_out, 0u);
}

TEST(FaultElasticJob, run_of_a_seed_repeats) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed)
    EXPECT_EQ(run_elastic_job(draw_elastic_plan(seed)).history, run_elastic_job(draw_elastic_plan(seed)).history);
}

}  // namespace oktopk::faults::job_test
