// SPDX-License-Identifier: Apache-2.0
#include "tools/train/comparison.h"

#include <fmt/format.h>

#include <algorithm>

#include "oktopk/allreduce/presets.h"
#include "oktopk/reduce/reducer_options.h"
#include "tools/report/document.h"
#include "tools/text.h"

namespace oktopk {

namespace {

using nlohmann::json;

// "+0.31%" against dense; empty for dense itself, or without it.
std::string gap(const json& result, const json& run) {
  for (const json& dense : result.at("runs"))
    if (dense.at("preset") == "dense" && run.at("preset") != "dense")
      return fmt::format("{:+.2f}%",
                         100 * (run.at("test_loss").get<double>() / dense.at("test_loss").get<double>() - 1));
  return "";
}

Table table_of(const json& result) {
  Table table{.head = {"preset", "test loss", "vs dense", "accuracy", "wire / rank / step", "less than dense",
                       "messages", "select", "exchange", "apply"}};
  for (const json& run : result.at("runs")) {
    const auto number = [&](const char* name) { return run.at(name).get<double>(); };
    const auto time = [&](const char* name) { return format_seconds(run.at("seconds").at(name)); };
    if (run.at("preset") == "circulant") table.strong.push_back({static_cast<int>(table.rows.size()), -1});
    table.rows.push_back({run.at("preset"), fmt::format("{:.4f}", number("test_loss")), gap(result, run),
                          fmt::format("{:.2f}%", 100 * number("test_accuracy")), format_bytes(number("wire_bytes")),
                          fmt::format("{:.1f}x", number("compression")), fmt::format("{:.1f}", number("messages")),
                          time("select"), time("exchange"), time("apply")});
  }
  return table;
}

// Circulant is first in the palette, the others follow in the order of the presets.
int colour_of(const std::string& preset) {
  const auto all = presets();
  const auto row = std::ranges::find(all, preset, &Preset::name);
  return static_cast<int>((row - all.begin() + 1) % std::ssize(all));
}

// `plot` with the curves x and y of all runs, and a dashed line at `level` if that is positive.
Plot with_curves(Plot plot, const json& result, const char* x, const char* y, std::pair<const char*, double> level) {
  Line line{.name = level.first, .dashed = true, .colour = kColours - 1};
  for (const json& run : result.at("runs")) {
    plot.series.push_back({.name = run.at("preset"),
                           .x = run.at("curves").at(x),
                           .y = run.at("curves").at(y),
                           .colour = colour_of(run.at("preset"))});
    const auto& xs = plot.series.back().x;
    if (xs.empty()) continue;
    if (line.x.empty()) line.x = {xs.front(), xs.back()};
    line.x = {std::min(line.x[0], xs.front()), std::max(line.x[1], xs.back())};
  }
  line.y = {level.second, level.second};
  if (level.second > 0) plot.series.push_back(line);
  return plot;
}

json plots_of(const json& result) {
  const std::pair<const char*, double> none = {"", 0}, best = {"best possible", result.at("best_possible_loss")};
  const std::pair<const char*, double> k = {"k",
                                            result.at("runs").empty() ? 0.0 : result["runs"][0]["k"].get<double>()};
  const auto over_steps = [](const char* title, const char* y_label) {
    return Plot{.title = title, .x_label = "step", .y_label = y_label};
  };
  Plot bytes{
      .title = "Test loss over bytes moved", .x_label = "bytes per rank", .y_label = "cross-entropy", .log_x = true};
  Plot selected = over_steps("Entries applied per step", "entries");
  selected.log_y = true;
  Plot unsent = with_curves(over_steps("Mass that is not applied yet", "norm of residuals and owner memory"), result,
                            "step", "unsent", none);
  std::erase_if(unsent.series, [](const Line& s) { return s.name == "dense"; });
  return {with_curves(over_steps("Test loss over steps", "cross-entropy"), result, "test_step", "test_loss", best),
          with_curves(bytes, result, "test_bytes", "test_loss", best),
          with_curves(over_steps("Training loss over steps", "cross-entropy"), result, "step", "loss", none),
          with_curves(over_steps("Test accuracy over steps", "share of samples"), result, "test_step", "test_accuracy",
                      none),
          with_curves(selected, result, "step", "selected", k),
          unsent};
}

}  // namespace

json training_result(const TrainOptions& o, const std::string& world, double floor,
                     const std::vector<TrainingRun>& runs) {
  return {
      {"tool", "oktopk train"},
      {"problem", "teacher"},
      {"best_possible_loss", floor},
      {"set_up", fmt::format("teacher, {} with {:.0f} parameters, {}, {} samples per rank and step, {} steps, density "
                             "{}, {}, codec {}, seed {}",
                             o.model, runs.empty() ? 0 : runs.front().parameters, world, o.batch, o.steps,
                             o.reducer.density.value_or(kDefaultDensity), to_string(o.recipe),
                             to_string(o.reducer.allreduce.codec.value_or(Codec{})), o.seed)},
      {"model", o.model},
      {"steps", o.steps},
      {"batch_per_rank", o.batch},
      {"seed", o.seed},
      {"density", o.reducer.density.value_or(kDefaultDensity)},
      {"recipe", to_json(o.recipe)},
      {"runs", runs}};
}

void print_training(const json& result) {
  fmt::print("\n# {}\n{}", result["set_up"].get<std::string>(), to_text(table_of(result), "", ""));
  for (const json& run : result["runs"])
    fmt::print("# {:<10} weights {} after {} steps, {} on all ranks\n", run["preset"].get<std::string>(),
               run["weights"].get<std::string>(), run["steps"].get<std::uint64_t>(),
               run["ranks_agree"].get<bool>() ? "equal" : "NOT EQUAL");
}

json training_document(const json& result) {
  json numbers = json::array();
  for (const json& run : result.at("runs")) {
    if (run.at("preset") != "circulant") continue;
    const std::string loss = gap(result, run);
    numbers.push_back(
        {fmt::format("{:.0f}x", run.at("compression").get<double>()), "fewer bytes than dense, per rank and step"});
    if (!loss.empty()) numbers.push_back({loss, "test loss against dense, same steps"});
    numbers.push_back(
        {fmt::format("{:.2f}%", 100 * run.at("test_accuracy").get<double>()), "test accuracy with circulant"});
  }
  Table table = table_of(result);
  table.caption =
      "Wire: bytes that the busiest rank sends or receives, whichever is more, counted; warm-up steps included. Times "
      "are means per step and rank on this machine, where moving bytes costs next to nothing.";
  return {{"title", "oktopk: training with sparse gradients"},
          {"lead", result.at("set_up")},
          {"parts",
           {{{"numbers", numbers}},
            {{"text",
              "Every run starts from the same weights and sees the same samples. Each rank computes a gradient on its "
              "own samples; the runs differ only in what the ranks send to each other. After every step all ranks hold "
              "bitwise the same weights."}},
            {{"table", table}},
            {{"plots", plots_of(result)}},
            {{"heading", "Repeat it"}},
            {{"code", result.at("command")}}}}};
}

}  // namespace oktopk
