// SPDX-License-Identifier: Apache-2.0
#include "oktopk/elastic/change.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <string_view>

#include "oktopk/base/bytes.h"
#include "oktopk/base/hash.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/flight.h"

namespace oktopk {
namespace {

using Words = std::vector<std::uint64_t>;

constexpr std::size_t kMostReceived = 4096;  // members that leave in one step, to one heir
constexpr std::size_t kFixedWords = 12;

Words words_of(const Statement& s) {
  const UnsentMeasure& m = s.measure;
  const auto bits = [](double x) { return std::bit_cast<std::uint64_t>(x); };
  Words words = {s.actions,
                 s.is_parting ? 1U : 0U,
                 m.step,
                 bits(m.residual_norm),
                 bits(m.residual_sum),
                 bits(m.memory_norm),
                 bits(m.memory_sum),
                 m.region_begin,
                 m.region_end,
                 s.mirrored,
                 s.region_begin,
                 s.region_end};
  words.insert(words.end(), s.received.begin(), s.received.end());
  words.push_back(hash_bytes(std::as_bytes(std::span(words))));
  return words;
}

Statement statement_of(Communicator& comm, int rank, std::span<const std::byte> bytes) {
  Words w(bytes.size() / sizeof(std::uint64_t));
  std::ranges::copy(bytes.first(w.size() * sizeof(std::uint64_t)), std::as_writable_bytes(std::span(w)).begin());
  const bool is_long = bytes.size() % sizeof(std::uint64_t) == 0 && w.size() > kFixedWords;
  if (!is_long || w.back() != hash_bytes(std::as_bytes(std::span(w).first(w.size() - 1))))
    fail_world(comm, "elastic reducer: the statement of rank ", rank, " is damaged");
  const auto real = [&](std::size_t i) { return std::bit_cast<double>(w[i]); };
  Statement s{.actions = w[0], .is_parting = w[1] != 0, .mirrored = w[9], .region_begin = w[10], .region_end = w[11]};
  s.measure = {w[2], real(3), real(4), real(5), real(6), w[7], w[8]};
  s.received.assign(w.begin() + kFixedWords, w.end() - 1);
  return s;
}

std::vector<MemberId> difference(std::span<const MemberId> all, std::span<const MemberId> some) {
  std::vector<MemberId> rest;
  std::ranges::set_difference(all, some, std::back_inserter(rest));
  return rest;
}

MemberLoss loss_of(MemberId id, const MemberBase& base, std::span<const MemberId> ids,
                   std::span<const Statement> statements) {
  const auto rank = static_cast<std::size_t>(std::ranges::find(base.ids, id) - base.ids.begin());
  MemberLoss loss{.id = id};
  if (rank < base.measures.size()) loss.unsent = base.measures[rank];
  loss.region_begin = loss.unsent.region_begin;
  loss.region_end = loss.unsent.region_end;
  if (!base.has_memory) return loss;
  const MemberId holder = base.holder_of(id);
  const auto heir = std::ranges::find(ids, holder);
  if (holder == 0 || heir == ids.end()) {
    loss.memory = MemoryFate::lost;
    return loss;
  }
  const Statement& said = statements[static_cast<std::size_t>(heir - ids.begin())];
  loss.memory = MemoryFate::recovered;
  loss.heir = holder;
  loss.region_begin = said.region_begin;
  loss.region_end = said.region_end;
  return loss;
}

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

MemberId MemberBase::holder_of(MemberId id) const {
  const auto at = std::ranges::find(ids, id);
  if (at == ids.end() || !has_mirrors || ids.size() < 2) return 0;
  return at + 1 == ids.end() ? ids.front() : *(at + 1);
}

std::vector<Statement> exchange_statements(Communicator& comm, const Statement& mine) {
  const FlightLabel label(comm, "statements");
  const Words words = words_of(mine);
  const auto P = static_cast<std::size_t>(comm.size());
  const std::vector<std::size_t> capacities(P, (kFixedWords + kMostReceived + 1) * sizeof(std::uint64_t));
  Gathered all;
  allgatherv(comm, std::as_bytes(std::span(words)), capacities, all);
  std::vector<Statement> statements;
  for (int r = 0; r < comm.size(); ++r) statements.push_back(statement_of(comm, r, all.of(r)));
  return statements;
}

bool is_received(std::span<const Statement> statements, MemberId id) {
  return std::ranges::any_of(statements,
                             [&](const Statement& s) { return std::ranges::find(s.received, id) != s.received.end(); });
}

MembershipChange describe_change(MembershipChange change, const MemberBase& base, std::span<const MemberId> ids,
                                 std::span<const Statement> statements) {
  change.joined = difference(ids, base.ids);
  for (const MemberId id : difference(base.ids, ids))
    (is_received(statements, id) ? change.left : change.lost).push_back(id);
  for (const MemberId id : change.lost) change.losses.push_back(loss_of(id, base, ids, statements));
  return change;
}

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
