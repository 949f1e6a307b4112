// SPDX-License-Identifier: Apache-2.0
#include "tools/trace_file.h"

#include <fmt/format.h>

#include <utility>

#include "oktopk/comm/decorators.h"
#include "tools/results.h"

namespace oktopk {

void TraceFile::add_option(CLI::App& sub, std::string& file) {
  sub.add_option("--trace", file,
                 "write what every rank did when to this file, for ui.perfetto.dev; slows steps "
                 "down a little");
}

TraceFile::TraceFile(std::string file, const Worlds& worlds) : file_(std::move(file)) {
  if (worlds.is_root()) check_writable(file_);
}

void TraceFile::write(Worlds& worlds, int P) {
  if (file_.empty()) return;
  if (worlds.has_processes()) worlds.run(P, [&](Station& station) { gather_trace(station.comm, trace_); });
  if (!worlds.is_root()) return;
  trace_.write(file_);
  fmt::print("# trace: {}, {} events", file_, trace_.size());
  if (trace_.dropped() > 0)
    fmt::print(", {} later ones dropped: at most {} fit (fewer steps, sizes or presets)", trace_.dropped(),
               Trace::kMostEvents);
  fmt::print("\n");
}

}  // namespace oktopk
