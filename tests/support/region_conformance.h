// SPDX-License-Identifier: Apache-2.0
// Checks of the collectives over regions of a vector, in floats and in halves, that all ranks of a
// communicator call together. Inputs are dyadic (multiples of 1/8, small): float sums are exact in
// any order.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <string>
#include <vector>

#include "oktopk/comm/collectives.h"

namespace oktopk::conformance {

// The same schedules for every P: those with a name, and one that is irregular.
inline std::vector<Skips> all_skips(int P) {
  std::vector<Skips> skips{direct_skips(P), halving_skips(P), power_skips(P), grid_skips(P), radix_skips(P, 3)};
  Skips every;
  for (int s = P; s >= 1; --s) every.push_back(s);
  skips.push_back(every);
  return skips;
}

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

inline void reduce_scatter_sums_regions_by_any_skips(Communicator& comm) {
  Workspace work;
  for (const Skips& skips : all_skips(comm.size())) {
    const auto phases = circulant_phases(skips);
    for_each_vector(comm, [&](std::vector<float> data, const auto& cuts, const auto& sum) {
      SCOPED_TRACE(to_string(skips));
      reduce_scatter(comm, data, cuts, phases, work);
      expect_own_region(comm, data, cuts, sum);
      allgather_regions(comm, data, cuts, phases, work);
      EXPECT_EQ(data, sum);
    });
  }
}

inline void ring_sums_regions(Communicator& comm) {
  Workspace work;
  for_each_vector(comm, [&](std::vector<float> data, const auto& cuts, const auto& sum) {
    ring_reduce_scatter(comm, data, cuts, work);
    expect_own_region(comm, data, cuts, sum);
    ring_allgather(comm, data, cuts);
    EXPECT_EQ(data, sum);
  });
}

// A coding of sums that cuts off their lower half.
inline constexpr HalfSums kUpperHalf{
    .split =
        [](std::span<float> sums, std::span<Bf16> halves) {
          for (std::size_t i = 0; i < sums.size(); ++i) {
            halves[i].bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(sums[i]) >> 16);
            sums[i] -= to_float(halves[i]);
          }
        },
    .add =
        [](std::span<const Bf16> halves, std::span<float> sums) {
          for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += to_float(halves[i]);
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

inline void regions_of_halves_lose_nothing_by_any_skips(Communicator& comm) {
  Workspace work;
  for (const Skips& skips : all_skips(comm.size())) {
    const auto phases = circulant_phases(skips);
    for_each_vector(comm, [&](std::vector<float> data, const auto& cuts, std::vector<float> sum) {
      SCOPED_TRACE(to_string(skips));
      widen(data);
      widen(sum);
      reduce_scatter(comm, data, cuts, phases, work, kUpperHalf);
      expect_nothing_lost(comm, data, sum, work);
      std::vector<Bf16> halves = own_halves(comm, cuts);
      allgather_regions(comm, halves, cuts, phases, work);
      expect_all_halves(halves, cuts);
    });
  }
}

inline void ring_of_halves_loses_nothing(Communicator& comm) {
  Workspace work;
  for_each_vector(comm, [&](std::vector<float> data, const auto& cuts, std::vector<float> sum) {
    widen(data);
    widen(sum);
    ring_reduce_scatter(comm, data, cuts, work, kUpperHalf);
    expect_nothing_lost(comm, data, sum, work);
    std::vector<Bf16> halves = own_halves(comm, cuts);
    ring_allgather(comm, halves, cuts);
    expect_all_halves(halves, cuts);
  });
}

inline void reduces_to_rank_0_by_tree_and_by_regions(Communicator& comm) {
  Workspace work;
  for_each_vector(comm, [&](const std::vector<float>& mine, const auto& cuts, const auto& sum) {
    std::vector<float> by_tree = mine;
    tree_reduce(comm, by_tree, work);
    std::vector<float> by_regions = mine;
    reduce_scatter(comm, by_regions, cuts, halving_phases(comm.size(), work), work);
    gather_regions(comm, by_regions, cuts, work);
    if (comm.rank() != 0) return;
    EXPECT_EQ(by_tree, sum);
    EXPECT_EQ(by_regions, sum);
  });
}

}  // namespace oktopk::conformance
