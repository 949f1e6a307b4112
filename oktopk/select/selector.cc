// SPDX-License-Identifier: Apache-2.0
#include "oktopk/select/selector.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "oktopk/select/controlled.h"
#include "oktopk/select/exact.h"
#include "oktopk/select/gaussian.h"
#include "oktopk/select/quota.h"
#include "oktopk/select/reused.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

constexpr std::array<SelectorInfo, 5> kSelectors = {{
    {SelectorKind::exact, "exact", "the k largest magnitudes, exactly"},
    {SelectorKind::quota, "quota", "the k/P largest of each of P equal regions"},
    {SelectorKind::reused, "reused", "exact threshold every tau' steps, reused in between (Ok-Topk)"},
    {SelectorKind::gaussian, "gaussian", "threshold from a fitted normal distribution (Gaussiank)"},
    {SelectorKind::controlled, "controlled", "threshold steered by the counts it yields, trimmed to k (ours)"},
}};

void check_finite(const Device& device, const Accumulation& in) {
  require(std::isfinite(in.scale), "select: scale = ", in.scale, ", but it must be finite");
  const std::size_t bad = device.first_nonfinite(in.gradient);
  require(bad == in.gradient.size(), "select: gradient[", bad,
          "] = ", bad < in.gradient.size() ? in.gradient[bad] : 0.0F, ", but all entries must be finite");
}

// Values that are not finite count as the largest: if there are any, one is selected.
void check_selected(const Device& device, const Accumulation& in, const SparseVector& out) {
  const std::size_t bad = device.first_nonfinite(out.val);
  if (bad == out.size()) return;
  const Index i = out.idx[bad];
  require(in.gradient.empty() || std::isfinite(in.gradient[i]), "select: gradient[", i,
          "] = ", in.gradient.empty() ? 0.0F : in.gradient[i], ", but all entries must be finite");
  fail<UsageError>("select: the accumulator overflowed at index ", i, ": scale the gradient down");
}

// A threshold that was far too low once let up to n entries through. Their memory is given back:
// a selection is O(k).
void release_excess(SparseVector& out, std::size_t most) {
  constexpr std::size_t kKept = 1U << 16U;
  if (out.idx.capacity() <= std::max(kKept, 8 * most)) return;
  out.idx.shrink_to_fit();
  out.val.shrink_to_fit();
}

}  // namespace

void Selector::select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out, Checked checked) {
  const std::size_t n = in.acc.size();
  require(n < (std::uint64_t{1} << 32), "select: n = ", n, ", but n must be below 2^32");
  require(in.gradient.empty() || in.gradient.size() == n, "select: the gradient has ", in.gradient.size(),
          " entries, the accumulator ", n);
  require(n == 0 ? k == 0 : (k >= 1 && k <= n), "select: k = ", k, ", but k must be in 1..n with n = ", n);
  if (checked == Checked::no) check_finite(device, in);
  out.clear();
  if (n == 0) return;
  do_select(device, in, k, out);
  if (out.size() > max_selection(k)) keep_largest(out, max_selection(k));
  release_excess(out, max_selection(k));
  check_selected(device, in, out);
  OKTOPK_DCHECK(is_canonical(out));
}

std::span<const SelectorInfo> selectors() { return kSelectors; }

std::unique_ptr<Selector> make_selector(SelectorKind kind, const SelectorOptions& options) {
  switch (kind) {
    case SelectorKind::exact:
      return std::make_unique<ExactSelector>();
    case SelectorKind::quota:
      return std::make_unique<QuotaSelector>(options.P);
    case SelectorKind::reused:
      return std::make_unique<ReusedSelector>(options.tau_prime, options.follows_counts);
    case SelectorKind::gaussian:
      return std::make_unique<GaussianSelector>();
    case SelectorKind::controlled:
      return std::make_unique<ControlledSelector>();
  }
  fail<UsageError>("make_selector: unknown kind");
}

SelectorKind find_selector(std::string_view name) { return find_row(kSelectors, "selector", name).kind; }

}  // namespace oktopk
