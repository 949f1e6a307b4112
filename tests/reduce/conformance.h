// SPDX-License-Identifier: Apache-2.0
// The synchronisers behind one interface, for the suites that hold all of them to the same laws, and the Reducers that
// they are made of. A new kind of synchroniser is one row of kinds().
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/elastic/elastic_reducer.h"
#include "oktopk/reduce/node_reducer.h"
#include "tests/reduce/bucketed.h"
#include "tests/support/training.h"

namespace oktopk::conformance {

inline constexpr Index n = kValues;
inline constexpr std::size_t k = 24;

// Members that neither come nor go.
class SteadyWorld final : public ElasticWorld {
 public:
  explicit SteadyWorld(Communicator& comm) : comm_(comm) {
    membership_.epoch = 1;
    for (int r = 0; r < comm.size(); ++r) membership_.ids.push_back(static_cast<MemberId>(r) + 1);
    membership_.joined = membership_.ids;
  }
  Communicator& comm() override { return comm_; }
  const Membership& membership() const override { return membership_; }
  bool has_joiners() override { return false; }
  const Membership& regroup(std::uint64_t /*committed*/) override { fail<CommError>("steady world: a member failed"); }

 private:
  Communicator& comm_;
  Membership membership_;
};

// A Reducer of this rank, and where its values begin in the gradient.
struct Part {
  const Reducer& reducer;
  Index base;
};

// A synchroniser of any kind. Some kinds do without forget() or metrics().
class Tested {
 public:
  template <class Sync>
  explicit Tested(std::unique_ptr<Sync> sync, std::unique_ptr<ElasticWorld> world = nullptr)
      : as_(sync.get()), world_(std::move(world)), sync_(std::move(sync)) {}

  Synchroniser* operator->() const { return sync_.get(); }

  // False: this kind has no such call.
  bool forget() {
    return std::visit(
        [](auto* sync) {
          constexpr bool kHas = requires { sync->forget(); };
          if constexpr (kHas) sync->forget();
          return kHas;
        },
        as_);
  }

  // REQUIRES: no NodeReducer, which has none.
  StepMetrics metrics() const {
    return std::visit(
        [](const auto* sync) -> StepMetrics {
          if constexpr (requires { sync->metrics(); })
            return sync->metrics();
          else
            fail<UsageError>("conformance: a NodeReducer has no metrics");
        },
        as_);
  }

  std::uint64_t steps() const {
    if (const auto* nodes = std::get_if<NodeReducer*>(&as_)) return (*nodes)->steps();
    return parts().front().reducer.steps();
  }
  // None on a rank that does not lead its node.
  std::vector<Part> parts() const {
    if (const auto* sync = std::get_if<Reducer*>(&as_)) return {{**sync, 0}};
    if (const auto* sync = std::get_if<ElasticReducer*>(&as_)) return {{(*sync)->reducer(), 0}};
    std::vector<Part> all;
    if (const auto* sync = std::get_if<NodeReducer*>(&as_)) {
      if ((*sync)->reducer() != nullptr) all.push_back({*std::as_const(**sync).reducer(), 0});
      return all;
    }
    const BucketedReducer& buckets = *std::get<BucketedReducer*>(as_);
    for (std::size_t b = 0; b < buckets.buckets().size(); ++b)
      all.push_back({buckets.reducer(b), buckets.buckets()[b].range.begin});
    return all;
  }

 private:
  std::variant<Reducer*, BucketedReducer*, NodeReducer*, ElasticReducer*> as_;
  std::unique_ptr<ElasticWorld> world_;
  std::unique_ptr<Synchroniser> sync_;
};

struct Kind {
  std::string name;
  std::string saver;  // as messages about saved states call it
  int group;          // ranks whose gradients go into one residual
  Tested (*make)(Communicator& comm, const ReducerOptions& options);
};

template <int group>
Tested make_nodes(Communicator& comm, const ReducerOptions& options) {
  return Tested(std::make_unique<NodeReducer>(comm, n, options, NodeOptions{.group = group}));
}
inline Tested make_flat(Communicator& comm, const ReducerOptions& options) {
  return Tested(std::make_unique<Reducer>(comm, n, options));
}
inline Tested make_buckets(Communicator& comm, const ReducerOptions& options) {
  return Tested(std::make_unique<BucketedReducer>(comm, kTensors, options, kSize));
}
inline Tested make_elastic(Communicator& comm, const ReducerOptions& options) {
  auto world = std::make_unique<SteadyWorld>(comm);
  auto sync = std::make_unique<ElasticReducer>(*world, n, options);
  return Tested(std::move(sync), std::move(world));
}

inline const std::array<Kind, 5>& kinds() {
  static const std::array<Kind, 5> all = {{
      {"reducer", "a Reducer", 1, make_flat},
      {"buckets", "a BucketedReducer", 1, make_buckets},
      {"nodes_of_2", "a NodeReducer", 2, make_nodes<2>},
      {"nodes_of_3", "a NodeReducer", 3, make_nodes<3>},
      {"elastic", "a Reducer", 1, make_elastic},
  }};
  return all;
}

struct Case {
  Kind kind;
  TestedMethod method;

  Tested make(Communicator& comm) const { return kind.make(comm, method.options(k)); }
  std::string name() const { return kind.name + "_" + method.name(); }
};
inline void PrintTo(const Case& c, std::ostream* out) { *out << c.name(); }
inline std::string case_name(const testing::TestParamInfo<Case>& info) { return info.param.name(); }

// Every kind that `fits` with every method.
template <class Fits>
std::vector<Case> cases(const Fits& fits) {
  std::vector<Case> all;
  for (const Kind& kind : kinds())
    for (const TestedMethod& method : all_methods())
      if (fits(kind)) all.push_back({kind, method});
  return all;
}
inline std::vector<Case> all_cases() {
  return cases([](const Kind&) { return true; });
}
inline std::vector<Case> reducer_cases() {
  return cases([](const Kind& kind) { return kind.name == "reducer"; });
}

// Two dense steps, two with more entries, then k.
inline ReducerOptions staged_options(const TestedMethod& method) {
  ReducerOptions options = method.options(k);
  options.warmup = {{2, 1}, {2, 0.2}};
  return only_used(options);
}

inline std::vector<float> accumulator_of(const Reducer& reducer) {
  const auto values = state_of(reducer).unsent.values();
  return {values.begin(), values.end()};
}

inline std::vector<float> dyadic_of(const Communicator& comm, std::uint64_t step) {
  return gradient_of(comm, step, Input::dyadic);
}

// This rank's residuals, over [0, n).
inline Dense residual_of(const Tested& tested) {
  Dense all(n, 0.0);
  for (const auto& [reducer, base] : tested.parts()) {
    const std::vector<float> values = accumulator_of(reducer);
    for (std::size_t i = 0; i < values.size(); ++i) all[base + i] = values[i];
  }
  return all;
}

// This rank's owner memory, over [0, n).
inline Dense memory_of(const Tested& tested) {
  Dense all(n, 0.0);
  for (const auto& [reducer, base] : tested.parts()) {
    const OwnerMemory memory = state_of(reducer).unsent.memory();
    for (std::size_t i = 0; i < memory.values.size(); ++i)
      if (memory.values[i] != 0) all[base + memory.index(i)] += double{memory.values[i]};
  }
  return all;
}

// Residuals and owner memory of all ranks. Collective.
inline Dense owed_by_all(Communicator& comm, const Tested& tested) {
  return add_up(gather_dense(comm, plus(residual_of(tested), memory_of(tested))));
}

// The sum that the last step applied; on rank 0, which leads its node.
inline Dense applied_by(const Tested& tested) {
  Dense all(n, 0.0);
  for (const auto& [reducer, base] : tested.parts()) {
    const Dense sum = sum_applied(reducer);
    for (std::size_t i = 0; i < sum.size(); ++i) all[base + i] = sum[i];
  }
  return all;
}

// Whether all ranks have the same bits: the same answer on all. Collective.
inline bool is_same_on_all(Communicator& comm, std::uint64_t bits) {
  const std::vector<double> high = ask_all(comm, static_cast<double>(bits >> 32U));
  const std::vector<double> low = ask_all(comm, static_cast<double>(bits & 0xffffffffU));
  return std::ranges::count(high, high[0]) == std::ssize(high) && std::ranges::count(low, low[0]) == std::ssize(low);
}

}  // namespace oktopk::conformance
