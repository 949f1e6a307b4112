// SPDX-License-Identifier: Apache-2.0
// A run of members that die and join, with a book of all mass: every gradient that was added is applied, or unsent on a
// member that lives, or was lost with a member that died.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/reduce/elastic_reducer.h"
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
};

// The book of one member.
struct Story {
  std::vector<std::uint64_t> bits;  // of the updates, from first_step on
  std::vector<Dense> sums;
  std::uint64_t first_step = 0;
  std::uint64_t messages = 0;
  Dense added = Dense(n, 0.0);   // its gradients
  Dense unsent = Dense(n, 0.0);  // at its end; of a member that died: lost
  std::vector<float> weights = std::vector<float>(n, 0.0F);
  std::vector<MembershipChange> changes;
  Dense before = Dense(n, 0.0), before_last = Dense(n, 0.0);  // unsent before the last step, and the last that ended
  std::vector<float> last_gradient;
  Dense unclear;  // the gradient of the step in which it died: added or not
  bool has_died = false;
  bool has_run = false;
};

inline Dense unsent_of(const Reducer& reducer) {
  Dense all(state_of(reducer).unsent.values().begin(), state_of(reducer).unsent.values().end());
  const OwnerMemory memory = state_of(reducer).unsent.memory();
  for (std::size_t i = 0; i < memory.values.size(); ++i)
    if (memory.values[i] != 0) all[memory.index(i)] += double{memory.values[i]};
  return all;
}

inline std::vector<float> gradient_at(MemberId id, std::uint64_t step, Input input) {
  return make_input(input, n, static_cast<int>(id), step, 1);
}

inline Bytes to_bytes(const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

inline void take_steps(ElasticReducer& elastic, const Plan& plan, std::uint64_t steps, Input input, Story& story) {
  while (elastic.committed() < steps) {
    const auto gradient = gradient_at(plan.id, elastic.committed(), input);
    story.before = unsent_of(elastic.reducer());
    if (plan.progress != nullptr && !plan.joins) *plan.progress = elastic.committed();
    const Update update = elastic.step(gradient);
    update.subtract_from(story.weights);
    story.added = plus(story.added, Dense(gradient.begin(), gradient.end()));
    story.last_gradient = gradient;
    story.bits.push_back(bits_of(update));
    story.sums.push_back(sum_applied(elastic.reducer()));
    story.before_last = story.before;
  }
}

inline Story live(ElasticThreads& world, const Plan& plan, int P, const ReducerOptions& options, std::uint64_t steps,
                  Input input, std::vector<std::unique_ptr<ElasticReducer>>& graves, std::size_t grave) {
  Story story;
  std::unique_ptr<ElasticThreads::Member> member;
  while (plan.joins && plan.progress != nullptr && *plan.progress < plan.turn)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  try {
    member = plan.joins ? world.join(plan.id, plan.dies_at) : world.found(plan.id, P, plan.dies_at);
    ElasticHooks hooks;
    hooks.save_shared = [&] { return to_bytes(story.weights); };
    hooks.load_shared = [&](std::span<const std::byte> bytes) {
      std::memcpy(story.weights.data(), bytes.data(), bytes.size());
    };
    hooks.on_change = [&](const MembershipChange& change) { story.changes.push_back(change); };
    auto elastic = std::make_unique<ElasticReducer>(*member, n, options, hooks);
    story.first_step = elastic->committed();
    story.has_run = true;
    try {
      take_steps(*elastic, plan, steps, input, story);
      story.unsent = unsent_of(elastic->reducer());
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
    if (!story.has_died && story.first_step <= step && step < story.first_step + story.bits.size())
      return &story.sums[step - story.first_step];
  return nullptr;
}

// A member that died took part in the step in which it died, or not: the others' sum of that step tells. If it had
// committed a step that nobody else did, that step was taken back without it, and its mass of before is lost.
inline void close_book(const std::vector<Story>& stories, Story& story, Reducer& reducer,
                       const std::vector<float>& gradient) {
  const std::uint64_t step = story.first_step + story.bits.size();
  const Dense* last = story.bits.empty() ? nullptr : sum_at(stories, step - 1);
  if (last != nullptr && *last != story.sums.back()) {
    const Dense brought(story.last_gradient.begin(), story.last_gradient.end());
    story.unsent = plus(story.before_last, brought);
    return;
  }
  const Dense* theirs = sum_at(stories, step);
  if (reducer.is_open()) {
    const bool with_it = theirs != nullptr && *theirs == sum_applied(reducer);
    with_it ? reducer.commit() : reducer.roll_back();
  }
  story.unsent = unsent_of(reducer);
  story.unclear.assign(gradient.begin(), gradient.end());
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
    Reducer& reducer = reducer_of(*graves[m]);
    const std::uint64_t step = graves[m]->committed();
    close_book(result.stories, story, reducer, gradient_at(plans[m].id, step, input));
  }
  return result;
}

// All members that live have the same updates and weights, and the book is balanced.
inline void expect_sound(const Chronicle& run, std::uint64_t steps, const std::string& what) {
  std::vector<std::uint64_t> bits(steps, 0);
  std::vector<const Dense*> sums(steps, nullptr);
  const Story* alive = nullptr;
  for (const Story& story : run.stories) {
    if (story.has_died) continue;
    ASSERT_EQ(story.first_step + story.bits.size(), steps) << what;
    for (std::size_t s = 0; s < story.bits.size(); ++s) {
      std::uint64_t& known = bits[story.first_step + s];
      if (sums[story.first_step + s] != nullptr) {
        ASSERT_EQ(known, story.bits[s]) << what << ", step " << s;
      }
      known = story.bits[s];
      sums[story.first_step + s] = &story.sums[s];
    }
    if (alive != nullptr) {
      ASSERT_EQ(alive->weights, story.weights) << what;
    }
    alive = &story;
  }
  ASSERT_NE(alive, nullptr) << what;
  Dense book(n, 0.0);
  std::vector<Dense> unclear;  // last gradients of members that died: added or not
  for (const Story& story : run.stories) {
    if (!story.has_run) continue;
    book = plus(plus(book, story.added), story.unsent, -1);
    if (!story.unclear.empty()) unclear.push_back(story.unclear);
  }
  for (const Dense* sum : sums)
    if (sum != nullptr) book = plus(book, *sum, -1);
  bool is_balanced = false;
  for (std::size_t choice = 0; choice < (std::size_t{1} << unclear.size()) && !is_balanced; ++choice) {
    Dense left = book;
    for (std::size_t m = 0; m < unclear.size(); ++m)
      if ((choice >> m & 1U) != 0) left = plus(left, unclear[m]);
    is_balanced = std::ranges::all_of(left, [](double x) { return x == 0; });
  }
  EXPECT_TRUE(is_balanced) << what << ": mass was lost or made";
}

inline std::vector<Plan> founders(int P) {
  std::vector<Plan> plans(static_cast<std::size_t>(P));
  for (std::size_t m = 0; m < plans.size(); ++m) plans[m].id = m + 1;
  return plans;
}

}  // namespace oktopk::elastic_run
