// SPDX-License-Identifier: Apache-2.0
#include "tools/simulate/resident.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "oktopk/codec/frame.h"
#include "oktopk/tune/cost.h"

namespace oktopk {
namespace {

constexpr double kEntry = 8;
constexpr double kValue = 4;
constexpr double kPage = 4096;
constexpr double kHugePage = 2 << 20;  // of memory from twice this size on (base/bytes.cc)

struct ResidentSizes {
  double n;
  double k;
  double P;
  double k_union;
  double rounds;  // ceil(log2 P)
};

// Selection, frames out and in of a direct split. Every incoming frame has a buffer of its own,
// with room for a whole region: its last page is rarely full.
double direct_split(const ResidentSizes& s) {
  const double frame = expected_frame_bytes({}, s.k / s.P, s.n / s.P);
  const double room = expected_frame_bytes({}, std::min(2 * s.k, s.n / s.P), s.n / s.P);
  return kEntry * 2 * s.k + s.P * std::min(room, frame + kPage);
}

double dense(const ResidentSizes& s) {
  const bool ring = dense_uses_ring({}, s.n, static_cast<int>(s.P));
  return kValue * (2 * s.n + s.n / (ring ? s.P : 1));
}

double gather_all(const ResidentSizes& s) {
  return kEntry * (2 * s.k + 2 * s.P * s.k + s.k_union);  // as they came, decoded, summed
}

// Entries decoded, the region's sums merged, as a dense block and as a frame.
double equal_regions(const ResidentSizes& s) {
  return direct_split(s) + kEntry * (s.k + 2 * s.k_union / s.P) + kValue * 2 * s.n / s.P;
}

double topkdsa(const ResidentSizes& s) {
  const double gathered = std::min(kEntry * s.k_union, kValue * s.n);
  return equal_regions(s) + gathered + kEntry * s.k_union;
}

double topka2a(const ResidentSizes& s) { return equal_regions(s) + kValue * s.n + kEntry * s.k_union; }

// Kept, encoded, received, decoded, merged, applied; pruned in every round.
double gtopk(const ResidentSizes& s) { return kEntry * s.k * (7 + s.rounds / 2); }

// The dense region; what it shares, as entries and as a frame; gathered and applied.
double oktopk_gathering(const ResidentSizes& s, double shared) {
  return direct_split(s) + kValue * s.n / s.P + kEntry * shared * (2 + 2 / s.P);
}

double oktopk(const ResidentSizes& s) { return oktopk_gathering(s, s.k) + kEntry * s.k; }

double oktopk_refresh(const ResidentSizes& s) { return oktopk_gathering(s, s.k_union); }

double spardl(const ResidentSizes& s) { return kEntry * s.k * (7 + s.rounds); }

// Entries that travel, of the region's memory, of what is gathered; and the memory itself, with the
// room it keeps. What is gathered lies in a buffer with room for k entries of every region.
double circulant(const ResidentSizes& s) {
  const double room = kEntry * s.P * std::min(s.k, s.n / s.P);
  const double gathered = kEntry * 1.1 * s.k;
  const double gather = room < 2 * kHugePage ? gathered : std::ceil(gathered / kHugePage) * kHugePage;
  return kEntry * (6 * s.k + 5 * s.k_union / s.P) + 1.25 * kValue * s.n / s.P + gather;
}

struct Formula {
  std::string_view name;
  double (*bytes)(const ResidentSizes&);
};
constexpr std::array<Formula, 10> kRows = {{
    {"dense", dense},
    {"topka", gather_all},
    {"gaussiank", gather_all},
    {"topkdsa", topkdsa},
    {"gtopk", gtopk},
    {"topka2a", topka2a},
    {"oktopk", oktopk},
    {"oktopk_refresh", oktopk_refresh},
    {"spardl", spardl},
    {"circulant", circulant},
}};

}  // namespace

double resident_bytes(std::string_view preset, double n, double k, int P) {
  require(P >= 1, "resident bytes: P = ", P, ", must be at least 1");
  require(k >= 1 && k <= n, "resident bytes: k = ", k, ", must be in 1..n with n = ", n);
  const Problem problem{.n = n, .k = k, .P = P};
  return find_row(kRows, "preset", preset)
      .bytes({n, k, static_cast<double>(P), problem.union_of(P), static_cast<double>(ceil_log2(P))});
}

}  // namespace oktopk
