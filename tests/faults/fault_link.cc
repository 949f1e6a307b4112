// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/fault_link.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/comm/rendezvous/times.h"
#include "tests/faults/arbiter_host.h"

namespace oktopk::faults {
namespace {

using namespace rendezvous;

// A paused process is looked at again.
constexpr Duration kLook = std::chrono::milliseconds(50);

}  // namespace

FaultLink::FaultLink(ArbiterHost& host, int actor, std::uint64_t least)
    : host_(host),
      actor_(actor),
      side_({.token = static_cast<std::uint64_t>(actor) + 1, .least = least}),
      pause_(kFirstPause) {}

void FaultLink::want_epoch(std::uint64_t committed) {
  side_.want_epoch(committed);
  if (!is_talking_) run_after(Duration(1));
}

void FaultLink::run_after(Duration pause) {
  host_.scheduler().after(pause, [self = shared_from_this(), turn = ++turn_] {
    if (turn == self->turn_) self->run();
  });
}

bool FaultLink::is_away(std::function<void()> later) {
  if (is_over_ || host_.scheduler().is_killed(actor_)) return true;
  if (!host_.scheduler().is_paused(actor_)) return false;
  host_.scheduler().after(kLook, std::move(later));
  return true;
}

void FaultLink::run() {
  const auto again = [self = shared_from_this(), turn = turn_] {
    if (turn == self->turn_) self->run();
  };
  if (!side_.refusal().empty() || is_away(again)) return;
  if (connection_ == 0) connection_ = host_.connect(shared_from_this());
  if (connection_ == 0) return miss("no connection");
  is_talking_ = true;
  host_.say(connection_, side_.next_word());
  host_.scheduler().after(kReplyTime, [self = shared_from_this(), turn = ++turn_] {
    if (turn != self->turn_) return;
    self->host_.close(std::exchange(self->connection_, 0), false);
    self->miss("did not answer");
  });
}

void FaultLink::hear(std::uint64_t connection, const MemberWord& word, const ArbiterAnswer& answer) {
  const auto again = [=, self = shared_from_this()] { self->hear(connection, word, answer); };
  if (connection != connection_ || !is_talking_ || is_away(again)) return;
  is_talking_ = false;
  pause_ = kFirstPause;
  side_.hear(word, answer, host_.now());
  if (side_.refusal().empty()) return run_after(side_.waits() ? Duration(1) : kWordPause);
  ++turn_;
  if (host_.is_sound(*this)) host_.scheduler().failure(text_of("sound actor ", actor_, " is refused: ", answer.why));
  if (expel_) expel_();
}

void FaultLink::lose(std::uint64_t connection) {
  const auto again = [=, self = shared_from_this()] { self->lose(connection); };
  if (connection != connection_ || is_away(again)) return;
  connection_ = 0;
  if (is_talking_) miss("closed the connection");
}

void FaultLink::miss(const std::string& why) {
  is_talking_ = false;
  side_.miss(why, host_.now());
  run_after(pause_);
  pause_ = std::min(2 * pause_, kLongestPause);
}

void FaultLink::leave() {
  if (std::exchange(is_over_, true)) return;
  MemberWord word = side_.next_word();
  word.want = MemberWord::Want::leave;
  if (connection_ != 0 && side_.refusal().empty()) host_.say(connection_, word);
  die(false);
}

void FaultLink::die(bool is_silent) {
  is_over_ = true;
  ++turn_;
  if (connection_ != 0) host_.close(std::exchange(connection_, 0), is_silent);
}

}  // namespace oktopk::faults
