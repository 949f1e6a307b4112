// SPDX-License-Identifier: Apache-2.0
#include "oktopk/elastic/mirror.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/codec/frame.h"
#include "oktopk/comm/flight.h"

namespace oktopk {
namespace {

constexpr Codec kMirrorCodec{IndexCoding::u16_blocks, ValueCoding::fp32};

bool is_same(const MemoryLayout& a, const MemoryLayout& b) {
  return a.region == b.region && a.tile == b.tile && a.stride == b.stride;
}

template <std::size_t N>
std::uint64_t mirror_hash(const std::array<std::uint64_t, N>& head) {
  return hash_bytes(std::as_bytes(std::span(head).first(N - 1)));
}

FrameSpec mirror_frame(std::uint64_t hash, std::size_t places) {
  return {kMirrorCodec, {0, static_cast<Index>(places)}, static_cast<std::uint32_t>(hash)};
}

}  // namespace

void OwnerMirror::exchange(Communicator& comm, const Step& step) {
  const FlightLabel label(comm, "mirror");
  write(step);
  const std::size_t most = std::max<std::size_t>(step.n, step.owner.memory().values.size());
  in_.resize(sizeof(Head) + max_frame_bytes(kMirrorCodec, most, most));
  const Send send{neighbour(comm, 1), out_};
  Recv recv{neighbour(comm, -1), in_};
  comm.exchange({&send, 1}, {&recv, 1});
  try {
    read(step, std::span(in_).first(recv.size));
  } catch (const CommError& error) {
    fail_world(comm, "mirror: the message of rank ", recv.peer, ": ", error.what());
  }
}

void OwnerMirror::write(const Step& step) {
  const OwnerMemory memory = step.owner.memory();
  const bool is_known = step.owner.read_changes(step.device, own_);
  const bool is_whole = is_fresh_ || step.is_dense || !is_known || !is_same(own_layout_, memory);
  if (is_whole) {
    own_.clear();
    step.device.select_at_least(memory.values, 0, 0.0F, own_);
  }
  own_layout_ = memory;
  Head head{step.number,         is_whole ? 1U : 0U,  std::bit_cast<std::uint32_t>(step.decay),
            memory.region.begin, memory.region.end,   memory.tile,
            memory.stride,       memory.values.size()};
  head.back() = mirror_hash(head);
  out_.resize(sizeof head);
  std::memcpy(out_.data(), head.data(), sizeof head);
  encode_frame(mirror_frame(head.back(), memory.values.size()), own_, out_);
}

void OwnerMirror::read(const Step& step, std::span<const std::byte> bytes) {
  Head head{};
  if (bytes.size() < sizeof head) fail<CommError>(bytes.size(), " bytes, at least ", sizeof head, " are needed");
  std::memcpy(head.data(), bytes.data(), sizeof head);
  if (head.back() != mirror_hash(head)) fail<CommError>("its head is damaged");
  if (head[0] != step.number) fail<CommError>("is of step ", head[0], ", not ", step.number);
  const std::size_t most = std::max<std::size_t>(step.n, step.owner.memory().values.size());
  Changes next{.places = head[7], .is_whole = head[1] != 0};
  next.decay = std::bit_cast<float>(static_cast<std::uint32_t>(head[2]));
  next.layout = {{static_cast<Index>(head[3]), static_cast<Index>(head[4])},
                 static_cast<Index>(head[5]),
                 static_cast<Index>(head[6])};
  if (next.places > most || head[5] == 0 || head[6] == 0)
    fail<CommError>("has ", next.places, " places in wrong tiles");
  if (!next.is_whole && (!is_same(next.layout, layout_) || next.places != values_.size()))
    fail<CommError>("has changes of another region");
  const Frame frame = open_frame(bytes.subspan(sizeof head), mirror_frame(head.back(), next.places));
  if (sizeof head + frame.bytes() != bytes.size()) fail<CommError>("has bytes at its end");
  changed_.clear();
  decode_frame(frame, changed_);
  for (std::size_t e = 0; e < changed_.size(); ++e)
    if (changed_.val[e] != 0 && next.layout.index(changed_.idx[e]) >= step.n)
      fail<CommError>("has an entry beyond n = ", step.n);
  pending_ = next;
}

void OwnerMirror::commit() {
  is_fresh_ = !pending_;
  if (!pending_) {
    values_.clear();
    layout_ = {};
    return;
  }
  const Changes now = *std::exchange(pending_, std::nullopt);
  layout_ = now.layout;
  if (now.is_whole) {
    values_.assign(now.places, 0.0F);
  } else if (now.decay != 1) {
    for (float& value : values_) value *= now.decay;
  }
  for (std::size_t e = 0; e < changed_.size(); ++e) values_[changed_.idx[e]] = changed_.val[e];
}

void OwnerMirror::drop() {
  pending_.reset();
  is_fresh_ = true;
}

SparseVector OwnerMirror::entries() const {
  SparseVector entries;
  for (std::size_t place = 0; place < values_.size(); ++place)
    if (values_[place] != 0) entries.push_back(static_cast<Index>(layout_.index(place)), values_[place]);
  return entries;
}

// Changed: the union of what arrives at an owner, and the share of the result that leaves its memory. No step changes
// more than the region.
Prediction OwnerMirror::predict(const Problem& problem) {
  if (problem.P == 1) return {};
  const double width = problem.n / problem.P;
  const auto cost = [&](double entries) {
    const double changed = std::min(entries, width);
    return sequential(1, sizeof(Head) + expected_frame_bytes(kMirrorCodec, changed, width), 2 * changed);
  };
  const auto most = static_cast<std::size_t>(problem.n);
  Cost bound = cost(problem.n);
  bound.bytes = static_cast<double>(sizeof(Head) + max_frame_bytes(kMirrorCodec, most, most));
  return {cost((problem.union_of(problem.P) + problem.result()) / problem.P), bound};
}

}  // namespace oktopk
