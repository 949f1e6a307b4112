// SPDX-License-Identifier: Apache-2.0
// A selector decides what leaves this rank: about k of the n entries of the accumulator, by magnitude. It also folds
// the new gradient into the accumulator, because the fast way does both in one pass. Each selector is a local class in
// a file of its own, with a factory below and a row in the table of selector.cc.
//
// Contract of every selector: the selection is canonical, holds no zeros, and at most `most` entries, usually
// max_selection(k) = 2k (a threshold that lets more through is followed by a trim), so that peers can post receives of
// bounded capacity. Which
// entries: larger magnitude first, ties by smaller index; for threshold selectors, those with magnitude >= threshold.
// Values that are not finite count as the largest: if the accumulator has any, one is selected, and Allreduce::run
// refuses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "oktopk/base/state.h"
#include "oktopk/device/device.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

inline std::size_t max_selection(std::size_t k) { return 2 * k; }

class Selector {
 public:
  virtual ~Selector() = default;
  virtual std::string_view name() const = 0;

  // REQUIRES: 1 <= k <= n (or n = 0 and k = 0), n < 2^32, gradient empty or of size n.
  void select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out, std::size_t most);
  void select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) {
    select(device, in, k, out, max_selection(k));
  }

  // The state is all that the next selection depends on besides the accumulator.
  virtual void save(StateWriter& /*state*/) const {}
  virtual void load(StateReader& /*state*/) {}

 protected:
  virtual void do_select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) = 0;
};

struct SelectorOptions {
  int tau_prime = 32;  // reused: steps between two exact evaluations
  // reused: corrects the threshold by the counts in between, as Ok-Topk's released code does
  bool follows_counts = false;
  int P = 1;  // quota: the number of equal regions; integer: of owners
};

struct SelectorInfo {
  std::string_view name;
  std::string_view summary;
  std::unique_ptr<Selector> (*make)(const SelectorOptions& options);
};
std::span<const SelectorInfo> selectors();
// UsageError lists the names that exist.
std::unique_ptr<Selector> make_selector(std::string_view name, const SelectorOptions& options = {});

// The factories.
std::unique_ptr<Selector> make_exact(const SelectorOptions& options);
std::unique_ptr<Selector> make_quota(const SelectorOptions& options);
std::unique_ptr<Selector> make_reused(const SelectorOptions& options);
std::unique_ptr<Selector> make_gaussian(const SelectorOptions& options);
std::unique_ptr<Selector> make_controlled(const SelectorOptions& options);
std::unique_ptr<Selector> make_integer(const SelectorOptions& options);

// Folds the gradient in and writes the k largest entries. COST: one pass over n, three where a sample does not help.
void select_exact(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out);
// The same. Returns the k-th magnitude as a threshold; 0 when fewer than k values differ from zero, or when it is not
// finite.
float select_for_threshold(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out);

// Appends the `count` largest entries of x, all of them if there are fewer, and those that share a bin of the magnitude
// histogram with the last. COST: two passes.
void select_bins(const Device& device, std::span<const float> x, Index base, std::size_t count, SparseVector& out);

// x with P(Z <= x) = p for a standard normal Z; |error| < 1e-11. REQUIRES: 0 < p < 1.
double normal_quantile(double p);

}  // namespace oktopk
