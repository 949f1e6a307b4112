// SPDX-License-Identifier: Apache-2.0
// One table of calls that every synchroniser refuses. Each of them: the same UsageError on all ranks, which has the
// words of the row; what save() gives is unchanged, and the next step is as if nothing had happened.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "oktopk/comm/collectives.h"
#include "oktopk/optim/optimiser.h"
#include "tests/reduce/conformance.h"

namespace oktopk::refusals_test {
namespace {

using namespace conformance;  // NOLINT(google-build-using-namespace)

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// The rank of a call: `tested` has made `steps` steps, and so has everything that `other()` makes.
struct Scene {
  Communicator& comm;
  const Case& subject;
  const Tested& tested;
  std::uint64_t steps;

  bool is_last() const { return comm.rank() == comm.size() - 1; }
  std::vector<float> gradient() const { return gradient_of(comm, steps); }
  // Collective: a state of another kind or with other options.
  Bytes saved(const Kind& kind, const ReducerOptions& options, std::uint64_t made = 1) const {
    const Tested other = kind.make(comm, options);
    for (std::uint64_t step = 0; step < made; ++step) other->step(gradient_of(comm, step));
    return other->save();
  }
  // Collective: the states of a world without the last rank.
  std::vector<Bytes> of_fewer(std::uint64_t made = 0) const {
    const auto fewer = comm.split(is_last() ? 1 : 0, comm.rank());
    const Tested other = subject.make(*fewer);
    for (std::uint64_t step = 0; step < made; ++step) other->step(gradient_of(comm, step));
    std::vector<Bytes> states = gathered(other->save());
    states.pop_back();
    return states;
  }
  // Collective: a Reducer's state of one value more.
  Bytes longer() const { return Reducer(comm, n + 1, subject.method.options(k)).save(); }
  std::vector<Bytes> gathered(const Bytes& mine) const {
    const std::vector<std::size_t> capacities(static_cast<std::size_t>(comm.size()), 100000);
    Gathered all;
    allgatherv(comm, mine, capacities, all);
    std::vector<Bytes> states;
    for (int r = 0; r < comm.size(); ++r) states.emplace_back(all.of(r).begin(), all.of(r).end());
    return states;
  }
};

using Call = std::function<void()>;

// In `words` @ stands for the last rank, and % for the kind as messages about states call it.
struct Refusal {
  std::string name;
  std::function<Call(const Scene&)> arrange;  // collective; returns what is to be refused
  std::vector<std::string> words;
  bool (*fits)(const Case&, int P) = [](const Case&, int) { return true; };
};

bool ranks_differ(const Case&, int P) { return P > 1; }
bool repairs_nothing(const Case& c, int P) { return P > 1 && c.kind.name != "elastic"; }
bool is_flat(const Case& c, int P) { return P > 1 && c.kind.group == 1; }
bool is_oktopk(const Case& c, int) { return c.method.preset == "oktopk"; }
bool is_sparse(const Case& c, int) { return c.method.preset != "dense"; }

// A step in which the last rank's input is damaged.
std::function<Call(const Scene&)> step_with(std::function<void(std::vector<float>& gradient, float& scale)> damage) {
  return [damage](const Scene& s) -> Call {
    return [s, damage] {
      auto gradient = s.gradient();
      float scale = 1;
      if (s.is_last()) damage(gradient, scale);
      s.tested->step(gradient, scale);
    };
  };
}

std::function<Call(const Scene&)> load_of(std::function<Bytes(const Scene&)> choose) {
  return [choose](const Scene& s) -> Call { return [s, state = choose(s)] { s.tested->load(state); }; };
}

// The state of rank 0, which leads its node, is of a run with other options.
std::function<Call(const Scene&)> load_with(std::function<void(ReducerOptions&)> change) {
  return load_of([change](const Scene& s) {
    ReducerOptions options = s.subject.method.options(k);
    change(options);
    const Bytes other = s.saved(s.subject.kind, only_used(options), s.steps);
    return s.comm.rank() == 0 ? other : s.tested->save();
  });
}

std::function<Call(const Scene&)> load_all_of(std::function<void(const Scene&, std::vector<Bytes>& states)> change) {
  return [change](const Scene& s) -> Call {
    std::vector<Bytes> states = s.gathered(s.tested->save());
    change(s, states);
    return [s, states] { s.tested->load_all(states); };
  };
}

// The last rank makes another call than the others.
std::function<Call(const Scene&)> desynchronised(std::function<void(const Scene&)> usual,
                                                 std::function<void(const Scene&)> odd) {
  return [usual, odd](const Scene& s) -> Call { return [=] { s.is_last() ? odd(s) : usual(s); }; };
}
void make_step(const Scene& s) { s.tested->step(s.gradient()); }
void load_own(const Scene& s) { s.tested->load(s.tested->save()); }

// Before the first step, too.
const std::vector<Refusal>& unfit_steps() {
  static const std::vector<Refusal> rows = {
      {"nan", step_with([](auto& g, float&) { g[7] = g[50] = kNan; }), {"rank @: gradient[7] = nan"}},
      {"inf", step_with([](auto& g, float&) { g[n - 1] = kInf; }), {"rank @: gradient[", "] = inf"}},
      // Taking back the buckets before it by arithmetic would lose their residuals.
      {"explosion",
       step_with([](auto& g, float&) {
         for (float& x : g) x *= 1e30F;
         g[20] = kNan;
       }),
       {"rank @: gradient[20] = nan"}},
      {"minus_inf", step_with([](auto& g, float&) { g[0] = -kInf; }), {"rank @: gradient[0] = -inf"}},
      {"short", step_with([](auto& g, float&) { g.pop_back(); }), {"rank @: ", "290 entries"}},
      {"long", step_with([](auto& g, float&) { g.push_back(kNan); }), {"rank @: ", "292 entries"}},
      {"scale_nan", step_with([](auto&, float& scale) { scale = kNan; }), {"rank @: ", "scale = nan"}},
      {"scale_inf", step_with([](auto&, float& scale) { scale = kInf; }), {"rank @: ", "scale = inf"}},
  };
  return rows;
}

const std::vector<Refusal>& refusals() {
  static const std::vector<Refusal> rows = {
      {"other_size",
       [](const Scene& s) -> Call {
         return [s] {
           std::vector<float> x(n - 1);
           s.tested->subtract_unsent(x);
         };
       },
       {"290 values, but n = 291"}},
      {"propose",
       [](const Scene& s) -> Call {
         return [s] {
           EXPECT_THROW(s.tested->propose_flush(), UsageError);
           EXPECT_THROW(s.tested->commit(), UsageError);
           EXPECT_THROW(s.tested->roll_back(), UsageError);
           EXPECT_FALSE(s.tested->is_open());
           s.tested->propose(s.gradient());
         };
       },
       {"propose(): only a Reducer makes steps in two halves"},
       [](const Case& c, int) { return c.kind.name != "reducer"; }},
      {"load_damaged",
       load_of([](const Scene& s) {
         Bytes state = s.tested->save();
         if (s.is_last()) state[state.size() / 2] ^= std::byte{4};
         return state;
       }),
       {"rank @: state: damaged"}},
      {"load_cut",
       load_of([](const Scene& s) {
         Bytes state = s.tested->save();
         if (s.comm.rank() == 0) state.pop_back();
         return state;
       }),
       {"rank 0: state: "}},
      {"load_nothing",
       load_of([](const Scene& s) { return s.is_last() ? Bytes{} : s.tested->save(); }),
       {"rank @: state: 0 bytes"}},
      {"load_of_another_rank",
       load_of([](const Scene& s) {
         return s.gathered(s.tested->save())[static_cast<std::size_t>(s.comm.size() - 1 - s.comm.rank())];
       }),
       {"state: saved by rank "},
       ranks_differ},
      {"load_of_another_step",
       load_of([](const Scene& s) {
         const Bytes earlier = s.saved(s.subject.kind, s.subject.method.options(k));
         return s.is_last() ? earlier : s.tested->save();
       }),
       {"different numbers of steps, "},
       ranks_differ},
      {"load_of_another_k",
       load_with([](auto& o) { o.k = k + 7; }),
       {"state: saved with k ", "but this reducer has k ", ": load_all() takes"},
       is_sparse},
      {"load_of_another_decay", load_with([](auto& o) { o.decay = 0.5F; }), {"decay 0.5"}, is_sparse},
      {"load_of_another_selector", load_with([](auto& o) { o.selector = "exact"; }), {"selector exact"}, is_oktopk},
      {"load_of_another_bucket",
       load_with([](auto& o) { o.allreduce.bucket = 3; }),
       {"saved with bucket 3, but this reducer has bucket 4"},
       is_oktopk},
      {"load_of_another_tau", load_with([](auto& o) { o.allreduce.tau = 5; }), {"saved with tau 5"}, is_oktopk},
      {"load_of_other_kinds",
       [](const Scene& s) -> Call {
         for (const Kind& kind : kinds()) {
           if (kind.saver == s.subject.kind.saver) continue;
           const Bytes state = s.saved(kind, s.subject.method.options(k));
           const std::string text = message_of([&] { s.tested->load(state); });
           EXPECT_NE(text.find("state: saved by " + kind.saver + ", but "), std::string::npos) << text;
         }
         const Bytes state = SparseSGD(*s.tested.operator->(), {}).save();
         return [s, state] { s.tested->load(state); };
       },
       {"rank 0: state: saved by an optimiser, but % loads it"}},
      {"load_all_of_none", load_all_of([](const Scene&, auto& states) { states.clear(); }), {"no states"}},
      {"load_all_damaged",
       load_all_of([](const Scene&, auto& states) { states.back().back() ^= std::byte{1}; }),
       {"state: damaged"}},
      {"load_all_cut_for_one",
       load_all_of([](const Scene& s, auto& states) {
         if (s.is_last()) states[0].pop_back();
         if (s.is_last()) states.back().clear();
       }),
       {"rank @: ", "state"},
       ranks_differ},
      {"load_all_out_of_order",
       load_all_of([](const Scene&, auto& states) { std::swap(states[0], states[1]); }),
       {"states must be in rank order"},
       ranks_differ},
      {"load_all_of_too_few",
       load_all_of([](const Scene&, auto& states) { states.pop_back(); }),
       {" ranks, but "},
       ranks_differ},
      {"load_all_of_another_step",
       load_all_of([](const Scene& s, auto& states) {
         states[0] = s.gathered(s.saved(s.subject.kind, s.subject.method.options(k)))[0];
       }),
       {" steps"},
       is_flat},
      {"load_all_of_other_options",
       load_all_of([](const Scene& s, auto& states) {
         ReducerOptions options = s.subject.method.options(k);
         options.k = k + 7;
         states[0] = s.gathered(s.saved(s.subject.kind, options, s.steps))[0];
       }),
       {"other options"},
       [](const Case& c, int P) { return is_flat(c, P) && is_sparse(c, P); }},
      {"load_of_another_n",
       load_of([](const Scene& s) { return s.longer(); }),
       {"n = 292"},
       [](const Case& c, int) { return c.kind.saver == "a Reducer"; }},
      {"load_all_of_another_n",
       load_all_of([](const Scene& s, auto& states) { states = s.gathered(s.longer()); }),
       {"n = 292"},
       [](const Case& c, int) { return c.kind.name != "buckets"; }},
      {"load_all_of_different_states",
       load_all_of([](const Scene& s, auto& states) {
         ReducerOptions options = s.subject.method.options(k);
         options.k = k + 7;
         const std::vector<Bytes> others = s.gathered(s.saved(s.subject.kind, options, s.steps));
         if (s.is_last()) states = others;
       }),
       {"different states"},
       [](const Case& c, int P) { return is_flat(c, P) && is_sparse(c, P); }},
      {"load_all_of_fewer_damaged",
       load_all_of([](const Scene& s, auto& states) {
         states = s.of_fewer();
         states[0].back() ^= std::byte{1};
       }),
       {"state: damaged"},
       ranks_differ},
      {"load_all_of_fewer_of_another_step",
       load_all_of([](const Scene& s, auto& states) {
         states = s.of_fewer(1);
         states[0] = s.of_fewer(2)[0];
       }),
       {"saved after 1 steps, state 0 after 2"},
       [](const Case& c, int P) { return is_flat(c, P) && P > 2; }},
      {"load_all_of_fewer_for_one",
       load_all_of([](const Scene& s, auto& states) {
         const std::vector<Bytes> fewer = s.of_fewer();
         states = s.gathered(s.saved(s.subject.kind, s.subject.method.options(k), 0));
         if (s.is_last()) states = fewer;
       }),
       {"different states"},
       is_flat},
      {"flush_where_others_step",
       desynchronised(make_step, [](const Scene& s) { s.tested->flush(); }),
       {"rank @ calls flush() after ", "but rank 0 calls step() after "},
       ranks_differ},
      {"load_where_others_step",
       desynchronised(make_step, load_own),
       {"rank @ ", "load()", "rank 0 ", "step()"},
       // BucketedReducer names the bucket on the ranks that step only
       [](const Case& c, int P) { return repairs_nothing(c, P) && c.kind.name != "buckets"; }},
      {"load_where_others_load_all",
       [](const Scene& s) -> Call {
         return [s, states = s.gathered(s.tested->save())] { s.is_last() ? load_own(s) : s.tested->load_all(states); };
       },
       {"load()", "load_all()"},
       repairs_nothing},
  };
  return rows;
}

std::vector<std::string> filled_in(std::vector<std::string> words, const Case& subject, int P) {
  for (std::string& text : words)
    for (const auto& [mark, word] : {std::pair{'@', std::to_string(P - 1)}, {'%', subject.kind.saver}})
      if (const std::size_t at = text.find(mark); at != std::string::npos) text.replace(at, 1, word);
  return words;
}

class Refusals : public testing::TestWithParam<Case> {};

TEST_P(Refusals, call_is_the_same_error_on_all_ranks_and_leaves_no_trace) {
  const Case& subject = GetParam();
  for (const int P : {1, 2, 3, 5}) {
    const auto texts = gather_world("threads", P, [&](Communicator& comm) {
      std::vector<std::string> seen;
      const Tested tested = subject.make(comm);
      const Tested twin = subject.make(comm);
      std::uint64_t steps = 0;
      const auto go_on = [&] {
        const auto gradient = gradient_of(comm, steps++);
        EXPECT_EQ(result_of(tested->step(gradient)), result_of(twin->step(gradient)));
        EXPECT_EQ(tested->save(), twin->save());
      };
      const auto expect_refusal = [&](const Refusal& row) {
        if (!row.fits(subject, P)) return;
        SCOPED_TRACE(text_of(row.name, ", P = ", P, ", step ", steps));
        const Call call = row.arrange({comm, subject, tested, steps});
        const Bytes before = tested->save();
        seen.push_back(message_of(call));
        for (const std::string& words : filled_in(row.words, subject, P))
          EXPECT_NE(seen.back().find(words), std::string::npos) << words << "\nin: " << seen.back();
        EXPECT_EQ(tested->save(), before);
        if (steps > 0) go_on();
      };
      for (const Refusal& row : unfit_steps()) expect_refusal(row);
      for (int step = 0; step < 4; ++step) go_on();
      for (const Refusal& row : unfit_steps()) expect_refusal(row);
      for (const Refusal& row : refusals()) expect_refusal(row);
      return seen;
    });
    for (const auto& seen : texts)
      for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], texts[0][i]) << "P = " << P;
  }
}

INSTANTIATE_TEST_SUITE_P(Synchronisers, Refusals, testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace oktopk::refusals_test
