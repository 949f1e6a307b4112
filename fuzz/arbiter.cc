// SPDX-License-Identifier: Apache-2.0
// Members that join, report and get lost in any order, before an Arbiter; and any text as a membership. A decision
// loses nobody: every member of the last epoch and every candidate is in the next epoch or named as lost.
#include <algorithm>
#include <set>
#include <string>

#include "fuzz/target.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/rendezvous_arbiter.h"

namespace {

using namespace oktopk;

constexpr int kMostActions = 400;

bool are_equal(const Membership& a, const Membership& b) {
  return a.epoch == b.epoch && a.ids == b.ids && a.lost == b.lost && a.joined == b.joined && a.committed == b.committed;
}

void read_text(const std::string& text) {
  try {
    const Membership membership = read_membership(text);
    fuzz::check(are_equal(read_membership(write_membership(membership)), membership));
  } catch (const CommError&) {
  }
}

class Job {
 public:
  explicit Job(fuzz::Input& input) : input_(input) {}

  void act() {
    const unsigned action = input_.take();
    const MemberId id = input_.take() % (last_ + 2);
    switch (action % 4) {
      case 0:
        last_ = arbiter_.join(input_.take() % 5);
        fuzz::check(candidates_.insert(last_).second && !members_.contains(last_));
        break;
      case 1: {
        const std::uint64_t committed = input_.take();
        const bool is_taken = arbiter_.report(id, committed, now_);
        fuzz::check(is_taken == members_.contains(id));
        break;
      }
      case 2:
        arbiter_.lose(id);
        candidates_.erase(id);
        if (members_.erase(id) > 0) lost_.insert(id);
        break;
      default:
        now_ += std::chrono::milliseconds(input_.take() * 10);
        if (const auto next = arbiter_.decide(now_)) enter(*next);
    }
    fuzz::check(arbiter_.candidates() == candidates_.size());
  }

 private:
  void enter(const Membership& next) {
    const std::set<MemberId> ids(next.ids.begin(), next.ids.end());
    fuzz::check(next.epoch == ++epoch_ && std::ranges::is_sorted(next.ids) && ids.size() == next.ids.size());
    fuzz::check(std::set<MemberId>(next.joined.begin(), next.joined.end()) == candidates_);
    for (const MemberId id : members_)
      if (!ids.contains(id)) lost_.insert(id);
    fuzz::check(std::set<MemberId>(next.lost.begin(), next.lost.end()) == lost_ && next.lost.size() == lost_.size());
    members_.insert(candidates_.begin(), candidates_.end());
    for (const MemberId id : lost_) members_.erase(id);
    fuzz::check(members_ == ids);
    candidates_.clear();
    lost_.clear();
    if (!ids.empty()) fuzz::check(are_equal(read_membership(write_membership(next)), next));
  }

  fuzz::Input& input_;
  Arbiter arbiter_{std::chrono::seconds(1)};
  Arbiter::Time now_;
  std::uint64_t epoch_ = 0;
  MemberId last_ = 0;
  std::set<MemberId> members_, candidates_, lost_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  if (input.take() % 4 == 0) {
    read_text(std::string(reinterpret_cast<const char*>(input.rest().data()), input.rest().size()));
    return 0;
  }
  Job job(input);
  for (int i = 0; i < kMostActions && !input.rest().empty(); ++i) job.act();
  return 0;
}
