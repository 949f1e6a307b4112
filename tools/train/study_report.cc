// SPDX-License-Identifier: Apache-2.0
// What the learning study shows: lines, JSON, page.
#include <fmt/format.h>

#include "tools/report/plot.h"
#include "tools/text.h"
#include "tools/train/learning_study.h"

namespace oktopk {
namespace {

std::vector<std::string> cells(const StudyRow& row) {
  const bool dense = row.reducer.preset == "dense";
  return {row.recipe.optimiser,
          row.name,
          fmt::format("{:.4f}", mean_of(row.losses)),
          dense ? ""
                : fmt::format("{:+.2f}% ± {:.2f}", 100 * mean_of(row.gaps),
                              100 * deviation_of(row.gaps)),
          fmt::format("{:.2f}%", 100 * mean_of(row.accuracies)),
          format_bytes(row.bytes),
          fmt::format("{:.0f}", row.equal_bytes_steps),
          fmt::format("{:.4f}", row.equal_bytes_loss)};
}

const std::vector<std::string> kHead = {
    "optimiser", "recipe",       "test loss",     "vs dense",
    "accuracy",  "bytes / rank", "= dense steps", "dense at these bytes"};

Bars bars_of(const LearningStudy& study, const std::string& optimiser) {
  Bars bars;
  bars.title = optimiser + ": test loss against dense, same steps";
  bars.y_label = "percent above dense";
  bars.reference = 0;
  bars.reference_label = "dense";
  Bars::Set set{.name = optimiser, .values = {}, .colour = 0};
  for (const StudyRow& row : study.rows) {
    if (row.recipe.optimiser != optimiser || row.reducer.preset == "dense") continue;
    bars.groups.push_back(row.name);
    set.values.push_back(100 * mean_of(row.gaps));
  }
  bars.sets = {set};
  return bars;
}

}  // namespace

std::string study_head() {
  return fmt::format("{:<10} {:<54} {:>9} {:>16} {:>9} {:>12} {:>13} {:>20}", kHead[0], kHead[1],
                     kHead[2], kHead[3], kHead[4], kHead[5], kHead[6], kHead[7]);
}

std::string study_line(const StudyRow& row) {
  const auto c = cells(row);
  return fmt::format("{:<10} {:<54} {:>9} {:>16} {:>9} {:>12} {:>13} {:>20}", c[0], c[1], c[2],
                     c[3], c[4], c[5], c[6], c[7]);
}

nlohmann::json to_json(const LearningStudy& study) {
  nlohmann::json rows = nlohmann::json::array();
  for (const StudyRow& row : study.rows)
    rows.push_back({{"name", row.name},
                    {"recipe", to_json(row.recipe)},
                    {"preset", row.reducer.preset},
                    {"residual", to_string(row.reducer.allreduce.residual)},
                    {"density", row.reducer.density},
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
                        study.problem, study.base.model, study.P, study.base.steps,
                        study.base.reducer.density, turns, study.seeds));
  page.paragraph(
      "Each row changes one thing. All sparse rows use the circulant preset, so only the recipe "
      "and "
      "the residual rule differ. The gap is the test loss divided by that of dense with the same "
      "seed, minus one: mean and standard deviation over the seeds. The last columns: how many "
      "steps a dense run can make with the same bytes, and the loss it ends with.");
  std::vector<std::string> plots;
  for (const std::string optimiser : {"sgd", "momentum", "adam"}) {
    const Bars bars = bars_of(study, optimiser);
    if (!bars.groups.empty()) plots.push_back(to_svg(bars));
  }
  page.plots(plots);
  Table table;
  table.head = kHead;
  for (const StudyRow& row : study.rows) table.rows.push_back(cells(row));
  page.table(table);
  page.heading("Repeat it");
  page.code(study.command);
  return page;
}

}  // namespace oktopk
