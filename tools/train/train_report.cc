// SPDX-License-Identifier: Apache-2.0
#include "tools/train/train_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "oktopk/allreduce/presets.h"
#include "tools/report/plot.h"
#include "tools/text.h"

namespace oktopk {
namespace {

const TrainingRun* dense_run(const Comparison& c) {
  for (const TrainingRun& run : c.runs)
    if (run.preset == "dense") return &run;
  return nullptr;
}

double compression(const TrainingRun& run) { return run.wire > 0 ? run.dense_wire / run.wire : 0; }

// "+0.31%" against dense.
std::string gap(const Comparison& c, const TrainingRun& run) {
  const TrainingRun* dense = dense_run(c);
  if (dense == nullptr || dense == &run) return "";
  return fmt::format("{:+.2f}%", 100 * (run.test.loss / dense->test.loss - 1));
}

Table table_of(const Comparison& c) {
  Table table;
  table.head = {"preset",          "test loss", "vs dense", "accuracy", "wire / rank / step",
                "less than dense", "messages",  "select",   "exchange", "apply"};
  for (const TrainingRun& run : c.runs) {
    if (run.preset == "circulant") table.highlight = static_cast<int>(table.rows.size());
    table.rows.push_back({run.preset, fmt::format("{:.4f}", run.test.loss), gap(c, run),
                          fmt::format("{:.2f}%", 100 * run.test.accuracy), format_bytes(run.wire),
                          fmt::format("{:.1f}x", compression(run)), fmt::format("{:.1f}", run.messages),
                          format_seconds(run.select), format_seconds(run.exchange), format_seconds(run.apply)});
  }
  return table;
}

std::string density_of(const Comparison& c) {
  const AdaptiveDensityOptions& a = c.adaptive;
  std::string text = fmt::format("density {}", c.options.reducer.density);
  if (a.target_share > 0) text += fmt::format(", then by share {}", a.target_share);
  if (a.budget > 0) text += fmt::format(" within {}", a.budget);
  return text;
}

std::string set_up(const Comparison& c) {
  const TrainOptions& o = c.options;
  const double n = c.runs.empty() ? 0 : c.runs.front().parameters;
  return fmt::format(
      "{}, {} with {:.0f} parameters, {} ranks ({}), {} samples per rank and step, {} steps, "
      "{}, {}, codec {}, seed {}",
      c.problem, o.model, n, c.P, c.transport, o.batch, o.steps, density_of(c), to_string(o.recipe),
      to_string(o.reducer.allreduce.codec), o.seed);
}

Series curve(const TrainingRun& run, const std::vector<double>& x, const std::vector<double>& y) {
  return {.name = run.preset, .x = x, .y = y, .colour = colour_of(run.preset)};
}

template <class X, class Y>
Plot plot_of(const Comparison& c, const std::string& title, const std::string& x_label, const std::string& y_label, X x,
             Y y) {
  Plot plot;
  plot.title = title;
  plot.x_label = x_label;
  plot.y_label = y_label;
  for (const TrainingRun& run : c.runs) plot.series.push_back(curve(run, x(run.curves), y(run.curves)));
  return plot;
}

Series level(const Plot& plot, const std::string& name, double y) {
  double lo = 1e300;
  double hi = 0;
  for (const Series& s : plot.series)
    for (const double x : s.x) {
      if (x <= 0 && plot.log_x) continue;
      lo = std::min(lo, x);
      hi = std::max(hi, x);
    }
  return {.name = name, .x = {lo, hi}, .y = {y, y}, .dashed = true, .colour = kColours - 1};
}

std::vector<std::string> plots_of(const Comparison& c) {
  Plot steps = plot_of(
      c, "Test loss over steps", "step", "cross-entropy", [](auto& v) { return v.test_step; },
      [](auto& v) { return v.test_loss; });
  Plot bytes = plot_of(
      c, "Test loss over bytes moved", "bytes per rank", "cross-entropy", [](auto& v) { return v.test_bytes; },
      [](auto& v) { return v.test_loss; });
  bytes.log_x = true;
  if (c.floor > 0)
    for (Plot* p : {&steps, &bytes}) p->series.push_back(level(*p, "best possible", c.floor));
  Plot training = plot_of(
      c, "Training loss over steps", "step", "cross-entropy", [](auto& v) { return v.step; },
      [](auto& v) { return v.loss; });
  for (Series& s : training.series) s = smoothed(s, 5);
  Plot accuracy = plot_of(
      c, "Test accuracy over steps", "step", "share of samples", [](auto& v) { return v.test_step; },
      [](auto& v) { return v.test_accuracy; });
  Plot selected = plot_of(
      c, "Entries applied per step", "step", "entries", [](auto& v) { return v.step; },
      [](auto& v) { return v.selected; });
  selected.log_y = true;
  if (!c.runs.empty()) selected.series.push_back(level(selected, "k", c.runs.front().k));
  Plot unsent = plot_of(
      c, "What is not applied yet", "step", "norm of residuals and owner memory", [](auto& v) { return v.step; },
      [](auto& v) { return v.unsent; });
  std::erase_if(unsent.series, [](const Series& s) { return s.name == "dense"; });
  return {to_svg(steps), to_svg(bytes), to_svg(training), to_svg(accuracy), to_svg(selected), to_svg(unsent)};
}

nlohmann::json to_json(const TrainingRun& r) {
  const Curves& c = r.curves;
  return {{"preset", r.preset},
          {"test_loss", r.test.loss},
          {"test_accuracy", r.test.accuracy},
          {"train_loss", r.train_loss},
          {"parameters", r.parameters},
          {"k", r.k},
          {"wire_bytes", r.wire},
          {"messages", r.messages},
          {"compression", compression(r)},
          {"seconds",
           {{"select", r.select},
            {"exchange", r.exchange},
            {"apply", r.apply},
            {"compute", r.compute},
            {"run", r.seconds}}},
          {"steps", r.steps},
          {"weights", fmt::format("{:016x}", r.weights_hash)},
          {"ranks_agree", r.ranks_agree},
          {"curves",
           {{"step", c.step},
            {"loss", c.loss},
            {"bytes", c.bytes},
            {"selected", c.selected},
            {"unsent", c.unsent},
            {"test_step", c.test_step},
            {"test_loss", c.test_loss},
            {"test_accuracy", c.test_accuracy},
            {"test_bytes", c.test_bytes}}}};
}

}  // namespace

int colour_of(const std::string& preset) {
  // circulant is first in the palette, the baselines follow in the order of the table.
  const auto all = presets();
  const auto row = std::find_if(all.begin(), all.end(), [&](const Preset& p) { return p.name == preset; });
  return static_cast<int>((row - all.begin() + 1) % static_cast<std::ptrdiff_t>(all.size()));
}

void print_table(const Comparison& c) {
  fmt::print("\n# {}\n", set_up(c));
  const Table table = table_of(c);
  std::vector<std::size_t> widths;
  for (std::size_t j = 0; j < table.head.size(); ++j) {
    widths.push_back(table.head[j].size());
    for (const auto& row : table.rows) widths[j] = std::max(widths[j], row[j].size());
  }
  const auto print = [&](const std::vector<std::string>& row) {
    for (std::size_t j = 0; j < row.size(); ++j)
      if (j == 0)
        fmt::print("{:<{}}", row[j], widths[j]);
      else
        fmt::print("  {:>{}}", row[j], widths[j]);
    fmt::print("\n");
  };
  print(table.head);
  for (const auto& row : table.rows) print(row);
  for (const TrainingRun& run : c.runs)
    fmt::print("# {:<10} weights {:016x} after {} steps, {} on all ranks\n", run.preset, run.weights_hash, run.steps,
               run.ranks_agree ? "equal" : "NOT EQUAL");
}

nlohmann::json to_json(const Comparison& c) {
  nlohmann::json runs = nlohmann::json::array();
  for (const TrainingRun& run : c.runs) runs.push_back(to_json(run));
  return {{"tool", "oktopk train"},
          {"problem", c.problem},
          {"best_possible_loss", c.floor},
          {"transport", c.transport},
          {"command", c.command},
          {"ranks", c.P},
          {"model", c.options.model},
          {"steps", c.options.steps},
          {"batch_per_rank", c.options.batch},
          {"seed", c.options.seed},
          {"density", c.options.reducer.density},
          {"adaptive_share", c.adaptive.target_share},
          {"adaptive_budget", c.adaptive.budget},
          {"recipe", to_json(c.options.recipe)},
          {"runs", runs}};
}

Page make_page(const Comparison& c) {
  Page page("oktopk: training with sparse gradients", set_up(c));
  const TrainingRun* dense = dense_run(c);
  for (const TrainingRun& run : c.runs) {
    if (run.preset != "circulant") continue;
    std::vector<std::pair<std::string, std::string>> numbers = {
        {fmt::format("{:.0f}x", compression(run)), "fewer bytes than dense, per rank and step"},
        {fmt::format("{:.2f}%", 100 * run.test.accuracy), "test accuracy with circulant"}};
    if (dense != nullptr) numbers.insert(numbers.begin() + 1, {gap(c, run), "test loss against dense, same steps"});
    page.figures(numbers);
  }
  page.paragraph(
      "Every run starts from the same weights and sees the same samples. Each rank computes a "
      "gradient on its own samples; what crosses the wire between the ranks is all that differs. "
      "After every step all ranks hold bitwise the same weights.");
  Table table = table_of(c);
  table.caption =
      "Wire: bytes that the busiest rank sends or receives, whichever is more, counted; warm-up "
      "steps included. Times are means per step and rank on this machine, where moving bytes costs "
      "next to nothing.";
  page.table(table);
  page.plots(plots_of(c));
  page.heading("Repeat it");
  page.code(c.command);
  return page;
}

}  // namespace oktopk
