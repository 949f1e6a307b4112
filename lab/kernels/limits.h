// SPDX-License-Identifier: Apache-2.0
// The limits that memory sets: the plainest passes over n elements, in the widest vectors that this machine has,
// whatever level the kernels are limited to. A kernel is timed beside the pass that moves the same bytes, on as many
// cores.
#pragma once

#include <cstddef>
#include <span>

#include "oktopk/base/gradient.h"
#include "oktopk/device/thread_pool.h"

namespace oktopk {

class Limits {
 public:
  // Each pass is cut into so many equal pieces. UsageError unless threads >= 1.
  explicit Limits(int threads = 1);

  float read(std::span<const float> x);  // the sum, in any order
  void copy(std::span<std::byte> to, std::span<const std::byte> from);
  // y += a * x; product and sum are rounded, as everywhere. REQUIRES: equal sizes; x is float or bfloat16.
  void axpy(std::span<float> y, Gradient x, float a);

 private:
  template <class Body>
  void share(std::size_t size, const Body& body);

  ThreadPool pool_;
};

}  // namespace oktopk
