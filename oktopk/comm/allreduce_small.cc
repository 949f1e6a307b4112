// SPDX-License-Identifier: Apache-2.0
// allreduce_small (collectives.h), for any P in ceil(log2 P) rounds with one message of m + 8 bytes
// each: the circulant schedule of Bar-Noy, Kipnis and Schieber ("An optimal algorithm for computing
// census functions in message-passing systems", 1993). A rank holds the result of ranks
// rank .. rank+S-1 (mod P), and the same without itself. The first, from rank+S, makes it 2S ranks;
// the second, from rank+S-1, makes it 2S-1: halving's numbers, up to P.
//
// Ranks reduce in different orders. Where order could change bits, in sums of floats, everyone
// gathers all values and folds them in rank order: (P-1)(m + 8) bytes.
#include <algorithm>
#include <compare>
#include <concepts>
#include <cstring>
#include <type_traits>

#include "oktopk/base/hash.h"
#include "oktopk/comm/collectives.h"

namespace oktopk {
namespace {

template <class T>
bool is_less(T a, T b) {
  if constexpr (std::floating_point<T>) return std::is_lt(std::strong_order(a, b));
  return a < b;
}

template <class T>
T sum(T a, T b) {
  if constexpr (std::floating_point<T>) {
    return a + b;
  } else {
    using Wrapping = std::make_unsigned_t<T>;  // a partial sum may overflow where the whole fits
    return static_cast<T>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
  }
}

template <class T>
T reduced(T a, T b, Reduction reduction) {
  switch (reduction) {
    case Reduction::max:
      return is_less(a, b) ? b : a;
    case Reduction::min:
      return is_less(b, a) ? b : a;
    case Reduction::sum:
      break;
  }
  return sum(a, b);
}

// into[i] = reduction of both, T by T.
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

// `mine` and its check to the rank `shift` before; what the rank `shift` further sent, until the
// next call. The check is one of this phase only: all messages have the same size.
std::span<const std::byte> exchange_checked(Communicator& comm, const Phase& phase, int shift,
                                            std::span<const std::byte> mine, Workspace& work) {
  const auto seed = static_cast<std::uint64_t>(phase.to_blocks);
  const std::size_t m = mine.size();
  work.checked.resize(2 * (m + kCheckBytes));
  const auto outgoing = std::span(work.checked).first(m + kCheckBytes);
  const auto incoming = std::span(work.checked).subspan(m + kCheckBytes);
  std::uint64_t check = hash_bytes(mine, seed);
  std::copy(mine.begin(), mine.end(), outgoing.begin());
  std::memcpy(outgoing.data() + m, &check, kCheckBytes);
  const Send send{neighbour(comm, -shift), outgoing};
  Recv recv{neighbour(comm, shift), incoming, 0};
  comm.exchange({&send, 1}, {&recv, 1});
  expect_size(comm, "allreduce", recv, m + kCheckBytes);
  std::memcpy(&check, incoming.data() + m, kCheckBytes);
  if (hash_bytes(incoming.first(m), seed) != check)
    fail_world(comm, "allreduce: the message from rank ", recv.peer, " is damaged, or of another round");
  return incoming.first(m);
}

template <class T>
void reduce_in_any_order(Communicator& comm, std::span<std::byte> all, Reduction reduction, Workspace& work) {
  work.gathered.resize(all.size());
  const auto others = std::span(work.gathered);  // like `all`, without this rank
  const auto phases = halving_phases(comm.size(), work);
  for (auto phase = phases.rbegin(); phase != phases.rend(); ++phase) {
    const int held = phase->to_blocks;
    const int shift = phase->from_blocks - held;  // `held`, or one less
    const auto received = exchange_checked(comm, *phase, shift, shift == held ? all : others, work);
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
  allgather_checked(comm, all, work.gathered, work);
  const auto blocks = std::span<const std::byte>(work.gathered);
  std::copy_n(blocks.begin(), m, all.begin());
  for (std::size_t at = m; at < blocks.size(); at += m) fold<T>(all, blocks.subspan(at, m), reduction);
}

}  // namespace

template <class T>
void allreduce_small(Communicator& comm, std::span<T> values, Reduction reduction, Workspace& work) {
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
