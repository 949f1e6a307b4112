// SPDX-License-Identifier: Apache-2.0
// Checks of dense sums (allreduce/parts/dense_sum.h), in floats and in halves, that all ranks of a communicator call
// together. Inputs are dyadic (multiples of 1/8, small): float sums are exact in any order.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>
#include <vector>

#include "oktopk/allreduce/parts/dense_sum.h"
#include "oktopk/base/gradient.h"

namespace oktopk::conformance {

inline constexpr DenseRounds kDenseRounds[] = {DenseRounds::halving, DenseRounds::ring};

inline float dyadic(int rank, std::size_t i) {
  return static_cast<float>(static_cast<int>((i * 31 + static_cast<std::size_t>(rank) * 17) % 257) - 128) / 8;
}

// Cuts of [0, n) into P regions: even, all in one, and uneven with empty ones.
inline std::vector<std::vector<std::size_t>> all_cuts(int P, std::size_t n) {
  const auto ranks = static_cast<std::size_t>(P);
  std::vector<std::size_t> even(ranks + 1), last(ranks + 1, 0), uneven(ranks + 1, 0);
  for (std::size_t r = 0; r <= ranks; ++r) even[r] = n * r / ranks;
  last[ranks] = n;
  std::mt19937 random(7);
  for (std::size_t r = 1; r < ranks; ++r) uneven[r] = random() % (n + 1);
  uneven[ranks] = n;
  std::sort(uneven.begin(), uneven.end());
  return {even, last, uneven};
}

inline std::vector<float> local_vector(int rank, std::size_t n) {
  std::vector<float> data(n);
  for (std::size_t i = 0; i < n; ++i) data[i] = dyadic(rank, i);
  return data;
}

inline std::vector<float> summed_vector(int P, std::size_t n) {
  std::vector<float> data(n, 0.0f);
  for (int r = 0; r < P; ++r) {
    for (std::size_t i = 0; i < n; ++i) data[i] += dyadic(r, i);
  }
  return data;
}

// Calls visit(data, cuts, sum) for sizes and cuts that are even, empty and skewed.
template <class Visit>
void for_each_vector(Communicator& comm, Visit visit) {
  for (const std::size_t n : {0, 1, 5, 64, 3001}) {
    const std::vector<float> sum = summed_vector(comm.size(), n);
    for (const auto& cuts : all_cuts(comm.size(), n)) {
      visit(local_vector(comm.rank(), n), cuts, sum);
    }
  }
}

inline void expect_own_region(const Communicator& comm, const std::vector<float>& data,
                              const std::vector<std::size_t>& cuts, const std::vector<float>& sum) {
  const auto r = static_cast<std::size_t>(comm.rank());
  for (std::size_t i = cuts[r]; i < cuts[r + 1]; ++i) ASSERT_EQ(data[i], sum[i]) << i;
}

inline void dense_sums_are_exact(Communicator& comm) {
  Workspace work;
  for (const DenseRounds rounds : kDenseRounds)
    for_each_vector(comm, [&](std::vector<float> data, const auto& cuts, const auto& sum) {
      dense_reduce_scatter(comm, data, cuts, rounds, work);
      expect_own_region(comm, data, cuts, sum);
      dense_allgather(comm, std::as_writable_bytes(std::span(data)), sizeof(float), cuts, rounds, work);
      EXPECT_EQ(data, sum);
    });
}

// A coding of sums that cuts off their lower half.
inline constexpr SumCoding kUpperHalf{
    .width = sizeof(std::uint16_t),
    .is_plain = false,
    .split =
        [](std::span<float> sums, std::span<std::byte> wire) {
          for (std::size_t i = 0; i < sums.size(); ++i) {
            const auto half = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(sums[i]) >> 16);
            std::memcpy(wire.data() + 2 * i, &half, 2);
            sums[i] -= to_float(Bf16{half});
          }
        },
    .add =
        [](std::span<const std::byte> wire, std::span<float> sums) {
          for (std::size_t i = 0; i < sums.size(); ++i) {
            Bf16 half;
            std::memcpy(&half.bits, wire.data() + 2 * i, 2);
            sums[i] += to_float(half);
          }
        }};

// Own region summed, and what the ranks did not send of the others: together all that was brought.
inline void expect_nothing_lost(Communicator& comm, std::vector<float> data, const std::vector<float>& sum,
                                Workspace& work) {
  allreduce_small(comm, std::span(data), Reduction::sum, work);
  EXPECT_EQ(data, sum);
}

// More bits than a half has.
inline void widen(std::vector<float>& x) {
  for (float& value : x) value *= 513;
}

// Regions of halves that name their rank and place.
inline std::vector<Bf16> own_halves(const Communicator& comm, const std::vector<std::size_t>& cuts) {
  std::vector<Bf16> data(cuts.back());
  const auto r = static_cast<std::size_t>(comm.rank());
  for (std::size_t i = cuts[r]; i < cuts[r + 1]; ++i) data[i].bits = static_cast<std::uint16_t>(1000 * r + i % 1000);
  return data;
}

inline void expect_all_halves(const std::vector<Bf16>& data, const std::vector<std::size_t>& cuts) {
  for (std::size_t r = 0; r + 1 < cuts.size(); ++r)
    for (std::size_t i = cuts[r]; i < cuts[r + 1]; ++i) ASSERT_EQ(data[i].bits, 1000 * r + i % 1000) << i;
}

inline void dense_sums_of_halves_lose_nothing(Communicator& comm) {
  Workspace work;
  for (const DenseRounds rounds : kDenseRounds)
    for_each_vector(comm, [&](std::vector<float> data, const auto& cuts, std::vector<float> sum) {
      widen(data);
      widen(sum);
      dense_reduce_scatter(comm, data, cuts, rounds, work, kUpperHalf);
      expect_nothing_lost(comm, data, sum, work);
      std::vector<Bf16> halves = own_halves(comm, cuts);
      dense_allgather(comm, std::as_writable_bytes(std::span(halves)), sizeof(Bf16), cuts, rounds, work);
      expect_all_halves(halves, cuts);
    });
}

inline void reduces_to_rank_0_by_tree_and_by_regions(Communicator& comm) {
  Workspace work;
  for_each_vector(comm, [&](const std::vector<float>& mine, const auto& cuts, const auto& sum) {
    std::vector<float> by_tree = mine;
    tree_reduce(comm, by_tree, work);
    std::vector<float> by_regions = mine;
    dense_reduce_scatter(comm, by_regions, cuts, DenseRounds::halving, work);
    gather_regions(comm, by_regions, cuts, work);
    if (comm.rank() != 0) return;
    EXPECT_EQ(by_tree, sum);
    EXPECT_EQ(by_regions, sum);
  });
}

}  // namespace oktopk::conformance
