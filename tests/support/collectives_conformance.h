// SPDX-License-Identifier: Apache-2.0
// Checks of the collectives that all ranks of a communicator call together, on any transport.
// Inputs are dyadic (multiples of 1/8, small): float sums are exact in any order.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "oktopk/comm/collectives.h"
#include "tests/support/communicator_conformance.h"
#include "tests/support/region_conformance.h"

namespace oktopk::conformance {

inline void barrier_holds_everyone(Communicator& comm) {
  for (int i = 0; i < 10; ++i) barrier(comm);
}

inline void broadcast_reaches_everyone_from_any_root(Communicator& comm) {
  for (int root = 0; root < comm.size(); ++root) {
    for (const std::size_t size : {0, 1, 1000}) {
      const Message truth = message(root, root, 1, size);
      Message data = comm.rank() == root ? truth : Message(size);
      broadcast(comm, root, data);
      EXPECT_EQ(data, truth);
      Message roomy = truth;
      if (comm.rank() != root) roomy.assign(size + 77, std::byte{0});
      EXPECT_EQ(broadcast_up_to(comm, root, roomy, size), size);
      roomy.resize(size);
      EXPECT_EQ(roomy, truth);
    }
  }
  EXPECT_THROW(broadcast(comm, comm.size(), std::span<float>{}), UsageError);
}

inline void allgather_collects_in_rank_order(Communicator& comm) {
  Workspace work;
  const auto P = static_cast<std::size_t>(comm.size());
  for (const std::size_t size : {0, 1, 12, 5000}) {
    Message all(P * size);
    allgather(comm, message(comm.rank(), 0, 2, size), all, work);
    for (std::size_t r = 0; r < P; ++r) {
      const Message block(all.begin() + static_cast<std::ptrdiff_t>(r * size),
                          all.begin() + static_cast<std::ptrdiff_t>((r + 1) * size));
      EXPECT_EQ(block, message(static_cast<int>(r), 0, 2, size));
    }
  }
  Message wrong(P * 3 + 1);
  EXPECT_THROW(allgather(comm, Message(3), wrong, work), UsageError);
}

inline Message block_of(std::span<const std::byte> bytes) { return Message(bytes.begin(), bytes.end()); }

inline void allgatherv_collects_blocks_of_any_size(Communicator& comm) {
  Gathered out;
  const auto P = static_cast<std::size_t>(comm.size());
  std::mt19937 random(3);
  for (int round = 0; round < 12; ++round) {
    std::vector<std::size_t> sizes(P), capacities(P);
    for (std::size_t r = 0; r < P; ++r) {
      sizes[r] = round % 3 == 0 && r % 2 == 0 ? 0 : random() % (round == 5 ? 60000 : 500);
      capacities[r] = sizes[r] + (round % 2 == 0 ? 0 : random() % 1000);
    }
    const auto self = static_cast<std::size_t>(comm.rank());
    allgatherv(comm, message(comm.rank(), 0, round, sizes[self]), capacities, out);
    for (std::size_t r = 0; r < P; ++r) {
      const int rank = static_cast<int>(r);
      ASSERT_EQ(block_of(out.of(rank)), message(rank, 0, round, sizes[r])) << "block of " << r;
    }
  }
  const std::vector<std::size_t> none(P, 0);
  EXPECT_THROW(allgatherv(comm, Message(1), none, out), UsageError);
}

inline void equal_settings_are_accepted_and_others_refused_everywhere(Communicator& comm) {
  Workspace work;
  require_equal(comm, "check", "n = 8, list 1 2 3", work);
  if (comm.size() == 1) return;
  const bool is_last = comm.rank() == comm.size() - 1;
  const std::string mine = is_last ? "n = 8, list 1 2 3, more" : "n = 8, list 1 2 4";
  try {
    require_equal(comm, "check", mine, work);
    ADD_FAILURE() << "different settings were accepted";
  } catch (const UsageError& error) {
    const std::string last = std::to_string(comm.size() - 1);
    EXPECT_EQ(error.what(), "check: rank " + last + " has list 1 2 3, rank 0 has list 1 2 4");
  }
  barrier(comm);
}

template <class T>
void check_allreduce_small(Communicator& comm, Workspace& work) {
  const int P = comm.size();
  for (const std::size_t n : {0, 1, 17}) {
    std::vector<T> mine(n), sum(n, T{0}), most(n, T{0}), least(n, T{100});
    for (int r = 0; r < P; ++r) {
      for (std::size_t i = 0; i < n; ++i) {
        const T value = static_cast<T>((static_cast<std::size_t>(r) * 7 + i * 3) % 23);
        if (r == comm.rank()) mine[i] = value;
        sum[i] = static_cast<T>(sum[i] + value);
        most[i] = std::max(most[i], value);
        least[i] = std::min(least[i], value);
      }
    }
    for (const auto& [reduction, truth] :
         {std::pair(Reduction::sum, sum), std::pair(Reduction::max, most), std::pair(Reduction::min, least)}) {
      std::vector<T> values = mine;
      allreduce_small<T>(comm, values, reduction, work);
      EXPECT_EQ(values, truth);
    }
  }
}

inline void allreduce_small_reduces_every_type(Communicator& comm) {
  Workspace work;
  check_allreduce_small<float>(comm, work);
  check_allreduce_small<double>(comm, work);
  check_allreduce_small<std::uint32_t>(comm, work);
  check_allreduce_small<std::uint64_t>(comm, work);
  check_allreduce_small<std::int64_t>(comm, work);
}

inline void allreduce_small_agrees_bitwise_on_rounded_sums(Communicator& comm) {
  Workspace work;
  std::mt19937_64 random(static_cast<unsigned>(comm.rank()));
  const double mine = std::uniform_real_distribution<double>(-1, 1)(random);
  const double sum = allreduce_small(comm, mine, Reduction::sum, work);
  const auto bits = std::bit_cast<std::uint64_t>(sum);
  EXPECT_EQ(allreduce_small(comm, bits, Reduction::max, work), bits);
  EXPECT_EQ(allreduce_small(comm, bits, Reduction::min, work), bits);
}

inline constexpr Check kCollectiveChecks[] = {
    {"barrier_holds_everyone", barrier_holds_everyone, false},
    {"broadcast_reaches_everyone_from_any_root", broadcast_reaches_everyone_from_any_root, false},
    {"allgather_collects_in_rank_order", allgather_collects_in_rank_order, false},
    {"allgatherv_collects_blocks_of_any_size", allgatherv_collects_blocks_of_any_size, false},
    {"equal_settings_are_accepted_and_others_refused_everywhere",
     equal_settings_are_accepted_and_others_refused_everywhere, false},
    {"dense_sums_are_exact", dense_sums_are_exact, false},
    {"dense_sums_of_halves_lose_nothing", dense_sums_of_halves_lose_nothing, false},
    {"reduces_to_rank_0_by_tree_and_by_regions", reduces_to_rank_0_by_tree_and_by_regions, false},
    {"allreduce_small_reduces_every_type", allreduce_small_reduces_every_type, false},
    {"allreduce_small_agrees_bitwise_on_rounded_sums", allreduce_small_agrees_bitwise_on_rounded_sums, false},
};

}  // namespace oktopk::conformance
