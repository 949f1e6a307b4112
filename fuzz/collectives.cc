// SPDX-License-Identifier: Apache-2.0
// Collectives and whole allreduces among peers that send anything: every message that arrives is cut from the input.
// Only CommError may come of it, and nothing may be read or written out of bounds.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "fuzz/target.h"
#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"

namespace {

using namespace oktopk;

// A rank whose peers are the input: before each message stands its size, modulo more than the capacity.
class ForeignCommunicator final : public Communicator {
 public:
  ForeignCommunicator(fuzz::Input& input, int P, int rank) : input_(input), P_(P), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return P_; }
  std::string_view transport() const override { return "foreign"; }
  Duration timeout() const override { return kDefaultTimeout; }
  std::unique_ptr<Communicator> split(int, int) override { fail<CommError>("no split"); }
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    if (is_dead_ || rounds_++ > 200) fail<CommError>("dead");
    for (Recv& recv : recvs) {
      std::size_t size = input_.take<std::uint16_t>();
      if (size >= 0xff00) size = recv.buffer.size() - std::min(recv.buffer.size(), size - 0xff00);
      const auto bytes = input_.take_bytes(std::min(size, recv.buffer.size()));
      if (!bytes.empty()) std::memcpy(recv.buffer.data(), bytes.data(), bytes.size());
      recv.size = bytes.size();
      // Messages to oneself are not foreign.
      const auto own = std::find_if(sends.begin(), sends.end(), [&](const Send& s) { return s.peer == rank_; });
      if (recv.peer != rank_ || own == sends.end()) continue;
      std::copy(own->bytes.begin(), own->bytes.end(), recv.buffer.begin());
      recv.size = own->bytes.size();
    }
    return 0;
  }
  void finish(std::uint64_t) override {}
  void abandon(std::uint64_t) noexcept override { is_dead_ = true; }

 private:
  fuzz::Input& input_;
  int P_, rank_;
  int rounds_ = 0;
  bool is_dead_ = false;
};

void gather_blocks(Communicator& comm, std::size_t capacity) {
  const std::vector<std::byte> mine(capacity / 2, std::byte{7});
  const std::vector<std::size_t> capacities(static_cast<std::size_t>(comm.size()), capacity);
  Gathered out;
  allgatherv(comm, mine, capacities, out);
  for (int r = 0; r < comm.size(); ++r) {
    fuzz::check(out.of(r).size() <= capacity);
    fuzz::check(out.of(r).data() + out.of(r).size() <= out.bytes.data() + out.bytes.size());
  }
}

void run_small(Communicator& comm, unsigned choice) {
  Workspace work;
  const auto P = static_cast<std::size_t>(comm.size());
  std::vector<std::byte> mine(12, std::byte{3}), all(12 * P), blocks(12 * P);
  if (choice == 0) allgather(comm, mine, all, work);
  if (choice == 1) alltoall(comm, blocks, all, work);
  if (choice == 2) allreduce_small(comm, std::uint64_t{5}, Reduction::max, work);
  if (choice == 3) allreduce_small(comm, 1.5F, Reduction::sum, work);
  if (choice == 4) require_equal(comm, "fuzz", "n = 8, k = 3", work);
  if (choice == 5) fuzz::check(broadcast_up_to(comm, comm.size() - 1, all, 5) <= all.size());
  if (choice == 6) barrier(comm);
}

void run_allreduce(Communicator& comm, unsigned choice) {
  SparseVector selection;
  for (Index i = 3; i < 80; i += 9) selection.push_back(i, static_cast<float>(i) - 40.5F);
  const Preset& preset = presets()[choice % presets().size()];
  AllreduceOptions options;
  if (preset.name != "slots" && preset.name != "dense")
    options.codec = Codec{static_cast<IndexCoding>(choice / 16 % 5), static_cast<ValueCoding>(choice / 80 % 4)};
  const Outcome out = sparse_allreduce(comm, selection, 100, 10, std::string(preset.name), options);
  fuzz::check(is_canonical(out.update));
  fuzz::check(out.update.empty() || out.update.idx.back() < 100);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const int P = 2 + input.take() % 6;
  ForeignCommunicator comm(input, P, input.take() % P);
  const unsigned kind = input.take() % 3;
  const unsigned choice = input.take<std::uint16_t>();
  try {
    if (kind == 0) gather_blocks(comm, choice % 300);
    if (kind == 1) run_small(comm, choice % 7);
    if (kind == 2) run_allreduce(comm, choice);
  } catch (const CommError&) {
  } catch (const UsageError&) {
    // Foreign values may be legal and their sum not finite, and foreign settings may differ from ours.
  }
  return 0;
}
