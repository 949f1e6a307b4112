// SPDX-License-Identifier: Apache-2.0
#include "tools/study/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/text.h"

namespace oktopk {
namespace {

constexpr std::array<Study, 5> kStudies = {{
    {.name = "xi",
     .summary = "Ok-Topk's Assumption 1 in training: is xi bounded, and by what?",
     .question = "Ok-Topk's proof of convergence assumes that selecting before summing is not much worse "
                 "than selecting after it: xi is bounded. Is it, while a network learns?",
     .size = "8K",
     .densities = "0.01,0.05",
     .ranks = "4,16",
     .steps = 200,
     .data = "training",
     .trains = true,
     .many_densities = true,
     .run = study_xi},
    {.name = "counts",
     .summary = "selected count / k of each selector, and of the update, on calm and rough streams",
     .question = "Thresholds are reused, fitted or steered instead of computed. How far from k are "
                 "the counts that they yield?",
     .size = "16K",
     .densities = "0.01",
     .ranks = "4",
     .steps = 600,
     .data = "calm,rough",
     .many_densities = true,
     .run = study_counts},
    {.name = "load",
     .summary = "how even regions and shares are: equal cuts, votes, recuts, balancing",
     .question = "Owners of hot regions receive more than others. What do votes, recuts and "
                 "balancing make of it?",
     .size = "16K",
     .densities = "0.02",
     .ranks = "8",
     .steps = 96,
     .data = "skewed,layered,rough",
     .run = study_load},
    {.name = "fill-in",
     .summary = "non-zeros of the result / k as P grows, and the growth of unions on the way",
     .question = "Sums of sparse vectors are less sparse. How much, and who pays for it?",
     .size = "16K",
     .densities = "0.01",
     .ranks = "2,4,8,16,32",
     .steps = 4,
     .data = "gaussian,calm,identical",
     .run = study_fill_in},
    {.name = "mass",
     .summary = "what each preset loses under each residual rule and codec",
     .question = "Error feedback promises that nothing is lost. Who keeps the promise?",
     .size = "2K",
     .densities = "0.02",
     .ranks = "8",
     .steps = 50,
     .data = "dyadic,calm",
     .run = study_mass},
}};

struct StudyOptions {
  std::string name;
  std::string size, densities, ranks, data;  // empty: the study's own
  std::optional<int> steps;
  std::uint64_t seed = 1;
  std::string transport = "threads";
  std::string json_file, html_file;
};

StudyTask make_task(const Study& study, const StudyOptions& o, Worlds& worlds) {
  const auto either = [](const std::string& given, std::string_view own) {
    return given.empty() ? std::string(own) : given;
  };
  StudyTask task{.worlds = worlds};
  const std::string size = either(o.size, study.size);
  const std::uint64_t n = parse_count(size);
  require(n >= 1 && n <= (1U << 24U), "-b ", size, ": n must be in 1..16M: studies gather densely");
  task.n = static_cast<Index>(n);
  task.densities = parse_densities(either(o.densities, study.densities), "--density");
  require(task.densities.size() == 1 || study.many_densities, "--density ", o.densities, ": study ", study.name,
          " takes one");
  task.ranks = parse_ranks(either(o.ranks, study.ranks), "--ranks");
  task.steps = o.steps.value_or(study.steps);
  require(task.steps >= 1, "--steps ", task.steps, ": it must be at least 1");
  task.seed = o.seed;
  task.data = split_names(either(o.data, study.data), {});
  for (const std::string& data : task.data)
    if (!study.trains || data != "training") check_source(data);
  return task;
}

std::string command_of(const Study& study, const StudyTask& task) {
  return fmt::format("oktopk study {} -b {} --density {} --ranks {} --steps {} --data {} --seed {}", study.name, task.n,
                     fmt::join(task.densities, ","), fmt::join(task.ranks, ","), task.steps, fmt::join(task.data, ","),
                     task.seed);
}

std::size_t width_of(const Table& table, std::size_t column) {
  std::size_t width = table.head[column].size();
  for (const auto& row : table.rows) width = std::max(width, row[column].size());
  return width;
}

void print_cells(const Table& table, const std::vector<std::string>& cells, const char* begin) {
  std::string line = begin;
  for (std::size_t c = 0; c < cells.size(); ++c) {
    const std::size_t width = width_of(table, c);
    line += c == 0 ? fmt::format("{:<{}}", cells[c], width) : fmt::format("  {:>{}}", cells[c], width);
  }
  fmt::print("{}\n", line);
}

void print(const Findings& findings) {
  for (const std::string& line : findings.head) fmt::print("# {}\n", line);
  for (const Table& table : findings.tables) {
    if (table.rows.empty()) continue;
    fmt::print("#\n# {}\n", table.caption);
    print_cells(table, table.head, "# ");
    for (const auto& row : table.rows) print_cells(table, row, "  ");
  }
  fmt::print("#\n");
  for (const std::string& note : findings.notes) fmt::print("# {}\n", note);
}

Page make_page(const Study& study, const StudyTask& task, const Findings& findings) {
  Page page(fmt::format("oktopk study {}", study.name), std::string(study.summary));
  page.paragraph(std::string(study.question));
  page.code(command_of(study, task));
  for (const std::string& line : findings.head) page.paragraph(line + ".");
  page.plots(findings.plots);
  for (const Table& table : findings.tables)
    if (!table.rows.empty()) page.table(table);
  page.heading("How to read it");
  for (const std::string& note : findings.notes) page.paragraph(note);
  return page;
}

int run_study(const StudyOptions& o) {
  const Study& study = find_row(kStudies, "study", o.name);
  Worlds worlds(o.transport);
  const StudyTask task = make_task(study, o, worlds);
  check_writable(o.json_file);
  check_writable(o.html_file);
  const Findings findings = study.run(task);
  if (!worlds.is_root()) return 0;
  fmt::print("# {}\n", command_of(study, task));
  print(findings);
  write_json(o.json_file, {{"tool", fmt::format("oktopk study {}", study.name)},
                           {"version", OKTOPK_VERSION},
                           {"command", command_of(study, task)},
                           {"rows", findings.rows}});
  if (!o.html_file.empty()) write_page(o.html_file, make_page(study, task, findings));
  return 0;
}

std::string footer() {
  std::string text = "Studies, each with what it runs by default:\n";
  for (const Study& s : kStudies)
    text += fmt::format("  {:<8} {}\n           -b {} --density {} --ranks {} --steps {} --data {}\n", s.name,
                        s.summary, s.size, s.densities, s.ranks, s.steps, s.data);
  return text + "docs/studies.md says what they found.";
}

}  // namespace

void add_study(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand("study", "experiments about the algorithms: xi, counts, load, fill-in, mass");
  auto o = std::make_shared<StudyOptions>();
  sub->add_option("name", o->name, "which study")->required();
  sub->add_option("-b,--size", o->size, "n in elements (K, M); training: at most so many weights");
  sub->add_option("--density", o->densities, "k / n, in (0, 1]; xi and counts take several with commas");
  sub->add_option("--ranks", o->ranks, "number of ranks, or several with commas");
  sub->add_option("--steps", o->steps, "of each run");
  sub->add_option("--seed", o->seed, "of everything that is generated")->capture_default_str();
  sub->add_option("--data", o->data, "calm, rough, identical, an input of `oktopk list`; xi: training");
  sub->add_option("--transport", o->transport, "threads or mpi")->capture_default_str();
  sub->add_option("-J,--json", o->json_file, "also write the results to this file");
  sub->add_option("--html", o->html_file, "also write a page with plots to this file");
  sub->footer(footer());
  sub->callback([&action, o] { action = [o] { return run_study(*o); }; });
}

}  // namespace oktopk
