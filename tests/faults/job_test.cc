// SPDX-License-Identifier: Apache-2.0
// Jobs under simulated faults keep the laws, a seed gives the same run again, and planted bugs are found.
#include "tests/faults/job.h"

#include <gtest/gtest.h>

#include <string>

#include "oktopk/comm/decorators.h"
#include "tests/faults/scheduler.h"

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
  EXPECT_NE(found.find("failed without any fault"), std::string::npos) << found;
}

TEST(FaultJob, residual_rule_that_loses_mass_is_found) {
  const std::string found = findings(
      [](Plan plan) {
        plan.options = {.preset = "gtopk", .k = plan.options.k};
        plan.options.allreduce.residual = ResidualKind::sender_keeps;
        return run_job(plan);
      },
      40);
  EXPECT_NE(found.find("mass: index"), std::string::npos) << found;
}

// Loses the last bytes of its messages, now and then: the sum lacks an entry.
class Careless final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<Careless>(inner().split(color, key));
  }
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
  const auto wrap = [](std::unique_ptr<Communicator> comm) { return std::make_unique<Careless>(std::move(comm)); };
  const std::string found = findings([&](const Plan& plan) { return run_job(plan, wrap); }, 20);
  EXPECT_NE(found.find("failed without any fault"), std::string::npos) << found;
}

// Takes the death of its own process for an error of a peer.
class Undying final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<Undying>(inner().split(color, key));
  }
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
  const auto wrap = [](std::unique_ptr<Communicator> comm) { return std::make_unique<Undying>(std::move(comm)); };
  const std::string found = findings([&](const Plan& plan) { return run_job(plan, wrap); }, 60);
  EXPECT_NE(found.find("the death of a rank became an error"), std::string::npos) << found;
}

}  // namespace oktopk::faults::job_test
