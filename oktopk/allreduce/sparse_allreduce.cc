// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/presets.h"

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/base/error.h"

namespace oktopk {

Outcome sparse_allreduce(Communicator& comm, CooView selection, Index n, std::size_t k, const std::string& preset,
                         AllreduceOptions options) {
  const Preset& row = find_preset(preset);
  require(options.residual != ResidualKind::owner_memory,
          "sparse_allreduce: owner memory needs a Reducer, which keeps it between steps");
  if (options.residual == ResidualKind::none && row.residuals.front() == ResidualKind::owner_memory)
    options.residual = ResidualKind::sender_keeps;
  const auto allreduce = make_allreduce(row, options);
  require(!allreduce->is_dense(), "sparse_allreduce: preset ", preset, " sends all n values");
  const auto device = make_cpu_device();
  Outcome out;
  allreduce->run(comm, *device, {.selection = selection}, n, k, out);
  return out;
}

}  // namespace oktopk
