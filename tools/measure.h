// SPDX-License-Identifier: Apache-2.0
// One row of the bench, as JSON: a preset on one problem, timed beside an in-place axpy, counted and, if asked,
// checked.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "oktopk/comm/communicator.h"
#include "oktopk/comm/decorators.h"
#include "oktopk/laws/gradient_stream.h"
#include "oktopk/reduce/reducer.h"
#include "tools/statistics.h"

namespace oktopk {

struct MeasureOptions {
  ReducerOptions reducer;
  int group = 1;  // of NodeOptions; 1: no nodes
  Index n = 0;
  int warm_up = 200;
  int iterations = 20;
  bool check = false;
  bool tentative = false;  // steps are proposed, agreed on and committed, as by an ElasticReducer; not in nodes
};

// Collective; the row is complete on rank 0 only. The stream gives this rank's gradients of n values.
//   preset                "circulant/4": in nodes of four; "auto:oktopk": chosen
//   time, time_min, ...   seconds: each rank's median over the iterations; then median, least and largest over ranks
//   time_mad              of the median rank: median over the iterations of |time - median|
//   dense_result_time     step and DenseMean::show: the update as n values
//   axpy_time             of n floats in place, on all ranks at once, in turns with the steps
//   messages, wire_bytes  per step, on the rank with most, full-duplex (Traffic): the median over the iterations, which
//                         leaves out the rare refresh steps; ..._mean includes them
//   wire_over_bound       relative to the lower bound of Ok-Topk's paper for both phases, 2k(P-1)/P words of 4 bytes;
//                         coordinates (an entry is two words) take twice that; 0 for one rank
//   phases                seconds; "wire" is part of "exchange"
//   wrong                 entries that differ from the oracle; -1: not checked
nlohmann::json measure(Communicator& comm, const MeasureOptions& options, GradientStream& stream);

// Sums x over the ranks, in place, by MPI's own allreduce. Collective.
using MpiAllreduce = std::function<void(std::span<float> x)>;
// Collective over the first P ranks of the world. Empty if MPI is not running or not in this build.
MpiAllreduce make_mpi_allreduce(int P);

// Collective: MPI_Allreduce of n floats in place, seconds as `time` above; 0 where there is no MPI.
double measure_mpi_allreduce(Communicator& comm, const MeasureOptions& options, GradientStream& stream);

// A communicator around another one that adds up the time its rank spends inside: starting exchanges and waiting for
// them, which includes waiting for late ranks.
class TimingCommunicator final : public ForwardingCommunicator {
 public:
  explicit TimingCommunicator(Communicator& inner)
      : ForwardingCommunicator(inner), seconds_(std::make_shared<double>(0)) {}

  // Since the last reset(), including communicators split from this one.
  double seconds() const { return *seconds_; }
  void reset() { *seconds_ = 0; }

  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::unique_ptr<Communicator>(new TimingCommunicator(inner().split(color, key), seconds_));
  }
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    Timer timer;
    const std::uint64_t ticket = inner().begin(sends, recvs);
    *seconds_ += timer.lap();
    return ticket;
  }
  void finish(std::uint64_t ticket) override {
    Timer timer;
    inner().finish(ticket);
    *seconds_ += timer.lap();
  }

 private:
  TimingCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<double> seconds)
      : ForwardingCommunicator(std::move(inner)), seconds_(std::move(seconds)) {}

  std::shared_ptr<double> seconds_;
};

}  // namespace oktopk
