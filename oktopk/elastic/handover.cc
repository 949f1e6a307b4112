// SPDX-License-Identifier: Apache-2.0
#include "oktopk/elastic/handover.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "oktopk/base/bytes.h"
#include "oktopk/base/hash.h"
#include "oktopk/comm/collectives.h"

namespace oktopk {
namespace {

void send_piece(Communicator& comm, int to, std::span<const std::byte> piece, Bytes& message) {
  message.resize(piece.size() + sizeof(std::uint64_t));
  const std::uint64_t hash = hash_bytes(piece);
  std::memcpy(message.data(), piece.data(), piece.size());
  std::memcpy(message.data() + piece.size(), &hash, sizeof hash);
  const Send send{to, message};
  comm.exchange({&send, 1}, {});
}

void receive_piece(Communicator& comm, int from, std::span<std::byte> piece, Bytes& message) {
  message.resize(piece.size() + sizeof(std::uint64_t));
  Recv recv{from, message};
  comm.exchange({}, {&recv, 1});
  expect_size(comm, "handover", recv, message.size());
  std::uint64_t hash = 0;
  std::memcpy(&hash, message.data() + piece.size(), sizeof hash);
  std::memcpy(piece.data(), message.data(), piece.size());
  if (hash != hash_bytes(piece)) fail_world(comm, "handover: the unsent values of rank ", from, " arrived damaged");
}

}  // namespace

void hand_over(Communicator& comm, const Handover& handover, std::span<float> values, std::size_t n) {
  Bytes message;
  const std::size_t size = n * sizeof(float);
  for (std::size_t begin = 0; begin < size; begin += kPieceBytes) {
    const std::size_t length = std::min(kPieceBytes, size - begin);
    const auto piece = [&] { return std::as_writable_bytes(values).subspan(begin, length); };
    if (comm.rank() == handover.from) send_piece(comm, handover.to, piece(), message);
    if (comm.rank() == handover.to) receive_piece(comm, handover.from, piece(), message);
    barrier(comm);
  }
}

}  // namespace oktopk
