// SPDX-License-Identifier: Apache-2.0
// `--trace FILE`: the events of all ranks of a command in one file, for ui.perfetto.dev
// (docs/observability.md). Threads share one trace; processes have one each, gathered at the end.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "oktopk/trace/trace.h"
#include "tools/worlds.h"

namespace oktopk {

class TraceFile {
 public:
  static void add_option(CLI::App& sub, std::string& file);

  // No file: no trace. UsageError when the file cannot be written.
  TraceFile(std::string file, const Worlds& worlds);

  // What ranks record to; nullptr without a file.
  Trace* trace() { return file_.empty() ? nullptr : &trace_; }
  // Collective over the processes: gathers the events of ranks 0 ... P-1, writes the file, and says
  // so in a line.
  void write(Worlds& worlds, int P);

 private:
  std::string file_;
  Trace trace_;
};

}  // namespace oktopk
