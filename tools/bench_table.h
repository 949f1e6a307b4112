// SPDX-License-Identifier: Apache-2.0
// The rows of `oktopk bench` as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/measure.h"

namespace oktopk {

// What the rows of one problem are compared with, in seconds; 0: not measured.
struct References {
  double dense = 0;
  double mpi = 0;
};

class BenchTable {
 public:
  struct Options {
    bool mpi = false;        // a column for MPI_Allreduce
    bool spread = false;     // columns for the fastest and the slowest rank
    bool breakdown = false;  // a line for the phases of each row
  };
  explicit BenchTable(const Options& options) : options_(options) {}

  void print_head() const;
  // Of the in-place axpy, and of MPI_Allreduce where it was measured.
  void print_references(const Row& row, const References& references) const;
  void print(const Row& row, const References& references) const;

 private:
  struct Column;
  std::vector<Column> columns() const;

  Options options_;
};

nlohmann::json to_json(const Row& row, const References& references);

}  // namespace oktopk
