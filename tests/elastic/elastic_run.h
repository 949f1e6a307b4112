// SPDX-License-Identifier: Apache-2.0
// A run of members that die, leave and join, with a book of all mass: every gradient of a committed step is applied, or
// unsent on a member that lives, or was lost with a member that died, as the reports of the others say.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/elastic/elastic_reducer.h"
#include "tests/support/elastic_threads.h"
#include "tests/support/training.h"

namespace oktopk::elastic_run {

inline constexpr Index n = 500;
inline constexpr std::size_t k = 12;

struct Plan {
  MemberId id = 0;
  std::uint64_t dies_at = kNeverDies;  // message
  bool joins = false;
  std::atomic<std::uint64_t>* progress = nullptr;  // steps of the run; a member that joins waits for its turn
  std::uint64_t turn = 0;
  std::uint64_t dies_in = kNeverDies;  // step; at message dies_at of it
  std::uint64_t last = kNeverDies;     // the step after which it leaves
  std::uint64_t unfit = kNeverDies;    // the step in which its first gradient has a NaN
};

// The unsent values of a member.
struct Mass {
  Dense residual = Dense(n, 0.0), memory = Dense(n, 0.0);
  std::vector<MemberId> received;  // the residual has what these had unsent
};

// The book of one member.
struct Story {
  std::vector<std::uint64_t> bits;  // of the updates, from first_step on
  std::vector<Dense> sums;          // an empty one is not known
  std::uint64_t first_step = 0;
  std::uint64_t messages = 0;
  int refusals = 0;             // of steps, which it made again with another gradient
  Dense added = Dense(n, 0.0);  // its gradients of committed steps
  std::vector<float> weights = std::vector<float>(n, 0.0F);
  std::vector<MembershipChange> changes;
  std::vector<std::pair<double, double>> totals;  // of residual and memory after each step
  Mass mass, mass_before;                         // after the last step, and after the one before
  std::vector<float> last_gradient;
  bool has_died = false;
  bool has_left = false;
  bool has_run = false;
};

inline Mass mass_of(ElasticReducer& elastic) {
  Mass mass{.received = received_of(elastic)};
  const Reducer& reducer = elastic.reducer();
  const std::span<const float> residual = state_of(reducer).unsent.values();
  mass.residual.assign(residual.begin(), residual.end());
  const OwnerMemory memory = state_of(reducer).unsent.memory();
  for (std::size_t i = 0; i < memory.values.size(); ++i)
    if (memory.values[i] != 0) mass.memory[memory.index(i)] += double{memory.values[i]};
  return mass;
}

inline double total(const Dense& x) {
  double sum = 0;
  for (const double value : x) sum += value;
  return sum;
}

inline std::vector<float> gradient_at(MemberId id, std::uint64_t step, Input input) {
  return make_input(input, n, static_cast<int>(id), step, 1);
}

inline Bytes to_bytes(const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

inline void take_steps(ElasticReducer& elastic, ElasticThreads::Member& member, const Plan& plan, std::uint64_t steps,
                       Input input, Story& story) {
  while (elastic.committed() < steps && !elastic.has_left()) {
    const std::uint64_t step = elastic.committed();
    auto gradient = gradient_at(plan.id, step, input);
    if (step == plan.unfit && story.refusals == 0) gradient[0] = std::numeric_limits<float>::quiet_NaN();
    if (plan.progress != nullptr && !plan.joins) *plan.progress = step;
    if (step >= plan.dies_in) member.die_at(member.messages() + plan.dies_at);
    if (step >= plan.last) elastic.leave_after_next();
    Update update;
    try {
      update = elastic.step(gradient);
    } catch (const UsageError&) {
      ++story.refusals;
      continue;
    }
    update.subtract_from(story.weights);
    story.added = plus(story.added, Dense(gradient.begin(), gradient.end()));
    story.last_gradient = gradient;
    story.bits.push_back(bits_of(update));
    story.sums.push_back(elastic.has_left() ? Dense{} : sum_applied(elastic.reducer()));
    story.mass_before = std::exchange(story.mass, mass_of(elastic));
    story.totals.emplace_back(total(story.mass.residual), total(story.mass.memory));
  }
  story.has_left = elastic.has_left();
}

inline Story live(ElasticThreads& world, const Plan& plan, int P, const ReducerOptions& options, std::uint64_t steps,
                  Input input, std::vector<std::unique_ptr<ElasticReducer>>& graves, std::size_t grave) {
  Story story;
  std::unique_ptr<ElasticThreads::Member> member;
  while (plan.joins && plan.progress != nullptr && *plan.progress < plan.turn)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  try {
    const std::uint64_t dies_at = plan.dies_in == kNeverDies ? plan.dies_at : kNeverDies;
    member = plan.joins ? world.join(plan.id, dies_at) : world.found(plan.id, P, dies_at);
    ElasticHooks hooks;
    hooks.save_shared = [&] { return to_bytes(story.weights); };
    hooks.load_shared = [&](std::span<const std::byte> bytes) {
      std::memcpy(story.weights.data(), bytes.data(), bytes.size());
    };
    hooks.on_change = [&](const MembershipChange& change) { story.changes.push_back(change); };
    auto elastic = std::make_unique<ElasticReducer>(*member, n, options, hooks, ElasticOptions{.measure_every = 1});
    story.first_step = elastic->committed();
    story.has_run = true;
    try {
      take_steps(*elastic, *member, plan, steps, input, story);
    } catch (const CommError&) {
      story.has_died = true;
      graves[grave] = std::move(elastic);
    }
  } catch (const CommError&) {
    story.has_died = true;
  }
  if (member) story.messages = member->messages();
  return story;
}

// The sum of the step with this number on a member that lives.
inline const Dense* sum_at(const std::vector<Story>& stories, std::uint64_t step) {
  for (const Story& story : stories)
    if (!story.has_died && story.first_step <= step && step < story.first_step + story.sums.size() &&
        !story.sums[step - story.first_step].empty())
      return &story.sums[step - story.first_step];
  return nullptr;
}

// A member that died took part in the step in which it died, or not: the others' sum of that step tells. If it had
// committed a step that nobody else did, that step was taken back without it.
inline void close_book(const std::vector<Story>& stories, Story& story, ElasticReducer& elastic,
                       const std::vector<float>& gradient) {
  Reducer& reducer = reducer_of(elastic);
  const std::uint64_t step = story.first_step + story.bits.size();
  const Dense* last = story.bits.empty() ? nullptr : sum_at(stories, step - 1);
  if (last != nullptr && *last != story.sums.back()) {
    story.mass = story.mass_before;
    story.added = plus(story.added, Dense(story.last_gradient.begin(), story.last_gradient.end()), -1);
    return;
  }
  const Dense* theirs = sum_at(stories, step);
  const bool has_committed = elastic.committed() > step;  // and died before the call returned
  if (!(reducer.is_open() || has_committed) || theirs == nullptr || *theirs != sum_applied(reducer)) return;
  if (!has_committed) reducer.commit();
  story.mass = mass_of(elastic);
  story.added = plus(story.added, Dense(gradient.begin(), gradient.end()));
}

struct Chronicle {
  std::vector<Plan> plans;
  std::vector<Story> stories;
};

inline Chronicle run(const std::vector<Plan>& plans, const ReducerOptions& options, std::uint64_t steps,
                     Input input = Input::dyadic) {
  ElasticThreads world;
  Chronicle result{plans, std::vector<Story>(plans.size())};
  std::vector<std::unique_ptr<ElasticReducer>> graves(plans.size());
  const auto P = static_cast<int>(std::ranges::count(plans, false, &Plan::joins));
  {
    std::vector<std::jthread> threads;
    for (std::size_t m = 0; m < plans.size(); ++m)
      threads.emplace_back([&, m] { result.stories[m] = live(world, plans[m], P, options, steps, input, graves, m); });
  }
  for (std::size_t m = 0; m < plans.size(); ++m) {
    if (!graves[m]) continue;
    Story& story = result.stories[m];
    const std::uint64_t step = story.first_step + story.bits.size();
    close_book(result.stories, story, *graves[m], gradient_at(plans[m].id, step, input));
  }
  return result;
}

// The report of the loss of a member by one that lives. An id with no loss: it left in good order.
inline std::optional<MemberLoss> reported(const Chronicle& run, MemberId id) {
  for (const Story& story : run.stories) {
    if (story.has_died || story.has_left) continue;
    for (const MembershipChange& change : story.changes) {
      if (std::ranges::find(change.left, id) != change.left.end()) return MemberLoss{};
      for (const MemberLoss& loss : change.losses)
        if (loss.id == id) return loss;
    }
  }
  return std::nullopt;
}

// The loss with a member, by the reports; by its own word where nobody reports. Values that it got from members that
// left after its last step count as theirs: they are reported as lost, too.
inline Dense lost_with(const Chronicle& run, std::size_t m) {
  Mass mass = run.stories[m].mass;
  for (std::size_t giver = 0; giver < run.plans.size(); ++giver)
    if (std::ranges::find(mass.received, run.plans[giver].id) != mass.received.end()) {
      const Mass& given = run.stories[giver].mass;
      mass.residual = plus(mass.residual, plus(given.residual, given.memory), -1);
    }
  const std::optional<MemberLoss> loss = reported(run, run.plans[m].id);
  if (!loss) return plus(mass.residual, mass.memory);
  if (loss->id == 0) return Dense(n, 0.0);
  return loss->memory == MemoryFate::recovered ? mass.residual : plus(mass.residual, mass.memory);
}

// Members that live to the end report the same changes, those of which both were members.
inline void expect_same_reports(const Chronicle& run, const std::string& what) {
  const Story* first = nullptr;
  for (const Story& story : run.stories) {
    if (story.has_died || story.has_left) continue;
    if (first == nullptr) first = &story;
    const std::size_t common = std::min(first->changes.size(), story.changes.size());
    EXPECT_TRUE(std::equal(first->changes.end() - static_cast<std::ptrdiff_t>(common), first->changes.end(),
                           story.changes.end() - static_cast<std::ptrdiff_t>(common)))
        << what << ": two members report different changes";
  }
}

// All members that live have the same updates and weights, and the book is balanced.
inline void expect_sound(const Chronicle& run, std::uint64_t steps, const std::string& what) {
  std::vector<std::uint64_t> bits(steps, 0);
  std::vector<const Dense*> sums(steps, nullptr);
  std::vector<bool> is_known(steps, false);
  const Story* alive = nullptr;
  for (const Story& story : run.stories) {
    if (story.has_died) continue;
    if (!story.has_left) {
      ASSERT_EQ(story.first_step + story.bits.size(), steps) << what;
    }
    for (std::size_t s = 0; s < story.bits.size(); ++s) {
      const std::size_t step = story.first_step + s;
      if (is_known[step]) {
        ASSERT_EQ(bits[step], story.bits[s]) << what << ", step " << step;
      }
      is_known[step] = true;
      bits[step] = story.bits[s];
      if (!story.sums[s].empty()) sums[step] = &story.sums[s];
    }
    if (story.has_left) continue;
    if (alive != nullptr) {
      ASSERT_EQ(alive->weights, story.weights) << what;
    }
    alive = &story;
  }
  ASSERT_NE(alive, nullptr) << what;
  expect_same_reports(run, what);
  Dense book(n, 0.0);
  for (std::size_t m = 0; m < run.stories.size(); ++m) {
    const Story& story = run.stories[m];
    if (!story.has_run) continue;
    const bool is_gone = story.has_died || story.has_left;
    const Dense unsent = is_gone ? lost_with(run, m) : plus(story.mass.residual, story.mass.memory);
    book = plus(plus(book, story.added), unsent, -1);
  }
  for (const Dense* sum : sums)
    if (sum != nullptr) book = plus(book, *sum, -1);
  EXPECT_TRUE(std::ranges::all_of(book, [](double x) { return x == 0; })) << what << ": mass was lost or made";
}

inline std::vector<Plan> founders(int P) {
  std::vector<Plan> plans(static_cast<std::size_t>(P));
  for (std::size_t m = 0; m < plans.size(); ++m) plans[m].id = m + 1;
  return plans;
}

}  // namespace oktopk::elastic_run
