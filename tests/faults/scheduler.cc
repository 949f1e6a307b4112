// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/scheduler.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"

namespace oktopk::faults {
namespace {

constexpr std::size_t kLogEvents = 60;
constexpr Duration kLongestRun = std::chrono::hours(24 * 40);
constexpr std::uint64_t kMostPasses = 1'000'000;
constexpr auto kRealPatience = std::chrono::seconds(120);  // without one pass of the baton

}  // namespace

Scheduler::~Scheduler() {
  for (const auto& actor : actors_)
    if (actor->thread.joinable()) actor->thread.join();
}

int Scheduler::add(std::string name, std::function<void()> body) {
  const int id = static_cast<int>(actors_.size());
  actors_.push_back(std::make_unique<Actor>());
  Actor& actor = *actors_.back();
  actor.name = std::move(name);
  actor.body = std::move(body);
  actor.awake_since = now_;
  actor.thread = std::thread([this, id, &actor] {
    {
      std::unique_lock lock(mutex_);
      actor.turn.wait(lock, [&] { return baton_ == id; });
    }
    live(id);
  });
  return id;
}

void Scheduler::live(int actor) {
  try {
    check_alive(actor);
    of(actor).body();
  } catch (const Killed&) {
    note(of(actor).name + " is gone");
  } catch (const std::exception& error) {
    failure(of(actor).name + " ended with an error that nobody handled: " + error.what());
  }
  of(actor).is_done = true;
  pass_to(choose());
}

void Scheduler::run() {
  const int first = choose();
  std::unique_lock lock(mutex_);
  if (first == kNobody) return;
  baton_ = first;
  of(first).turn.notify_one();
  std::uint64_t seen = 0;
  while (!over_.wait_for(lock, kRealPatience, [&] { return baton_ == kNobody; })) {
    // A thread that blocks outside of the scheduler can be neither continued nor unwound.
    if (passes_ == seen) {
      std::fprintf(stderr, "an actor hangs outside of the simulation\n%s", report().c_str());
      std::abort();
    }
    seen = passes_;
  }
}

void Scheduler::after(Duration delay, std::function<void()> event) { events_.emplace(now_ + delay, std::move(event)); }

bool Scheduler::wait(int actor, Duration timeout, const std::function<bool()>& is_over, const std::string& for_whom) {
  check_alive(actor);
  Actor& self = of(actor);
  self.is_over = &is_over;
  self.deadline = now_ + timeout;
  self.for_whom = for_whom;
  const int next = choose();
  if (next != actor) {
    pass_to(next);
    std::unique_lock lock(mutex_);
    self.turn.wait(lock, [&] { return baton_ == actor; });
  }
  self.is_over = nullptr;
  check_alive(actor);
  return is_over();
}

void Scheduler::check_alive(int actor) const {
  if (of(actor).is_killed) throw Killed{};
}

void Scheduler::kill(int actor) {
  if (of(actor).is_done || of(actor).is_killed) return;
  note(of(actor).name + " is killed");
  of(actor).is_killed = true;
  of(actor).is_paused = false;
}

void Scheduler::pause(int actor) {
  if (of(actor).is_done || of(actor).is_killed) return;
  note(of(actor).name + " is paused");
  of(actor).is_paused = true;
}

void Scheduler::resume(int actor) {
  if (!of(actor).is_paused) return;
  note(of(actor).name + " goes on");
  of(actor).is_paused = false;
  of(actor).awake_since = now_;
}

bool Scheduler::can_go_on(const Actor& actor) const {
  if (actor.is_done || actor.is_paused) return false;
  return actor.is_killed || actor.is_over == nullptr || now_ >= actor.deadline || (*actor.is_over)();
}

// The next actor; kNobody when all have ended.
int Scheduler::choose() {
  for (;;) {
    std::vector<int> ready;
    for (int a = 0; a < static_cast<int>(actors_.size()); ++a)
      if (can_go_on(of(a))) ready.push_back(a);
    if (!ready.empty()) return ready[random_.below(ready.size())];
    if (!advance()) return kNobody;
  }
}

// To the next event or deadline. False when nothing is left to happen.
bool Scheduler::advance() {
  const Actor* next = nullptr;
  bool all_done = true;
  for (const auto& actor : actors_) {
    all_done = all_done && actor->is_done;
    if (actor->is_done || actor->is_paused) continue;
    if (next == nullptr || actor->deadline < next->deadline) next = actor.get();
  }
  if (all_done) return false;
  if (now_ > kLongestRun || passes_ > kMostPasses) end_all("the run does not end");
  if (!events_.empty() && (next == nullptr || events_.begin()->first <= next->deadline)) {
    now_ = std::max(now_, events_.begin()->first);
    const auto event = std::move(events_.begin()->second);
    events_.erase(events_.begin());
    event();
  } else if (next != nullptr) {
    now_ = std::max(now_, next->deadline);
  } else {
    end_all("");  // only actors that are paused for ever
  }
  return true;
}

void Scheduler::end_all(const std::string& why) {
  if (!why.empty()) failure(why);
  for (int a = 0; a < static_cast<int>(actors_.size()); ++a) kill(a);
}

void Scheduler::pass_to(int actor) {
  const std::lock_guard lock(mutex_);
  baton_ = actor;
  ++passes_;
  (actor == kNobody ? over_ : of(actor).turn).notify_one();
}

void Scheduler::note(std::string text) {
  history_ = hash_text(text, history_ + static_cast<std::uint64_t>(now_.count()));
  log_.emplace_back(now_, std::move(text));
  if (log_.size() > kLogEvents) log_.pop_front();
}

std::string Scheduler::report() const {
  std::string text = "last events (virtual seconds):\n";
  for (const auto& [time, what] : log_)
    text += text_of("  ", std::chrono::duration<double>(time).count(), "  ", what, "\n");
  text += "who waits for whom:\n";
  for (const auto& actor : actors_) {
    if (actor->is_done) continue;
    text += text_of("  ", actor->name, actor->is_paused ? " (paused)" : "", actor->is_killed ? " (killed)" : "",
                    actor->is_over == nullptr ? " runs" : " waits for ", actor->for_whom, "\n");
  }
  return text;
}

void Scheduler::failure(std::string text) {
  note("FAILURE: " + text);
  failures_.push_back(std::move(text));
}

}  // namespace oktopk::faults
