// SPDX-License-Identifier: Apache-2.0
// What the learning study shows: lines, JSON, page.
#include <fmt/format.h>

#include "tools/report/plot.h"
#include "tools/statistics.h"
#include "tools/text.h"
#include "tools/train/learning_study.h"

namespace oktopk {
namespace {

// What a row says: its numbers beside those of dense with the same seeds, and of a dense run that
// moves as many bytes.
struct Cells {
  std::string loss, gap, accuracy, bytes, dense;
};

Cells cells(const StudyRow& row) {
  Cells c;
  c.loss = fmt::format("{:.4f}", mean_of(row.losses));
  if (row.reducer.preset != "dense")
    c.gap = fmt::format("{:+.2f}% ± {:.2f}", 100 * mean_of(row.gaps), 100 * deviation_of(row.gaps));
  c.accuracy = fmt::format("{:.2f}%", 100 * mean_of(row.accuracies));
  c.bytes = format_bytes(row.bytes);
  c.dense = fmt::format("{:.4f} ({:.0f} steps)", row.equal_bytes_loss, row.equal_bytes_steps);
  return c;
}

// A, B, ... for the bars, which have no room for more.
std::string letter(std::size_t i) { return std::string(1, static_cast<char>('A' + i % 26)); }

std::vector<const StudyRow*> rows_of(const LearningStudy& study, const std::string& optimiser) {
  std::vector<const StudyRow*> rows;
  for (const StudyRow& row : study.rows)
    if (row.recipe.optimiser == optimiser) rows.push_back(&row);
  return rows;
}

std::string bars_of(const std::vector<const StudyRow*>& rows, const std::string& optimiser) {
  Bars bars;
  bars.title = optimiser + ": test loss against dense, same steps";
  bars.y_label = "percent above dense";
  bars.reference = 0;
  bars.reference_label = "dense";
  Bars::Set set{.name = optimiser, .values = {}, .colour = 0};
  for (std::size_t i = 1; i < rows.size(); ++i) {
    bars.groups.push_back(letter(i - 1));
    set.values.push_back(100 * mean_of(rows[i]->gaps));
  }
  bars.sets = {set};
  return to_svg(bars);
}

Table table_of(const std::vector<const StudyRow*>& rows) {
  Table table;
  table.head = {"recipe", "test loss", "vs dense", "accuracy", "bytes / rank", "dense with these bytes"};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Cells c = cells(*rows[i]);
    const std::string name = (i == 0 ? "" : letter(i - 1) + "  ") + rows[i]->name;
    table.rows.push_back({name, c.loss, c.gap, c.accuracy, c.bytes, c.dense});
  }
  return table;
}

}  // namespace

std::string study_head() {
  return fmt::format("{:<9} {:<52} {:>9} {:>16} {:>9} {:>11} {:>23}", "optimiser", "recipe", "test loss", "vs dense",
                     "accuracy", "bytes/rank", "dense with these bytes");
}

std::string study_line(const StudyRow& row) {
  const Cells c = cells(row);
  return fmt::format("{:<9} {:<52} {:>9} {:>16} {:>9} {:>11} {:>23}", row.recipe.optimiser, row.name, c.loss, c.gap,
                     c.accuracy, c.bytes, c.dense);
}

nlohmann::json to_json(const LearningStudy& study) {
  nlohmann::json rows = nlohmann::json::array();
  for (const StudyRow& row : study.rows)
    rows.push_back({{"name", row.name},
                    {"recipe", to_json(row.recipe)},
                    {"preset", row.reducer.preset},
                    {"residual", to_string(row.reducer.allreduce.residual)},
                    {"density", row.reducer.density},
                    {"adaptive_share", row.reducer.adaptive.target_share},
                    {"adaptive_budget", row.reducer.adaptive.budget},
                    {"losses", row.losses},
                    {"accuracies", row.accuracies},
                    {"gaps", row.gaps},
                    {"bytes", row.bytes},
                    {"equal_bytes_steps", row.equal_bytes_steps},
                    {"equal_bytes_loss", row.equal_bytes_loss}});
  return {{"tool", "oktopk train --study"},
          {"problem", study.problem},
          {"command", study.command},
          {"best_possible_loss", study.floor},
          {"ranks", study.P},
          {"seeds", study.seeds},
          {"steps", study.base.steps},
          {"model", study.base.model},
          {"batch_per_rank", study.base.batch},
          {"rows", rows}};
}

Page make_page(const LearningStudy& study) {
  const double turns = static_cast<double>(study.base.steps) * study.base.reducer.density;
  Page page("oktopk: what keeps sparse training up with dense",
            fmt::format("{}, {}, {} ranks, {} steps at density {} ({:.0f} turns per coordinate), "
                        "{} seeds",
                        study.problem, study.base.model, study.P, study.base.steps, study.base.reducer.density, turns,
                        study.seeds));
  page.paragraph(
      "Each row changes one thing. All sparse rows use the circulant preset, so only the recipe "
      "and "
      "the residual rule differ. The gap is the test loss divided by that of dense with the same "
      "seed, minus one: mean and standard deviation over the seeds. The last column: the loss of a "
      "dense run that moves as many bytes, in as many steps as that allows.");
  for (const std::string optimiser : {"sgd", "momentum", "adam"}) {
    const auto rows = rows_of(study, optimiser);
    if (rows.empty()) continue;
    page.heading(optimiser);
    page.plots({bars_of(rows, optimiser)});
    page.table(table_of(rows));
  }
  page.heading("Repeat it");
  page.code(study.command);
  return page;
}

}  // namespace oktopk
