// SPDX-License-Identifier: Apache-2.0
// The steps of SparseAdamW and SparseSGD (python/oktopk/torch/optim.py) over tensors in host memory, and over those of
// a GPU: one call for all parameters of a group. Tensors come as addresses, which costs less than asking each for its
// array; python/oktopk/torch/host_step.py and cuda_step.py vouch for them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/optim/adam_rule.h"
#include "oktopk/optim/cuda_step.h"
#include "oktopk/optim/interval_clock.h"
#include "oktopk/optim/tensor_step.h"
#include "python/src/arrays.h"
#include "python/src/gil.h"
#include "python/src/module.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace oktopk::python {
namespace {

// A field of TensorState as a number; pointers are addresses.
template <auto field>
void bind_field(nb::class_<TensorState>& c, const char* name) {
  using Value = std::remove_reference_t<decltype(std::declval<TensorState&>().*field)>;
  using Number = std::conditional_t<std::is_pointer_v<Value>, std::uintptr_t, Value>;
  c.def_prop_rw(
      name, [](const TensorState& tensor) { return (Number)(tensor.*field); },
      [](TensorState& tensor, Number value) { tensor.*field = (Value)value; });
}

void bind_tensor_state(nb::module_& m) {
  nb::class_<TensorState> c(m, "TensorState", "A parameter and its state, by the addresses of their memory.");
  c.def(nb::init<>())
      .def_prop_rw(
          "type", [](const TensorState& tensor) { return static_cast<std::uint32_t>(tensor.type); },
          [](TensorState& tensor, std::uint32_t type) {
            require(type < kWeightTypes, "a type of weights numbered ", type);
            tensor.type = static_cast<WeightType>(type);
          });
  bind_field<&TensorState::size>(c, "size");
  bind_field<&TensorState::weights>(c, "weights");
  bind_field<&TensorState::mean>(c, "mean");
  bind_field<&TensorState::first>(c, "first");
  bind_field<&TensorState::second>(c, "second");
  bind_field<&TensorState::roots>(c, "roots");
  bind_field<&TensorState::last>(c, "last");
  bind_field<&TensorState::arrivals>(c, "arrivals");
  bind_field<&TensorState::indices>(c, "indices");
  bind_field<&TensorState::count>(c, "count");
  bind_field<&TensorState::steps>(c, "steps");
  bind_field<&TensorState::caught_up>(c, "caught_up");
  bind_field<&TensorState::end>(c, "end");
}

// The clock and the tables of one group of parameters.
class LazyGroup {
 public:
  void tick(double rate, double weight_decay, std::uint64_t steps) {
    require(rate >= 0 && weight_decay >= 0 && decay_of_one_step(rate, weight_decay) > 0, "lr = ", rate,
            " and weight_decay = ", weight_decay, ", but they must not be negative, and their product less than 1");
    require(clock_.now() + steps < (1U << 31U), "a clock of ", clock_.now(), " and ", steps,
            " steps, but it has fewer than 2^31");
    for (std::uint64_t step = 0; step < steps; ++step) clock_.tick(rate, weight_decay);
  }
  void jump(double rate, double kept, std::uint64_t steps) {
    require(rate >= clock_.totals().back().rate && std::isfinite(rate) && kept > 0, "a clock with rates of ", rate,
            " in all, and a weight of which ", kept, " is left: this is no saved clock");
    require(clock_.now() + steps < (1U << 31U), "a clock of ", clock_.now(), " and ", steps,
            " steps, but it has fewer than 2^31");
    clock_.jump(steps, {rate, kept});
  }
  const IntervalClock& clock() const { return clock_; }

  template <AdamPart part>
  void adam(const std::vector<TensorState>& tensors, const nb::dict& options, std::size_t threads) {
    AdamStep step{.beta1 = nb::cast<double>(options["beta1"]),
                  .beta2 = nb::cast<double>(options["beta2"]),
                  .epsilon = nb::cast<double>(options["eps"]),
                  .clock = view(options)};
    std::uint32_t most = step.clock.now;
    for (const TensorState& tensor : tensors) most = std::max(most, tensor.steps);
    step.first = first_.up_to(step.beta1, most);
    step.second = second_.up_to(step.beta2, most);
    const WithoutGil free;
    adam_step(tensors, step, threads, part);
  }

  void sgd(const std::vector<TensorState>& tensors, const nb::dict& options, std::size_t threads) {
    SgdStep step{.momentum = nb::cast<double>(options["momentum"]),
                 .weight_decay = nb::cast<double>(options["weight_decay"]),
                 .nesterov = nb::cast<bool>(options["nesterov"]),
                 .clock = view(options)};
    step.powers = first_.up_to(step.momentum, step.clock.now);
    const WithoutGil free;
    sgd_step(tensors, step, threads);
  }

  void pay_decay(const std::vector<TensorState>& tensors, std::size_t threads) const {
    const WithoutGil free;
    oktopk::pay_decay(tensors, clock_.totals().data(), threads);
  }

 private:
  // Rate and decay of a group without a clock are those given.
  ClockView view(const nb::dict& options) const {
    ClockView view = clock_.view();
    view.rate = nb::cast<double>(options["rate"]);
    view.kept = nb::cast<double>(options["kept"]);
    return view;
  }

  IntervalClock clock_;
  PowerTable first_;
  PowerTable second_;
};

std::int64_t bad_indices(const std::vector<TensorState>& tensors) {
  const WithoutGil free;
  return find_bad_indices(tensors);
}

auto one_minus_powers(double beta, std::uint32_t exponent) {
  PowerTable table;
  const PowerView view = table.up_to(beta, exponent);
  return to_numpy(std::vector<double>(view.one_minus, view.one_minus + view.size));
}

// Steps, rate and decay of each stretch, one after the other: plain numbers, for a state_dict().
nb::list runs(const LazyGroup& group) {
  nb::list flat;
  for (const IntervalClock::Run& run : group.clock().runs()) {
    flat.append(run.steps);
    flat.append(run.rate);
    flat.append(run.weight_decay);
  }
  return flat;
}

// (rates, kept) of the steps from `begin` to now.
auto totals(const LazyGroup& group, std::size_t begin) {
  std::vector<double> flat;
  const std::span<const StepTotals> all = group.clock().totals();
  require(begin <= all.size(), "totals from step ", begin, " of ", all.size());
  for (const StepTotals& total : all.subspan(begin)) flat.push_back(total.rate);
  for (const StepTotals& total : all.subspan(begin)) flat.push_back(total.kept);
  return to_numpy(std::move(flat));
}

// A step on the GPU. The fields of OktopkCudaOptim by name; addresses and numbers.
void cuda_step(const CudaSteps& steps, const nb::dict& fields, std::uintptr_t stream) {
  const auto at = [&](const char* name) { return nb::cast<std::uintptr_t>(fields[name]); };
  const auto real = [&](const char* name) { return nb::cast<double>(fields[name]); };
  const auto counts =
      nb::cast<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>>(fields["block_counts"]);
  const OktopkCudaOptim step{
      .stream = reinterpret_cast<void*>(stream),
      .is_sgd = nb::cast<bool>(fields["is_sgd"]),
      .nesterov = nb::cast<bool>(fields["nesterov"]),
      .tensors = reinterpret_cast<const OktopkCudaTensor*>(at("tensors")),
      .tensor_count = at("tensor_count"),
      .blocks = reinterpret_cast<const std::uint64_t*>(at("blocks")),
      .block_counts = {std::get<0>(counts), std::get<1>(counts), std::get<2>(counts), std::get<3>(counts)},
      .clock = reinterpret_cast<OktopkCudaClock*>(at("clock")),
      .totals = reinterpret_cast<double*>(at("totals")),
      .log = reinterpret_cast<double*>(at("log")),
      .room = at("room"),
      .rate = real("rate"),
      .rate_on_gpu = reinterpret_cast<const float*>(at("rate_on_gpu")),
      .decoupled_decay = real("decoupled_decay"),
      .found_inf = reinterpret_cast<const float*>(at("found_inf")),
      .grad_scale = reinterpret_cast<const float*>(at("grad_scale")),
      .first_beta = real("first_beta"),
      .second_beta = real("second_beta"),
      .epsilon = real("epsilon"),
      .coupled_decay = real("coupled_decay"),
      .first_powers = reinterpret_cast<const double*>(at("first_powers")),
      .first_size = at("first_size"),
      .second_powers = reinterpret_cast<const double*>(at("second_powers")),
      .second_size = at("second_size")};
  steps.run(step);
}

}  // namespace

void bind_optim(nb::module_& m) {
  m.attr("ADAM_SURPRISE") = kSurprise;
  m.attr("ADAM_MOST_AGE") = kMostAge;
  bind_tensor_state(m);
  nb::class_<LazyGroup>(m, "LazyGroup", "The clock of one group of parameters, and their steps.")
      .def(nb::init<>())
      .def("tick", &LazyGroup::tick, "rate"_a, "weight_decay"_a, "steps"_a = 1, "Steps begin.")
      .def("jump", &LazyGroup::jump, "rate"_a, "kept"_a, "steps"_a,
           "Steps of another clock, with its totals after them.")
      .def_prop_ro(
          "now", [](const LazyGroup& g) { return g.clock().now(); }, "Steps made.")
      .def_prop_ro("has_decayed", [](const LazyGroup& g) { return g.clock().has_decayed(); })
      .def_prop_ro(
          "rescalings", [](const LazyGroup& g) { return g.clock().rescalings(); },
          "How often all earlier totals have changed.")
      .def("runs", &runs, "Stretches of one rate, flat: steps, rate, weight decay, steps, ...")
      .def("totals", &totals, "begin"_a = 0,
           "Sums of the rates up to each step from `begin` on, then what decay has left.")
      .def("adam", &LazyGroup::adam<AdamPart::all>, "tensors"_a, "options"_a, "threads"_a)
      .def("adam_moments", &LazyGroup::adam<AdamPart::moments>, "tensors"_a, "options"_a, "threads"_a,
           "The first half of a dense step; the second needs roots.")
      .def("adam_move", &LazyGroup::adam<AdamPart::move>, "tensors"_a, "options"_a, "threads"_a)
      .def("sgd", &LazyGroup::sgd, "tensors"_a, "options"_a, "threads"_a)
      .def("pay_decay", &LazyGroup::pay_decay, "tensors"_a, "threads"_a);
  nb::class_<CudaSteps>(m, "CudaSteps", "Steps over parameters in the memory of a GPU.")
      .def(nb::init<int>(), "ordinal"_a)
      .def("step", &cuda_step, "fields"_a, "stream"_a, "Queues a step on a stream. Does not wait for the GPU.");
  m.def("find_bad_indices", &bad_indices, "tensors"_a,
        "Place of the first one whose indices do not increase within its size; -1: none.");
  m.def("one_minus_powers", &one_minus_powers, "beta"_a, "exponent"_a,
        "1 - beta^j for j up to `exponent`, or to where it is 1.");
}

}  // namespace oktopk::python
