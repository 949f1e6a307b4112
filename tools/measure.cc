// SPDX-License-Identifier: Apache-2.0
#include "tools/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "oktopk/comm/collectives.h"
#include "oktopk/comm/decorators.h"
#include "tools/laws/truth.h"
#include "tools/laws/witness.h"
#include "tools/statistics.h"

namespace oktopk {
namespace {

constexpr double kRounding = 1e-5;           // relative, of float sums in another order
constexpr Index kManyGradients = 4U << 20U;  // above this n, one gradient serves all iterations

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// A few gradients in turn.
std::vector<std::vector<float>> make_gradients(const MeasureOptions& options, int rank) {
  std::vector<std::vector<float>> gradients;
  for (std::uint64_t i = 0; i < (options.n > kManyGradients ? 1U : 3U); ++i)
    gradients.push_back(make_input(options.data, options.n, rank, i, options.seed));
  return gradients;
}

// Dense sums by gathering piece by piece: slow, but another way than the one that is checked.
std::size_t check_dense(Communicator& comm, Reducer& reducer, std::span<const float> gradient,
                        std::string& detail) {
  constexpr std::size_t kPiece = 1 << 16;
  reducer.step(gradient);
  const auto& sum = reducer.outcome().dense_update;
  std::size_t wrong = 0;
  for (std::size_t begin = 0; begin < sum.size(); begin += kPiece) {
    const std::size_t count = std::min(kPiece, sum.size() - begin);
    const auto piece = gradient.subspan(begin, count);
    const auto ranks = gather_dense(comm, Dense(piece.begin(), piece.end()));
    for (std::size_t i = 0; i < count; ++i) {
      double expected = 0;
      double magnitude = 0;
      for (const Dense& rank : ranks) {
        expected += rank[i];
        magnitude += std::fabs(rank[i]);
      }
      if (std::fabs(sum[begin + i] - expected) <= kRounding * magnitude) continue;
      if (wrong++ == 0)
        detail = fmt::format("[{}] is {}, should be {}", begin + i, sum[begin + i], expected);
    }
  }
  return wrong;
}

// One more step, compared with the oracle on rank 0.
void check(Communicator& comm, Reducer& reducer, std::span<const float> gradient, int steps,
           Row& row) {
  if (reducer.allreduce().is_dense()) {
    row.wrong = static_cast<long>(check_dense(comm, reducer, gradient, row.detail));
    return;
  }
  const StepRecord record = record_step(comm, reducer, gradient, 0);
  if (comm.rank() != 0) return;
  Truth truth(reducer.allreduce(), reducer.n(), reducer.k(), kRounding);
  row.wrong = static_cast<long>(truth.check(record, static_cast<std::uint64_t>(steps)));
  row.detail = truth.detail();
}

}  // namespace

Row measure(Communicator& comm, const MeasureOptions& options) {
  CountingCommunicator counting(comm);
  Reducer reducer(counting, options.n, options.reducer);
  const auto gradients = make_gradients(options, comm.rank());
  const auto gradient = [&](int i) -> const std::vector<float>& {
    return gradients[static_cast<std::size_t>(i) % gradients.size()];
  };
  // Without feedback every step starts anew, so that the stream is stationary, as thresholds that
  // are reused need it.
  const auto prepare = [&] {
    if (!options.feedback) reducer.forget();
  };
  for (int i = 0; i < options.warm_up; ++i) {
    prepare();
    reducer.step(gradient(i));
  }
  std::vector<double> seconds, messages, bytes, selected;
  for (int i = options.warm_up; i < options.warm_up + options.iterations; ++i) {
    prepare();
    barrier(comm);
    counting.reset();
    const auto start = std::chrono::steady_clock::now();
    reducer.step(gradient(i));
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    messages.push_back(static_cast<double>(counting.traffic().duplex_messages));
    bytes.push_back(static_cast<double>(counting.traffic().duplex_bytes));
    selected.push_back(static_cast<double>(reducer.outcome().update.size()));
  }
  const auto ranks = gather_dense(
      comm, {median(seconds), median(messages), mean_of(messages), median(bytes), mean_of(bytes)});
  std::vector<double> times;
  Row row;
  for (const Dense& r : ranks) {
    times.push_back(r[0]);
    row.messages = std::max(row.messages, r[1]);
    row.messages_mean = std::max(row.messages_mean, r[2]);
    row.bytes = std::max(row.bytes, r[3]);
    row.bytes_mean = std::max(row.bytes_mean, r[4]);
  }
  row.preset = options.reducer.preset;
  row.n = options.n;
  row.k = static_cast<double>(reducer.k());
  row.P = comm.size();
  row.time = median(times);
  row.time_min = *std::min_element(times.begin(), times.end());
  row.time_max = *std::max_element(times.begin(), times.end());
  row.selected = median(selected);
  row.predicted = reducer.predict({.n = row.n, .k = row.k, .P = row.P});
  prepare();
  if (options.check)
    check(comm, reducer, gradient(options.warm_up + options.iterations),
          options.warm_up + options.iterations, row);
  return row;
}

}  // namespace oktopk
