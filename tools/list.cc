// SPDX-License-Identifier: Apache-2.0
// `oktopk list`: what can be combined, with a line each.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "oktopk/allreduce/presets.h"
#include "oktopk/codec/codec.h"
#include "oktopk/comm/transports.h"
#include "oktopk/laws/inputs.h"
#include "oktopk/select/selector.h"
#include "tools/commands.h"
#include "tools/options.h"

namespace oktopk {
namespace {

class Listing {
 public:
  void section(std::string_view title, std::string_view option) {
    section_ = title;
    fmt::print("{}{} ({})\n", rows_.empty() ? "" : "\n", title, option);
  }
  void row(std::string_view name, std::string_view summary) {
    fmt::print("  {:<12} {}\n", name, summary);
    rows_[section_].push_back({{"name", name}, {"summary", summary}});
  }
  const nlohmann::json& rows() const { return rows_; }

 private:
  std::string section_;
  nlohmann::json rows_;
};

int run_list(const std::string& json_file) {
  Listing out;
  out.section("presets", "--preset");
  for (const Preset& p : presets()) out.row(p.name, p.summary);
  out.section("index codings", "--codec INDEX+VALUE");
  for (const CodingInfo& c : index_codings()) out.row(c.name, c.summary);
  out.section("value codings", "--codec INDEX+VALUE");
  for (const CodingInfo& c : value_codings()) out.row(c.name, c.summary);
  out.section("selectors", "--selector");
  for (const SelectorInfo& s : selectors()) out.row(s.name, s.summary);
  out.section("residual rules", "--residual");
  out.row("sender_keeps", "what was sent in vain stays with its sender (Ok-Topk)");
  out.row("all_sent_cleared", "everything sent is applied");
  out.row("holder_keeps", "whoever prunes a partial sum keeps it (SparDL)");
  out.row("owner_memory", "the owner of a region remembers what was not selected (ours)");
  out.section("skip lists", "--skips");
  out.row("direct", "P-1 messages, least volume (Ok-Topk's split)");
  out.row("halving", "ceil(log2 P) messages (Traeff)");
  out.row("power", "ceil(log2 P) messages, SparDL's bags");
  out.row("grid", "about 2 sqrt(P) messages");
  out.row("radix:R", "about (R-1) log_R(P) messages");
  out.row("8,4,2,1", "any decreasing list from P to 1");
  out.section("transports", "--transport");
  out.row("threads", "P ranks inside this process");
  out.row("mpi", mpi_available() ? "the processes that mpirun started"
                                 : "not in this build: install OpenMPI or MPICH and build again");
  out.row("tcp", tcp_available() ? "the processes that oktopk run started"
                                 : "not in this build: install OpenSSL 3 and build again");
  out.section("data", "--data");
  for (const InputInfo& i : inputs()) out.row(i.name, i.summary);
  write_json(json_file, out.rows());
  return 0;
}

}  // namespace

void add_list(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand("list", "presets, codecs, selectors, transports: what can be combined");
  sub->group("Look up");
  auto json_file = std::make_shared<std::string>();
  add_json_to(*sub, *json_file);
  sub->callback([&action, json_file] { action = [json_file] { return run_list(*json_file); }; });
}

}  // namespace oktopk
