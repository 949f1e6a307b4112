// SPDX-License-Identifier: Apache-2.0
// Collectives of a few bytes (collectives.h), by which the ranks agree. Each block travels with a hash of its bytes and
// of a seed that both sides have. The receiver so finds damaged blocks and blocks of another round.
//
// allreduce_small takes ceil(log2 P) rounds for any P: the circulant schedule of Bar-Noy, Kipnis and Schieber ("An
// optimal algorithm for computing census functions in message-passing systems", 1993). After some rounds, rank r has
// two results: `all` of the S ranks r .. r+S-1 (mod P), and `others` of the same ranks without r. In the next round it
// adds `all` of rank r+S, which gives 2S ranks, or `others` of rank r+S-1, which gives 2S-1 ranks. The halving schedule
// says which, so that the last round gives P ranks.
// Each rank reduces in another order. A sum of floats depends on the order: for it, all ranks gather all values and add
// them in rank order.
#include <algorithm>
#include <compare>
#include <concepts>
#include <cstring>
#include <string>
#include <type_traits>

#include "oktopk/base/hash.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/flight.h"

namespace oktopk {
namespace {

// Writes `payload` and its check to `block`, which has kCheckBytes more.
void seal(std::span<const std::byte> payload, std::uint64_t seed, std::span<std::byte> block) {
  const std::uint64_t check = hash_bytes(payload, seed);
  std::copy(payload.begin(), payload.end(), block.begin());
  std::memcpy(block.data() + payload.size(), &check, kCheckBytes);
}

bool is_intact(std::span<const std::byte> block, std::uint64_t seed) {
  const auto payload = block.first(block.size() - kCheckBytes);
  std::uint64_t check = 0;
  std::memcpy(&check, block.data() + payload.size(), kCheckBytes);
  return hash_bytes(payload, seed) == check;
}

template <class T>
T reduced(T a, T b, Reduction reduction) {
  if constexpr (std::floating_point<T>) {
    if (reduction == Reduction::sum) return a + b;
    const bool is_less = std::is_lt(std::strong_order(a, b));
    return is_less == (reduction == Reduction::max) ? b : a;
  } else {
    using Wrapping = std::make_unsigned_t<T>;  // a partial sum may overflow although the whole sum fits
    if (reduction == Reduction::sum) return static_cast<T>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
    return reduction == Reduction::max ? std::max(a, b) : std::min(a, b);
  }
}

// into[i] = reduction of into[i] and from[i], T by T.
template <class T>
void fold(std::span<std::byte> into, std::span<const std::byte> from, Reduction reduction) {
  for (std::size_t i = 0; i < into.size(); i += sizeof(T)) {
    T a;
    T b;
    std::memcpy(&a, into.data() + i, sizeof(T));
    std::memcpy(&b, from.data() + i, sizeof(T));
    a = reduced(a, b, reduction);
    std::memcpy(into.data() + i, &a, sizeof(T));
  }
}

// Sends `mine` to the rank `shift` before and returns the block of the rank `shift` further, until the next call.
// All rounds send blocks of the same size; their seeds differ.
std::span<const std::byte> exchange_checked(Communicator& comm, std::uint64_t seed, int shift,
                                            std::span<const std::byte> mine, Workspace& work) {
  const std::size_t block = mine.size() + kCheckBytes;
  work.checked.resize(2 * block);
  const auto outgoing = std::span(work.checked).first(block);
  const auto incoming = std::span(work.checked).subspan(block);
  seal(mine, seed, outgoing);
  const Send send{neighbour(comm, -shift), outgoing};
  Recv recv{neighbour(comm, shift), incoming, 0};
  comm.exchange({&send, 1}, {&recv, 1});
  expect_size(comm, "allreduce", recv, block);
  if (!is_intact(incoming, seed))
    fail_world(comm, "allreduce: the message from rank ", recv.peer, " is damaged, or of another round");
  return incoming.first(mine.size());
}

template <class T>
void reduce_in_any_order(Communicator& comm, std::span<std::byte> all, Reduction reduction, Workspace& work) {
  work.gathered.resize(all.size());
  const auto others = std::span(work.gathered);  // like `all`, without this rank
  for (int round = halving_rounds(comm.size()); round-- > 0;) {
    const auto [whole, held] = halving_round(comm.size(), round);
    const int shift = whole - held;  // `held`, or one less
    const auto seed = static_cast<std::uint64_t>(held);
    const auto received = exchange_checked(comm, seed, shift, shift == held ? all : others, work);
    fold<T>(all, received, reduction);
    if (held == 1) {
      std::copy(received.begin(), received.end(), others.begin());
    } else {
      fold<T>(others, received, reduction);
    }
  }
}

template <class T>
void reduce_in_rank_order(Communicator& comm, std::span<std::byte> all, Reduction reduction, Workspace& work) {
  const std::size_t m = all.size();
  work.gathered.resize(static_cast<std::size_t>(comm.size()) * m);
  allgather(comm, all, work.gathered, work);
  const auto blocks = std::span<const std::byte>(work.gathered);
  std::copy_n(blocks.begin(), m, all.begin());
  for (std::size_t at = m; at < blocks.size(); at += m) fold<T>(all, blocks.subspan(at, m), reduction);
}

// Cuts the first item off a list "a, b, c".
std::string_view next_item(std::string_view& list) {
  const std::size_t end = std::min(list.find(", "), list.size());
  const std::string_view item = list.substr(0, end);
  list.remove_prefix(std::min(end + 2, list.size()));
  return item;
}

// For an error: the item, or where it is long the part around position `at`.
std::string_view excerpt(std::string_view item, std::size_t at) {
  constexpr std::size_t kMost = 120;
  if (item.empty()) return "nothing more";
  return item.size() <= kMost ? item : item.substr(at - std::min(at, kMost / 2), kMost);
}

struct Digest {
  std::uint64_t hash = 0;
  std::uint64_t size = 0;
  bool operator==(const Digest&) const = default;
};
static_assert(sizeof(Digest) + kCheckBytes == kAgreementBytes);

// Collective: compares the texts themselves; their digests differ.
[[noreturn]] void report_difference(Communicator& comm, std::string_view who, std::string_view mine,
                                    std::span<const Digest> digests) {
  std::vector<std::size_t> sizes;
  for (const Digest& digest : digests) sizes.push_back(static_cast<std::size_t>(digest.size));
  Gathered gathered;
  allgatherv(comm, std::as_bytes(std::span(mine)), sizes, gathered);
  const auto text_of = [&](int r) {
    const auto bytes = gathered.of(r);
    if (hash_bytes(bytes) != digests[static_cast<std::size_t>(r)].hash)
      fail_world(comm, who, ": the settings of rank ", r, " arrived damaged");
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  const auto other = std::find_if(digests.begin(), digests.end(), [&](const Digest& d) { return d != digests[0]; });
  const auto rank = static_cast<int>(other - digests.begin());
  const auto [first, second] = first_difference(text_of(0), text_of(rank));
  fail<UsageError>(who, ": rank ", rank, " has ", second, ", rank 0 has ", first);
}

}  // namespace

void allgather(Communicator& comm, std::span<const std::byte> mine, std::span<std::byte> all, Workspace& work) {
  const FlightLabel label(comm, "allgather");
  const auto P = static_cast<std::size_t>(comm.size());
  const std::size_t m = mine.size();
  const std::size_t block = m + kCheckBytes;
  require(all.size() == P * m, "allgather: result of ", all.size(), " bytes for ", P, " blocks of ", m);
  work.checked.resize(P * block);
  const auto blocks = std::span(work.checked);  // of ranks rank, rank+1, ...
  seal(mine, 0, blocks.first(block));
  for (int round = halving_rounds(comm.size()); round-- > 0;) {
    const auto [whole, held] = halving_round(comm.size(), round);
    const std::size_t length = static_cast<std::size_t>(whole - held) * block;
    const Send send{neighbour(comm, -held), blocks.first(length)};
    Recv recv{neighbour(comm, held), blocks.subspan(static_cast<std::size_t>(held) * block, length), 0};
    comm.exchange({&send, 1}, {&recv, 1});
    expect_size(comm, "allgather", recv, length);
  }
  for (std::size_t i = 0; i < P; ++i) {
    const auto owner = static_cast<std::size_t>(neighbour(comm, static_cast<int>(i)));
    const auto bytes = blocks.subspan(i * block, block);
    if (!is_intact(bytes, 0)) fail_world(comm, "allgather: the block of rank ", owner, " is damaged");
    std::copy_n(bytes.begin(), m, all.begin() + static_cast<std::ptrdiff_t>(owner * m));
  }
}

void alltoall(Communicator& comm, std::span<const std::byte> mine, std::span<std::byte> all, Workspace& work) {
  const FlightLabel label(comm, "alltoall");
  const auto P = static_cast<std::size_t>(comm.size());
  const auto self = static_cast<std::size_t>(comm.rank());
  require(mine.size() == all.size() && mine.size() % P == 0, "alltoall: ", mine.size(), " bytes to send and ",
          all.size(), " to receive, for ", P, " ranks");
  const std::size_t m = mine.size() / P;
  const std::size_t block = m + kCheckBytes;
  work.checked.resize(2 * P * block);
  const auto outgoing = std::span(work.checked).first(P * block);
  const auto incoming = std::span(work.checked).subspan(P * block);
  work.sends.clear();
  work.recvs.clear();
  for (std::size_t i = 1; i < P; ++i) {
    const std::size_t to = (self + i) % P;
    const std::size_t from = (self + P - i) % P;
    seal(mine.subspan(to * m, m), to, outgoing.subspan(to * block, block));
    work.sends.push_back({static_cast<int>(to), outgoing.subspan(to * block, block)});
    work.recvs.push_back({static_cast<int>(from), incoming.subspan(from * block, block), 0});
  }
  comm.exchange(work.sends, work.recvs);
  std::copy_n(mine.begin() + static_cast<std::ptrdiff_t>(self * m), m,
              all.begin() + static_cast<std::ptrdiff_t>(self * m));
  for (const Recv& recv : work.recvs) {
    expect_size(comm, "alltoall", recv, block);
    const auto from = static_cast<std::size_t>(recv.peer);
    if (!is_intact(recv.buffer, self)) fail_world(comm, "alltoall: the block of rank ", from, " is damaged");
    std::copy_n(recv.buffer.begin(), m, all.begin() + static_cast<std::ptrdiff_t>(from * m));
  }
}

std::pair<std::string_view, std::string_view> first_difference(std::string_view a, std::string_view b) {
  std::string_view first, second;
  do {
    first = next_item(a);
    second = next_item(b);
  } while (first == second && !(a.empty() && b.empty()));
  const auto differ = std::mismatch(first.begin(), first.end(), second.begin(), second.end()).first;
  const auto at = static_cast<std::size_t>(differ - first.begin());
  return {excerpt(first, at), excerpt(second, at)};
}

void require_equal(Communicator& comm, std::string_view who, std::string_view mine, Workspace& work) {
  const FlightLabel label(comm, "agree");
  const Digest digest{hash_text(mine), mine.size()};
  std::vector<Digest> all(static_cast<std::size_t>(comm.size()));
  allgather(comm, std::as_bytes(std::span(&digest, 1)), std::as_writable_bytes(std::span(all)), work);
  const bool is_equal = std::all_of(all.begin(), all.end(), [&](const Digest& other) { return other == all[0]; });
  if (!is_equal) report_difference(comm, who, mine, all);
}

template <class T>
void allreduce_small(Communicator& comm, std::span<T> values, Reduction reduction, Workspace& work) {
  const FlightLabel label(comm, "allreduce");
  const auto bytes = std::as_writable_bytes(values);
  if (std::floating_point<T> && reduction == Reduction::sum) {
    reduce_in_rank_order<T>(comm, bytes, reduction, work);
  } else {
    reduce_in_any_order<T>(comm, bytes, reduction, work);
  }
}

template void allreduce_small(Communicator&, std::span<float>, Reduction, Workspace&);
template void allreduce_small(Communicator&, std::span<double>, Reduction, Workspace&);
template void allreduce_small(Communicator&, std::span<std::uint32_t>, Reduction, Workspace&);
template void allreduce_small(Communicator&, std::span<std::uint64_t>, Reduction, Workspace&);
template void allreduce_small(Communicator&, std::span<std::int64_t>, Reduction, Workspace&);

}  // namespace oktopk
