// SPDX-License-Identifier: Apache-2.0
// Members that come, ask, leave, lose their connection and repeat old words in any order, before an Arbiter that is
// started anew now and then; and any text as a membership, a word or a state. A decision loses nobody: every member of
// the last epoch is in the next one or named as lost, and an answer names an epoch that the member is in.
#include <algorithm>
#include <deque>
#include <memory>
#include <set>
#include <string>

#include "fuzz/target.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/rendezvous/arbiter.h"

namespace {

using namespace oktopk;
using namespace std::chrono_literals;

constexpr int kMostActions = 400;
constexpr std::size_t kMostMembers = 12;

// A text that can be read is written and read again as the same.
template <class Read, class Write>
void read_text(const std::string& text, const Read& read, const Write& write) {
  try {
    const auto value = read(text);
    fuzz::check(write(read(write(value))) == write(value));
  } catch (const CommError&) {
  }
}

class Job {
 public:
  explicit Job(fuzz::Input& input) : input_(input) { start({}); }

  void act() {
    const unsigned action = input_.take();
    if (action % 8 == 0 && sides_.size() < kMostMembers)
      sides_.emplace_back(MemberWord{.token = 1 + sides_.size(), .least = input_.take() % 4U});
    if (action % 8 == 1) return restart(action / 8 % 2 == 0);
    if (action % 8 == 2) return pass_time();
    if (sides_.empty()) return;
    MemberSide& side = sides_[input_.take() % sides_.size()];
    if (action % 8 == 3) return arbiter_->detach(side.word().token, now_);
    if (action % 8 == 4) return leave(side);
    if (action % 8 == 5) side.want_epoch(input_.take());
    if (action % 8 == 6 && !old_.empty()) return repeat(old_[input_.take() % old_.size()]);
    say(side);
  }

 private:
  void start(const ArbiterState& state) {
    arbiter_ = std::make_unique<Arbiter>(
        ArbiterOptions{.grace = 1s, .reattach = 200ms, .settle = 100ms, .random = [this] { return ++runs_; }}, now_,
        state);
  }
  void restart(bool has_state) {
    const ArbiterState state = arbiter_->state();
    const std::string text = write_state(state);
    fuzz::check(write_state(read_arbiter_state(text)) == text);
    start(has_state ? state : ArbiterState{});
    if (has_state) fuzz::check(write_state(arbiter_->state()) == text);
  }
  void pass_time() {
    const auto time = std::chrono::milliseconds(input_.take() * 10);
    now_ += time;
    if (input_.take() % 8 == 0) arbiter_->slept(time);
    const Membership last = arbiter_->present();
    if (!arbiter_->decide(now_)) return fuzz::check(arbiter_->present().epoch == last.epoch);
    check_next(last, arbiter_->present());
  }
  static void check_next(const Membership& last, const Membership& next) {
    const std::set<MemberId> ids(next.ids.begin(), next.ids.end()), lost(next.lost.begin(), next.lost.end());
    fuzz::check(next.epoch == last.epoch + 1 && !ids.empty());
    fuzz::check(std::ranges::is_sorted(next.ids) && ids.size() == next.ids.size() && lost.size() == next.lost.size());
    for (const MemberId id : last.ids) fuzz::check(ids.contains(id) != lost.contains(id));
    for (const MemberId id : next.joined) fuzz::check(ids.contains(id) && id > last.last_id && id <= next.last_id);
    fuzz::check(ids.size() + lost.size() == last.ids.size() + next.joined.size());
  }

  ArbiterAnswer hear(const MemberWord& word) {
    const ArbiterAnswer answer = arbiter_->hear(read_word(write_word(word)), now_);
    if (answer.kind == ArbiterAnswer::Kind::membership)
      fuzz::check(std::ranges::binary_search(answer.membership.ids, answer.id));
    return answer;
  }
  void say(MemberSide& side) {
    if (!side.refusal().empty()) return;
    const MemberWord word = side.next_word();
    old_.push_back(word);
    side.hear(word, hear(word), now_);
    fuzz::check(side.word().id == 0 || std::ranges::binary_search(side.word().last.ids, side.word().id));
  }
  void leave(MemberSide& side) {
    MemberWord word = side.next_word();
    word.want = MemberWord::Want::leave;
    hear(word);
  }
  void repeat(const MemberWord& word) { hear(word); }

  fuzz::Input& input_;
  Arbiter::Time now_;
  std::uint64_t runs_ = 0;
  std::unique_ptr<Arbiter> arbiter_;
  std::deque<MemberSide> sides_;
  std::deque<MemberWord> old_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const unsigned kind = input.take() % 8;
  if (kind < 3) {
    const std::string text = input.text();
    if (kind == 0) read_text(text, &read_membership, &write_membership);
    if (kind == 1) read_text(text, &read_word, &write_word);
    if (kind == 2) read_text(text, &read_arbiter_state, &write_state);
    return 0;
  }
  Job job(input);
  for (int i = 0; i < kMostActions && !input.rest().empty(); ++i) job.act();
  return 0;
}
