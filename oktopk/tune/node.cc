// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/node.h"

#include <cmath>

#include "oktopk/base/varint.h"

namespace oktopk {
namespace {

constexpr double kShort = 4096;  // values that cost messages rather than bytes

// The head of a frame with up to so many entries (codec/frame_head.h): a checksum and twice the
// count.
double frame_head(double entries) {
  return 4 + static_cast<double>(varint_bytes(static_cast<std::uint64_t>(2 * std::ceil(entries))));
}

}  // namespace

bool node_sums_by_tree(double n, int ranks) { return ranks == 2 || n <= kShort; }

Cost node_sum_cost(double n, int ranks) {
  const double messages = ceil_log2(ranks);
  if (node_sums_by_tree(n, ranks)) return sequential(messages, messages * 4 * n, 0, messages * n);
  const double others = n * (ranks - 1) / ranks;
  return sequential(messages, 4 * others, 0, others) + concurrent(ranks - 1, 4 * others) + Cost{.values = others};
}

Cost node_share_entries_cost(double entries, int ranks) {
  const double messages = ceil_log2(ranks);
  return sequential(messages, messages * (2 * frame_head(entries) + 8 * entries), entries);
}

Cost node_share_values_cost(double n, int ranks) {
  const double messages = ceil_log2(ranks);
  return sequential(messages, messages * 4 * n, 0, n);
}

}  // namespace oktopk
