// SPDX-License-Identifier: Apache-2.0
// Runs several actors (simulated processes), each in a thread of its own, exactly one at a time. Whoever has to wait
// passes the baton on; a seeded generator chooses the next actor among those that can go on. Time is virtual: it
// advances to the next event only when no actor can go on, so hours of waiting cost nothing. The seed alone decides the
// run. An actor may consist of several threads, as long as one at a time calls the scheduler.
// COST: one switch of threads per wait, about 10 microseconds.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "oktopk/base/random.h"
#include "oktopk/comm/communicator.h"

namespace oktopk::faults {

using Duration = Communicator::Duration;

// Unwinds an actor that was killed. It is no std::exception: nobody may take it for an error to handle.
struct Killed {};

class Scheduler {
 public:
  explicit Scheduler(std::uint64_t seed) : random_(seed) {}
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;

  // Before run(), or from an actor or event. The body starts when the actor is chosen.
  int add(std::string name, std::function<void()> body);
  // Returns when all actors have ended. Actors that are paused for ever are killed when nobody else is left.
  void run();

  Random& random() { return random_; }
  Duration now() const { return now_; }
  // Runs `event` between two actors, `delay` from now.
  void after(Duration delay, std::function<void()> event);

  // By the actor itself: returns true as soon as is_over(), false after `timeout`. Throws Killed if the actor was
  // killed. `for_whom` says in reports what the actor waits for.
  bool wait(int actor, Duration timeout, const std::function<bool()>& is_over, const std::string& for_whom);
  void sleep(int actor, Duration time) { wait(actor, time, never, "its time"); }
  void check_alive(int actor) const;

  void kill(int actor);
  void pause(int actor);
  void resume(int actor);
  bool is_killed(int actor) const { return of(actor).is_killed; }
  bool is_paused(int actor) const { return of(actor).is_paused; }
  bool is_done(int actor) const { return of(actor).is_done; }
  // Since that time the actor has run without a pause.
  Duration awake_since(int actor) const { return of(actor).awake_since; }

  void note(std::string text);                        // one event of the log
  std::uint64_t history() const { return history_; }  // a hash of all events: equal for equal runs
  std::string report() const;                         // the last events, and who waits for whom
  const std::vector<std::string>& failures() const { return failures_; }
  void failure(std::string text);

 private:
  static bool never() { return false; }
  struct Actor {
    std::string name;
    std::function<void()> body;
    std::condition_variable turn;
    std::thread thread;
    const std::function<bool()>* is_over = nullptr;  // null: can go on
    Duration deadline{};
    Duration awake_since{};
    std::string for_whom;
    bool is_killed = false, is_paused = false, is_done = false;
  };
  Actor& of(int actor) { return *actors_[static_cast<std::size_t>(actor)]; }
  const Actor& of(int actor) const { return *actors_[static_cast<std::size_t>(actor)]; }

  void live(int actor);
  bool can_go_on(const Actor& actor) const;
  int choose();
  bool advance();
  void pass_to(int actor);
  void end_all(const std::string& why);

  static constexpr int kNobody = -1;
  Random random_;
  Duration now_{};
  std::vector<std::unique_ptr<Actor>> actors_;
  std::multimap<Duration, std::function<void()>> events_;  // equal times: first come, first served
  std::deque<std::pair<Duration, std::string>> log_;
  std::uint64_t history_ = 0;
  std::vector<std::string> failures_;

  std::mutex mutex_;  // guards the baton; all else belongs to whoever has the baton
  int baton_ = kNobody;
  std::uint64_t passes_ = 0;
  std::condition_variable over_;
};

}  // namespace oktopk::faults
