// SPDX-License-Identifier: Apache-2.0
// `oktopk-lab report`: a page from a document (tools/page.h, with Bars among the plots), or from the results that
// bench, simulate and other subcommands write with -J: a table, and a plot of the time.
#include <fmt/format.h>

#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <set>

#include "lab/bars.h"
#include "lab/commands.h"
#include "oktopk/base/error.h"
#include "tools/text.h"

namespace oktopk {
namespace {

nlohmann::json read_document(const std::string& file) {
  // An absent number is null in JSON and NaN in a plot.
  const auto null_to_nan = [](int /*depth*/, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (event == nlohmann::json::parse_event_t::value && value.is_null())
      value = std::numeric_limits<double>::quiet_NaN();
    return true;
  };
  std::ifstream in(file);
  require(in.good(), "report: cannot read ", file);
  return nlohmann::json::parse(in, null_to_nan);
}

// The fields that matter most, as far as the rows have them.
Table rows_table(const nlohmann::json& rows) {
  Table table{.head = {}};
  for (const char* key :
       {"name",   "method",   "selector", "case",      "preset",      "residual", "codec",
        "kernel", "platform", "data",     "ranks",     "n",           "k",        "density",
        "time",   "mean",     "steady",   "predicted", "words_per_k", "messages", "speedup_over_dense",
        "p5",     "p95",      "max",      "share"})
    if (rows.at(0).contains(key) && !rows.at(0)[key].is_structured()) table.head.emplace_back(key);
  for (const nlohmann::json& row : rows) {
    table.rows.emplace_back();
    for (const std::string& key : table.head) {
      const nlohmann::json value = row.value(key, nlohmann::json(""));
      table.rows.back().push_back(value.is_number() ? fmt::format("{:.4g}", value.get<double>())
                                                    : value.get<std::string>());
    }
  }
  return table;
}

// Time over n, or over the ranks if there is one n only; a line for each preset and other size.
Plot times_of(const nlohmann::json& rows) {
  std::set<double> sizes;
  for (const nlohmann::json& row : rows) sizes.insert(row.at("n").get<double>());
  const std::string time = rows.at(0).contains("time") ? "time" : "mean";
  const std::string x = sizes.size() > 1 ? "n" : "ranks", other = sizes.size() > 1 ? "ranks" : "n";
  Plot plot{.title = "Time of a step", .x_label = x, .y_label = "seconds", .log_x = true, .log_y = true};
  std::map<std::string, std::size_t> lines;
  for (const nlohmann::json& row : rows) {
    const std::string name =
        fmt::format("{}, {} = {:g}", row.at("preset").get<std::string>(), other, row.at(other).get<double>());
    if (lines.emplace(name, plot.series.size()).second) plot.series.push_back({.name = name});
    plot.series[lines[name]].x.push_back(row.at(x));
    plot.series[lines[name]].y.push_back(row.at(time));
  }
  return plot;
}

nlohmann::json to_document(const nlohmann::json& result) {
  if (result.contains("parts")) return result;
  require(!result.contains("runs"), "results of oktopk train have a page of their own: oktopk train --html");
  const nlohmann::json& rows = result.at("rows");
  require(!rows.empty(), "it has no rows");
  nlohmann::json parts = nlohmann::json::array();
  if (rows[0].contains("n") && rows[0].contains("preset") && (rows[0].contains("time") || rows[0].contains("mean")))
    parts.push_back({{"plots", {times_of(rows)}}});
  parts.push_back({{"table", rows_table(rows)}});
  return {{"title", result.value("tool", "oktopk")}, {"lead", result.value("command", "")}, {"parts", parts}};
}

// Several files make one page: the title of the first one, the parts of all.
int write_report(const std::vector<std::string>& files, const std::string& out) {
  check_writable(out);
  nlohmann::json page;
  for (const std::string& file : files) {
    try {
      const nlohmann::json document = to_document(read_document(file));
      to_html(document, any_figure);  // names the file that has a fault
      if (page.is_null()) page = {{"title", document.at("title")}, {"lead", document.value("lead", "")}};
      for (const nlohmann::json& part : document.at("parts")) page["parts"].push_back(part);
    } catch (const nlohmann::json::exception& error) {
      fail<UsageError>(file, ": neither a document nor results of oktopk: ", error.what());
    }
  }
  write_page(out, page, any_figure);
  fmt::print("# report: {}\n", out);
  return 0;
}

}  // namespace

void add_report(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand("report", "a page with tables and plots from JSON");
  auto files = std::make_shared<std::vector<std::string>>();
  auto out = std::make_shared<std::string>("report.html");
  sub->add_option("files", *files, "documents, or results written with -J")->required();
  sub->add_option("-o,--output", *out, "the page");
  sub->footer(
      "Examples:\n"
      "  oktopk bench --preset all -b 1M -e 16M -J bench.json && oktopk-lab report bench.json -o bench.html\n"
      "A document: {\"title\": ..., \"lead\": ..., \"parts\": [...]}; tools/page.h lists the parts.");
  sub->callback([&action, files, out] { action = [files, out] { return write_report(*files, *out); }; });
}

}  // namespace oktopk
