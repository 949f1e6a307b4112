// SPDX-License-Identifier: Apache-2.0
// The dispatch on processors without variants of their own.
#include "oktopk/cpu/kernels.h"

namespace oktopk {

const Kernels& kernels(SimdLevel /*level*/) {
  static constexpr Kernels kScalar = {kScalarEntries, kScalarCodings, kScalarElements};
  return kScalar;
}

}  // namespace oktopk
