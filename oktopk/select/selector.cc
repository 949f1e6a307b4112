// SPDX-License-Identifier: Apache-2.0
#include "oktopk/select/selector.h"

#include <algorithm>
#include <array>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

constexpr std::array<SelectorInfo, 6> kSelectors = {{
    {"exact", "the k largest magnitudes, exactly", make_exact},
    {"quota", "the k/P largest of each of P equal regions", make_quota},
    {"reused", "exact threshold every tau' steps, reused in between (Ok-Topk)", make_reused},
    {"gaussian", "threshold from a fitted normal distribution (Gaussiank)", make_gaussian},
    {"controlled", "threshold steered by the counts it yields, trimmed to k (ours)", make_controlled},
    {"integer", "threshold as an integer, steered by counts: the same on a GPU (ours)", make_integer},
}};

// A threshold that was far too low once let up to n entries through. Gives their memory back: a selection is O(k).
void release_excess(SparseVector& out, std::size_t most) {
  constexpr std::size_t kKept = 1U << 16U;
  if (out.idx.capacity() <= std::max(kKept, 8 * most)) return;
  out.idx.shrink_to_fit();
  out.val.shrink_to_fit();
}

}  // namespace

void Selector::select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out,
                      std::size_t most) {
  const std::size_t n = in.acc.size();
  require(n < (std::uint64_t{1} << 32), "select: n = ", n, ", but n must be below 2^32");
  require(in.gradient.empty() || in.gradient.size() == n, "select: the gradient has ", in.gradient.size(),
          " entries, the accumulator ", n);
  require(n == 0 ? k == 0 : (k >= 1 && k <= n), "select: k = ", k, ", but k must be in 1..n with n = ", n);
  out.clear();
  if (n == 0) return;
  do_select(device, in, k, out);
  if (out.size() > most) keep_largest(out, most);
  release_excess(out, max_selection(k));
  OKTOPK_DCHECK(is_canonical(out));
}

std::span<const SelectorInfo> selectors() { return kSelectors; }

std::unique_ptr<Selector> make_selector(std::string_view name, const SelectorOptions& options) {
  return find_row(kSelectors, "selector", name).make(options);
}

}  // namespace oktopk
