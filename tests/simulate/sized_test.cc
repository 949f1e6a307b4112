// SPDX-License-Identifier: Apache-2.0
// The sized presets beside the real ones: the same exchanges in the same order, with the same peers
// and sizes, on every rank.
#include <gtest/gtest.h>

#include "tools/simulate/sized.h"

#include <memory>
#include <ostream>

#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/decorators.h"
#include "oktopk/device/device.h"
#include "tests/support/world.h"
#include "tools/simulate/supports.h"

namespace oktopk::sized_test {
namespace {

struct Message {
  std::size_t exchange;  // of this rank, from 0
  char way;
  int peer;
  std::size_t bytes;
  friend bool operator==(const Message&, const Message&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Message& m) {
    return out << m.way << m.exchange << " peer " << m.peer << ": " << m.bytes;
  }
};
using Trace = std::vector<Message>;

// Notes every message. One exchange at a time.
class LoggingCommunicator final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  Trace trace;

  std::unique_ptr<Communicator> split(int color, int key) override { return inner().split(color, key); }
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    for (const Send& send : sends) trace.push_back({exchanges_, '>', send.peer, send.bytes.size()});
    recvs_ = recvs;
    return inner().begin(sends, recvs);
  }
  void finish(std::uint64_t ticket) override {
    inner().finish(ticket);
    for (const Recv& recv : recvs_) trace.push_back({exchanges_, '<', recv.peer, recv.size});
    ++exchanges_;
  }

 private:
  std::size_t exchanges_ = 0;
  std::span<const Recv> recvs_;
};

struct Case {
  std::string preset;
  SupportSpec spec;
  AllreduceOptions options = {};
  std::string sized = preset;
};

// The second step of the real preset.
Trace real_trace(Communicator& comm, const Case& c) {
  const auto device = make_cpu_device();
  const auto allreduce = make_allreduce(find_preset(c.preset), c.options);
  SparseVector selection;
  Outcome out;
  const std::vector<float> dense(allreduce->is_dense() ? c.spec.n : 0, 1.0F);
  LoggingCommunicator tracing(comm);
  for (std::uint64_t step = 0; step < 2; ++step) {
    make_selection(c.spec, comm.rank(), step, selection);
    tracing.trace.clear();
    allreduce->run(step == 1 ? static_cast<Communicator&>(tracing) : comm, *device,
                   {.selection = selection, .dense = dense}, c.spec.n, c.spec.k, out);
  }
  return tracing.trace;
}

SizedAllreduce make_sized(const Case& c, int rank, const Cuts& cuts, const Survey& found) {
  SparseVector selection;
  make_selection(c.spec, rank, 1, selection);
  const auto blocks = block_sizes(selection, cuts);
  return {c.sized,
          c.options,
          {.n = c.spec.n,
           .k = c.spec.k,
           .P = c.spec.P,
           .cuts = cuts,
           .region_unions = found.region_unions,
           .blocks = blocks}};
}

Trace sized_trace(Communicator& comm, const Case& c, const Cuts& cuts, const Survey& found) {
  SizedAllreduce sized = make_sized(c, comm.rank(), cuts, found);
  std::vector<std::byte> buffer(sized.shared_bytes());  // threads run at once: one for each
  LoggingCommunicator tracing(comm);
  sized.run(tracing, buffer);
  return tracing.trace;
}

void expect_same_messages(const Case& c) {
  const Cuts cuts = c.sized == "oktopk_refresh" ? voted_cuts(c.spec, 1) : equal_cuts(c.spec.n, c.spec.P);
  const Survey found = survey(c.spec, 1, cuts);
  const int P = c.spec.P;
  const auto real = gather_world("threads", P, [&](auto& comm) { return real_trace(comm, c); });
  const auto sized = gather_world("threads", P, [&](auto& comm) { return sized_trace(comm, c, cuts, found); });
  std::size_t largest = 0;
  for (std::size_t r = 0; r < real.size(); ++r) {
    EXPECT_EQ(sized[r], real[r]) << c.sized << " P = " << P << " rank " << r << " " << to_string(c.spec.kind);
    EXPECT_EQ(real[r].empty(), P == 1);
    for (const Message& m : real[r]) largest = std::max(largest, m.bytes);
  }
  EXPECT_GE(make_sized(c, 0, cuts, found).shared_bytes(), largest);
}

void expect_same_messages_everywhere(const std::string& preset, const AllreduceOptions& options,
                                     const std::string& sized) {
  for (const int P : {1, 2, 3, 5, 8, 12}) {
    for (const Support kind : {Support::iid, Support::layered}) {
      const SupportSpec spec{.n = 20011, .k = 300, .P = P, .kind = kind};
      expect_same_messages({preset, spec, options, sized});
    }
  }
}

TEST(Sized, dense_sends_what_dense_does) {
  expect_same_messages_everywhere("dense", {.dense = DenseSchedule::rabenseifner}, "dense");
  expect_same_messages_everywhere("dense", {.dense = DenseSchedule::ring}, "dense");
  // Fewer values than ranks: empty regions.
  expect_same_messages({"dense", {.n = 5, .k = 1, .P = 12}});
}

TEST(Sized, dense_chooses_the_ring_where_dense_does) {
  const Index per_rank = 1U << 20U;
  expect_same_messages({"dense", {.n = 4 * per_rank - 1, .k = 100, .P = 4}});
  expect_same_messages({"dense", {.n = 4 * per_rank, .k = 100, .P = 4}});
}

TEST(Sized, topka_and_gaussiank_send_what_they_do) {
  expect_same_messages_everywhere("topka", {}, "topka");
  expect_same_messages_everywhere("gaussiank", {}, "gaussiank");
}

TEST(Sized, topkdsa_sends_what_topkdsa_does) { expect_same_messages_everywhere("topkdsa", {}, "topkdsa"); }

TEST(Sized, topkdsa_turns_dense_where_topkdsa_does) {
  for (const Support kind : {Support::iid, Support::correlated, Support::layered}) {
    const Case c{"topkdsa", {.n = 20011, .k = 2500, .P = 8, .kind = kind}};
    expect_same_messages(c);
    if (kind == Support::correlated) continue;
    // Layers: some regions are dense, others not.
    const Survey found = survey(c.spec, 1, equal_cuts(20011, 8));
    const auto dense = std::count_if(found.region_unions.begin(), found.region_unions.end(),
                                     [](std::size_t entries) { return 2 * entries > 20011 / 8; });
    EXPECT_GT(dense, 0);
    EXPECT_TRUE(kind != Support::layered || dense < 8);
  }
}

TEST(Sized, topka2a_sends_what_topka2a_does) { expect_same_messages_everywhere("topka2a", {}, "topka2a"); }

TEST(Sized, oktopk_refresh_sends_what_oktopk_does_when_all_is_due) {
  for (const int bucket : {1, 4, 100}) {
    const AllreduceOptions options{.tau = 1, .thresholds = ThresholdRule::paper, .tau_prime = 1, .bucket = bucket};
    expect_same_messages_everywhere("oktopk", options, "oktopk_refresh");
  }
}

TEST(Sized, lossy_values_have_exact_sizes_too) {
  const Codec codec{IndexCoding::coo32, ValueCoding::bf16};
  for (const std::string preset : {"topka", "topkdsa", "topka2a"})
    expect_same_messages({preset, {.n = 20011, .k = 300, .P = 5}, {.codec = codec}});
}

TEST(Sized, packed_indices_have_nearly_the_right_sizes) {
  const Codec codec{IndexCoding::elias_fano, ValueCoding::bf16};
  const Case c{"topkdsa", {.n = 200000, .k = 6000, .P = 5}, {.codec = codec}};
  const Cuts cuts = equal_cuts(c.spec.n, c.spec.P);
  const Survey found = survey(c.spec, 1, cuts);
  const auto bytes = [](const Trace& trace) {
    double sum = 0;
    for (const Message& m : trace) sum += m.way == '>' ? static_cast<double>(m.bytes) : 0;
    return sum;
  };
  const auto real = gather_world("threads", 5, [&](auto& comm) { return real_trace(comm, c); });
  const auto sized = gather_world("threads", 5, [&](auto& comm) { return sized_trace(comm, c, cuts, found); });
  for (std::size_t r = 0; r < 5; ++r) {
    EXPECT_EQ(sized[r].size(), real[r].size());
    EXPECT_NEAR(bytes(sized[r]) / bytes(real[r]), 1, 0.01);
  }
}

TEST(Sized, refuses_what_it_cannot_send) {
  const std::vector<std::size_t> two = {1, 1};
  const AllreduceOptions options;
  EXPECT_THROW(SizedAllreduce("circulant", options, {.n = 10, .k = 2}), UsageError);
  EXPECT_THROW(SizedAllreduce("dense", options, {.n = 10, .k = 2, .P = 0}), UsageError);
  EXPECT_THROW(SizedAllreduce("topka", options, {.n = 10, .k = 11}), UsageError);
  EXPECT_THROW(SizedAllreduce("topka2a", options, {.n = 10, .k = 2, .P = 3, .blocks = two}), UsageError);
  EXPECT_THROW(SizedAllreduce("topkdsa", options, {.n = 10, .k = 2, .P = 2, .blocks = two}), UsageError);
  EXPECT_THROW(SizedAllreduce("topka", options, {.n = 10, .k = 2, .P = 2, .cuts = {0, 10}}), UsageError);
  run_world("threads", 2, [&](Communicator& comm) {
    SizedAllreduce sized("topka", options, {.n = 10, .k = 2, .P = 2});
    std::vector<std::byte> buffer(sized.shared_bytes() - 1);
    EXPECT_THROW(sized.run(comm, buffer), UsageError);
    SizedAllreduce larger("topka", options, {.n = 10, .k = 2, .P = 3});
    buffer.resize(larger.shared_bytes());
    EXPECT_THROW(larger.run(comm, buffer), UsageError);
  });
}

TEST(Sized, other_sizes_than_the_peers_is_an_error_on_all_ranks) {
  run_world("threads", 3, [](Communicator& comm) {
    const std::size_t k = comm.rank() == 1 ? 3 : 2;
    SizedAllreduce sized("topka", {}, {.n = 10, .k = k, .P = 3});
    std::vector<std::byte> buffer(1000);
    EXPECT_THROW(sized.run(comm, buffer), CommError);
  });
}

}  // namespace
}  // namespace oktopk::sized_test
