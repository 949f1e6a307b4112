// SPDX-License-Identifier: Apache-2.0
// The rows of `oktopk bench` as text and as JSON: one table of fields serves both.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/measure.h"
#include "tools/text.h"

namespace oktopk {

class BenchTable {
 public:
  struct Options {
    bool mpi = false;        // a column for MPI_Allreduce
    bool spread = false;     // columns for the fastest and the slowest rank
    bool breakdown = false;  // a line for the phases of each row
  };
  explicit BenchTable(const Options& options);

  void print_head() const { table_.print_head(); }
  // The times of the in-place axpy and, where it was measured, of MPI_Allreduce.
  void print_references(const Row& row) const;
  void print(const Row& row) const;

 private:
  void print_reference(Row row, const std::string& name, double seconds) const;

  Options options_;
  TextTable table_;
};

nlohmann::json to_json(const Row& row);

}  // namespace oktopk
