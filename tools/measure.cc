// SPDX-License-Identifier: Apache-2.0
#include "tools/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/decorators.h"
#include "oktopk/laws/subject.h"
#include "oktopk/laws/truth.h"
#include "oktopk/laws/witness.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "oktopk/reduce/synchroniser.h"
#include "oktopk/tune/tuner.h"
#include "tools/statistics.h"

namespace oktopk {
namespace {

constexpr double kRounding = 1e-5;        // relative error of float sums in another order
constexpr double kBf16Rounding = 0x1p-9;  // relative error of each rank that rounds

// The limit of a step: y += x, in the widest vectors that this machine has, whatever level the kernels are limited to.
OKTOPK_EVERY_WIDTH void axpy(float* __restrict y, const float* __restrict x, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] += x[i];
}

// The upper one of two middle values, so that a count stays a count.
double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Counts the sums of a dense step that differ from those of gathered gradients: slow, but independent of what is
// checked.
std::size_t check_dense(Communicator& comm, Synchroniser& sync, std::span<const float> gradient, bool exact,
                        std::string& detail) {
  constexpr std::size_t kPiece = 1 << 16;
  std::vector<float> brought(sync.n(), 0.0F);
  sync.subtract_unsent(brought);
  for (std::size_t i = 0; i < brought.size(); ++i) brought[i] = gradient[i] - brought[i];
  const double rounding = exact ? kRounding : kBf16Rounding * (comm.size() + 1);
  const auto means = sync.step(gradient).dense;
  const double P = comm.size();
  std::size_t wrong = 0;
  for (std::size_t begin = 0; begin < means.size(); begin += kPiece) {
    const std::size_t count = std::min(kPiece, means.size() - begin);
    const auto piece = std::span(brought).subspan(begin, count);
    const auto ranks = gather_dense(comm, Dense(piece.begin(), piece.end()));
    for (std::size_t i = 0; i < count; ++i) {
      double expected = 0;
      double magnitude = 0;
      for (const Dense& rank : ranks) {
        expected += rank[i];
        magnitude += std::fabs(rank[i]);
      }
      const double sum = P * means[begin + i];
      if (std::fabs(sum - expected) <= rounding * magnitude) continue;
      if (wrong++ == 0) detail = fmt::format("[{}] is {}, should be {}", begin + i, sum, expected);
    }
  }
  return wrong;
}

// The choice of preset auto; nullptr: another preset.
const Method* choice_of(const Subject& subject) {
  const auto* reducer = dynamic_cast<const Reducer*>(&subject.sync());
  return reducer != nullptr && state_of(*reducer).tuner ? &state_of(*reducer).tuner->choice().method : nullptr;
}

std::unique_ptr<Allreduce> make_measured(const Subject& subject, const ReducerOptions& options) {
  const Method* choice = choice_of(subject);
  require(choice != nullptr || options.preset != "auto", "-c with --preset auto and --group: name the preset instead");
  if (choice == nullptr) return make_allreduce(find_preset(options.preset), options.allreduce);
  return make_allreduce(find_preset(choice->preset), options_of(*choice, options));
}

// One more step, compared with the oracle on rank 0.
void check(Communicator& comm, Subject& subject, std::span<const float> gradient, const MeasureOptions& options,
           nlohmann::json& row) {
  const auto allreduce = make_measured(subject, options.reducer);
  if (allreduce->is_dense()) {
    std::string detail;
    row["wrong"] = check_dense(comm, subject.sync(), gradient, allreduce->codec().lossless(), detail);
    if (!detail.empty()) row["detail"] = detail;
    return;
  }
  const StepRecord record = record_step(comm, subject, gradient, 0);
  if (comm.rank() != 0) return;
  Truth truth(*allreduce, subject.n(), subject.k(), kRounding);
  const int steps = options.warm_up + options.iterations;
  row["wrong"] = truth.check(record, static_cast<std::uint64_t>(steps));
  if (row["wrong"] > 0) row["detail"] = truth.detail();
}

std::string name_of(const MeasureOptions& options) {
  if (options.group == 1) return options.reducer.preset;
  return options.reducer.preset + "/" + (options.group == 0 ? std::string("host") : std::to_string(options.group));
}

// Observations of this rank, one number per iteration.
struct Series {
  std::vector<double> seconds, dense, axpy, messages, bytes, selected;
  std::map<std::string, std::vector<double>> phases;
};

class Measurement {
 public:
  Measurement(Communicator& comm, const MeasureOptions& options, GradientStream& stream)
      : comm_(comm),
        options_(options),
        stream_(stream),
        timing_(comm),
        counting_(timing_),
        sync_(make_synchroniser(counting_, options.n, options.reducer, options.group)),
        subject_(*sync_),
        mean_(options.n),
        y_(options.n, 0.0F),
        device_(options.reducer.device) {
    if (!device_ || device_->name() == "cpu") return;
    gradient_ = device_->allocate(options.n);
    sum_ = device_->allocate(options.n);
  }

  nlohmann::json run() {
    for (int i = 0; i < options_.warm_up; ++i) {
      const Update update = step(next());
      if (!update.is_dense()) mean_.show(update);
    }
    add(next());
    for (int tries = 1; !time_steps() && tries < kMostTries; ++tries) {
    }
    nlohmann::json row = gather();
    if (options_.check) {
      if (choice_of(subject_) != nullptr) {  // a review that is due would change the choice in the checked step
        sync_->step(next());
      }
      check(comm_, subject_, stream_.at(step_++), options_, row);
    }
    return row;
  }

 private:
  // Reviews of preset auto become rarer, so a later try is likely to see none that changes the choice.
  static constexpr int kMostTries = 4;

  // All timed steps. False when preset auto chose anew among them: the numbers are those of several methods.
  bool time_steps() {
    seen_ = {};
    chosen_.clear();
    for (int i = 0; i < options_.iterations; ++i) {
      const auto gradient = next();
      time_step(gradient);
      time_axpy(gradient);
      const Method* const choice = choice_of(subject_);
      if (choice != nullptr && (chosen_.empty() || chosen_.back() != *choice)) chosen_.push_back(*choice);
    }
    return chosen_.size() <= 1;
  }

  // The presets that preset auto chose in the timed steps.
  std::string chosen() const {
    std::string names;
    for (const Method& method : chosen_) names += (names.empty() ? ":" : "+") + method.preset;
    return names;
  }

  // On a GPU, gradients live in its memory.
  std::span<const float> next() {
    const std::span<const float> host = stream_.at(step_++);
    if (!gradient_) return host;
    device_->write({gradient_.get(), host.size()}, host);
    return {gradient_.get(), host.size()};
  }

  // The limit: y += gradient where the gradient lives.
  void add(std::span<const float> gradient) {
    if (!gradient_) return axpy(y_.data(), gradient.data(), gradient.size());
    device_->accumulate({{sum_.get(), gradient.size()}, gradient});
    value_at(*device_, std::span<const float>(sum_.get(), gradient.size()), 0);  // waits for the GPU
  }

  Update step(std::span<const float> gradient) {
    auto* reducer = options_.tentative ? dynamic_cast<Reducer*>(sync_.get()) : nullptr;
    if (reducer == nullptr) return sync_->step(gradient);
    const Update update = reducer->propose(gradient);
    allreduce_small(static_cast<Communicator&>(counting_), std::uint64_t{1}, Reduction::min, work_);
    reducer->commit();
    return update;
  }

  void time_step(std::span<const float> gradient) {
    barrier(comm_);
    counting_.reset();
    timing_.reset();
    Timer timer;
    const Update update = step(gradient);
    const double seconds = timer.lap();
    if (!update.is_dense()) mean_.show(update);  // a dense update is already n values
    seen_.seconds.push_back(seconds);
    seen_.dense.push_back(seconds + timer.lap());
    seen_.messages.push_back(static_cast<double>(counting_.traffic().duplex_messages));
    seen_.bytes.push_back(static_cast<double>(counting_.traffic().duplex_bytes));
    seen_.selected.push_back(static_cast<double>(update.sparse.size()));
    const StepTimes times = sync_->times();
    for (const auto& [phase, spent] :
         std::initializer_list<std::pair<const char*, double>>{{"check", times.check},
                                                               {"select", times.select},
                                                               {"exchange", times.exchange},
                                                               {"settle", times.settle},
                                                               {"inside", times.inside},
                                                               {"wire", timing_.seconds()}})
      seen_.phases[phase].push_back(spent);
  }

  // The caches are in the same state as before the step.
  void time_axpy(std::span<const float> gradient) {
    barrier(comm_);
    Timer timer;
    add(gradient);
    seen_.axpy.push_back(timer.lap());
  }

  // The median and the largest over the ranks of this rank's number.
  double middle(double mine) { return median(ask_all(comm_, mine)); }
  double most(double mine) { return max_of(ask_all(comm_, mine)); }

  nlohmann::json gather() {
    const auto k = static_cast<double>(subject_.k());
    const double n = options_.n, P = comm_.size();
    const Prediction predicted = subject_.predict({.n = n, .k = k, .P = comm_.size()});
    nlohmann::json row = {{"preset", name_of(options_) + chosen()},
                          {"ranks", comm_.size()},
                          {"n", n},
                          {"k", k},
                          {"wrong", -1},
                          {"predicted_messages", predicted.expected.messages},
                          {"predicted_bytes", predicted.expected.bytes},
                          {"bound_messages", predicted.bound.messages},
                          {"bound_bytes", predicted.bound.bytes}};
    const std::vector<double> times = ask_all(comm_, median(seen_.seconds));
    const double time = median(times);
    row["time"] = time;
    row["time_min"] = *std::min_element(times.begin(), times.end());
    row["time_max"] = max_of(times);
    row["time_mad"] = middle(summarise(seen_.seconds).deviation);
    row["dense_result_time"] = middle(median(seen_.dense));
    row["axpy_time"] = middle(median(seen_.axpy));
    row["effective_bandwidth"] = time > 0 ? 4 * n / time : 0;  // bytes/s of dense gradient
    row["messages"] = most(median(seen_.messages));
    row["messages_mean"] = most(mean_of(seen_.messages));
    const double bytes = most(median(seen_.bytes)), mean_bytes = most(mean_of(seen_.bytes));
    const double bound = 4 * 2 * k * (P - 1) / P;
    row["wire_bytes"] = bytes;
    row["wire_bytes_mean"] = mean_bytes;
    row["words_per_k"] = k > 0 ? bytes / 4 / k : 0;
    row["words_per_k_mean"] = k > 0 ? mean_bytes / 4 / k : 0;
    row["wire_over_bound"] = bound > 0 ? bytes / bound : 0;
    row["selected"] = median(seen_.selected);
    for (const auto& [phase, seconds] : seen_.phases) row["phases"][phase] = middle(median(seconds));
    return row;
  }

  Communicator& comm_;
  const MeasureOptions& options_;
  GradientStream& stream_;
  std::uint64_t step_ = 0;
  TimingCommunicator timing_;
  CountingCommunicator counting_;
  std::unique_ptr<Synchroniser> sync_;
  Subject subject_;
  DenseMean mean_;
  Uninitialised<float> y_;  // as large as the residual
  Workspace work_;
  Series seen_;
  std::vector<Method> chosen_;  // preset auto: in the timed steps, one after the other
  std::shared_ptr<const Device> device_;
  DeviceFloats gradient_;  // of the device; null: on the host
  DeviceFloats sum_;
};

}  // namespace

nlohmann::json measure(Communicator& comm, const MeasureOptions& options, GradientStream& stream) {
  const std::string name = name_of(options);
  Span span(options.reducer.trace.on_rank(comm.rank()), name, "bench");
  span.arg("n", options.n);
  span.arg("P", comm.size());
  return Measurement(comm, options, stream).run();
}

double measure_mpi_allreduce(Communicator& comm, const MeasureOptions& options, GradientStream& stream) {
  if (comm.transport() != "mpi") return 0;
  const MpiAllreduce allreduce = make_mpi_allreduce(comm.size());
  if (!allreduce) return 0;
  Uninitialised<float> x(options.n);
  std::vector<double> seconds;
  for (int i = 0; i < options.warm_up + options.iterations; ++i) {
    const auto gradient = stream.at(static_cast<std::uint64_t>(i));
    std::copy(gradient.begin(), gradient.end(), x.begin());
    barrier(comm);
    Timer timer;
    allreduce(x);
    if (i >= options.warm_up) seconds.push_back(timer.lap());
  }
  return median(ask_all(comm, median(seconds)));
}

}  // namespace oktopk
