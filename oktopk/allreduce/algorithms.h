// SPDX-License-Identifier: Apache-2.0
// Factories of the algorithms, one per file of the same name; presets.cc puts them into its table.
#pragma once

#include <memory>

#include "oktopk/allreduce/allreduce.h"

namespace oktopk {

std::unique_ptr<Allreduce> make_dense(const AllreduceOptions& options);
std::unique_ptr<Allreduce> make_topka(const AllreduceOptions& options);
std::unique_ptr<Allreduce> make_gaussiank(const AllreduceOptions& options);
std::unique_ptr<Allreduce> make_topkdsa(const AllreduceOptions& options);
std::unique_ptr<Allreduce> make_gtopk(const AllreduceOptions& options);
std::unique_ptr<Allreduce> make_topka2a(const AllreduceOptions& options);
std::unique_ptr<Allreduce> make_oktopk(const AllreduceOptions& options);
std::unique_ptr<Allreduce> make_spardl(const AllreduceOptions& options);
std::unique_ptr<Allreduce> make_circulant(const AllreduceOptions& options);

// Which of its two schedules dense takes for n values on P ranks.
bool dense_uses_ring(const AllreduceOptions& options, double n, int P);

}  // namespace oktopk
