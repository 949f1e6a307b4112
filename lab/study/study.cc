// SPDX-License-Identifier: Apache-2.0
// The frame of all studies: options, table, JSON, page.
#include "lab/study/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "lab/commands.h"
#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "tools/options.h"
#include "tools/text.h"
#include "tools/train/recipe.h"
#include "tools/worlds.h"

namespace oktopk {
namespace {

struct Study {
  std::string_view name, summary, question;  // the question stands on the page
  std::string_view size, densities, ranks;   // the defaults
  int steps;
  std::string_view data;
  Findings (*run)(const StudyTask& task);
};

constexpr std::array<Study, 6> kStudies = {{
    {"xi", "Ok-Topk's Assumption 1 in training: is xi bounded, and by what?",
     "Ok-Topk's proof of convergence assumes that selecting before summing is not much worse than selecting after it: "
     "xi is bounded. Is it, while a network learns?",
     "8K", "0.01,0.05", "4,16", 200, "training", study_xi},
    {"counts", "selected count / k of each selector, and of the update, on calm and rough streams",
     "Thresholds are reused, fitted or steered instead of computed. How far from k are the counts that they yield?",
     "16K", "0.01", "4", 600, "calm,rough", study_counts},
    {"load", "how even regions and shares are: equal cuts, votes, recuts, balancing",
     "Owners of hot regions receive more than others. How much do votes, recuts and balancing even this out?", "16K",
     "0.02", "8", 96, "skewed,layered,rough", study_load},
    {"fill-in", "non-zeros of the result / k as P grows, and the growth of unions on the way",
     "Sums of sparse vectors are less sparse. How much, and which presets pay for it?", "16K", "0.01", "2,4,8,16,32", 4,
     "gaussian,calm,identical", study_fill_in},
    {"mass", "what each preset loses under each residual rule and codec",
     "Error feedback promises that nothing is lost. Which rules keep the promise?", "2K", "0.02", "8", 50,
     "dyadic,calm", study_mass},
    {"learning", "which recipes keep sparse training up with dense (minutes)",
     "Each row changes one thing. All sparse rows use the preset circulant, so only the recipe and the residual rule "
     "differ.",
     "50826", "0.01", "4", 4000, "sgd,momentum,adam", study_learning},
}};

struct StudyOptions {
  std::string name;
  std::string size, densities, ranks, data;  // empty: the study's own
  std::optional<int> steps;
  std::uint64_t seed = 1;
  int seeds = 3;
  TransportOptions transport;
  std::string json_file, html_file;
};

void check_data(const Study& study, const std::string& data) {
  if (study.name == "learning") return check(Recipe{.optimiser = data});
  if (study.name != "xi") return check_stream(data);
  require(data == "training", "--data ", data, ": study xi trains a network; it takes no other data");
}

StudyTask make_task(const Study& study, const StudyOptions& o) {
  const auto either = [](const std::string& given, std::string_view own) {
    return given.empty() ? std::string(own) : given;
  };
  StudyTask task{.steps = o.steps.value_or(study.steps), .seed = o.seed, .seeds = o.seeds};
  const std::string size = either(o.size, study.size);
  const std::uint64_t n = parse_count(size, "-b");
  require(n >= 1 && n <= (1U << 24U), "-b ", size, ": n must be in 1..16M: studies gather densely");
  task.n = static_cast<Index>(n);
  task.densities = parse_densities(either(o.densities, study.densities), "--density");
  require(task.densities.size() == 1 || study.name == "xi" || study.name == "counts", "--density ", o.densities,
          ": study ", study.name, " takes one");
  task.ranks = parse_ranks(either(o.ranks, study.ranks), "--ranks");
  require(task.steps >= 1, "--steps ", task.steps, ": it must be at least 1");
  require(task.seeds >= 1, "--seeds ", task.seeds, ": it must be at least 1");
  task.data = split_names(either(o.data, study.data), {});
  for (const std::string& data : task.data) check_data(study, data);
  return task;
}

std::string command_of(const Study& study, const StudyTask& task) {
  return fmt::format("oktopk-lab study {} -b {} --density {} --ranks {} --steps {} --data {} --seed {}{}", study.name,
                     task.n, fmt::join(task.densities, ","), fmt::join(task.ranks, ","), task.steps,
                     fmt::join(task.data, ","), task.seed,
                     study.name == "learning" ? fmt::format(" --seeds {}", task.seeds) : "");
}

void print(const Findings& findings) {
  for (const std::string& line : findings.head) fmt::print("# {}\n", line);
  for (const Table& table : findings.tables)
    if (!table.rows.empty()) fmt::print("#\n# {}\n{}", table.caption, to_text(table, "# ", "  "));
  fmt::print("#\n");
  for (const std::string& note : findings.notes) fmt::print("# {}\n", note);
}

nlohmann::json document_of(const Study& study, const std::string& command, const Findings& findings) {
  nlohmann::json parts = {{{"text", study.question}}, {{"code", command}}};
  for (const std::string& line : findings.head) parts.push_back({{"text", line + "."}});
  parts.push_back({{"plots", findings.plots}});
  for (const Table& table : findings.tables)
    if (!table.rows.empty()) parts.push_back({{"table", table}});
  parts.push_back({{"heading", "How to read it"}});
  for (const std::string& note : findings.notes) parts.push_back({{"text", note}});
  return {{"title", fmt::format("oktopk-lab study {}", study.name)}, {"lead", study.summary}, {"parts", parts}};
}

int run_study(const StudyOptions& o) {
  const Study& study = find_row(kStudies, "study", o.name);
  Worlds worlds(o.transport);
  StudyTask task = make_task(study, o);
  StatusLine status(worlds.is_root());
  task.run_ranks = [&, runs = 0](int P, const auto& body) mutable {
    status.show(fmt::format("  study {}: run {}, P = {}", study.name, ++runs, P));
    worlds.run(P, [&](Station& station) { body(station.comm); });
  };
  check_writable(o.json_file);
  check_writable(o.html_file);
  const Findings findings = study.run(task);
  status.clear();
  if (!worlds.is_root()) return 0;
  const std::string command = command_of(study, task);
  fmt::print("# {}\n", command);
  print(findings);
  write_json(o.json_file, {{"tool", fmt::format("oktopk-lab study {}", study.name)},
                           {"version", OKTOPK_VERSION},
                           {"command", command},
                           {"rows", findings.rows}});
  if (!o.html_file.empty()) write_page(o.html_file, document_of(study, command, findings), any_figure);
  return 0;
}

std::string footer() {
  std::string text = "Studies, each with its defaults:\n";
  for (const Study& s : kStudies)
    text += fmt::format("  {:<8} {}\n           -b {} --density {} --ranks {} --steps {} --data {}\n", s.name,
                        s.summary, s.size, s.densities, s.ranks, s.steps, s.data);
  return text + "docs/studies.md and docs/learning.md show the results.";
}

}  // namespace

void add_study(CLI::App& app, Action& action) {
  auto* sub =
      app.add_subcommand("study", "experiments about the algorithms: xi, counts, load, fill-in, mass, learning");
  auto o = std::make_shared<StudyOptions>();
  sub->add_option("name", o->name, "which study")->required();
  sub->add_option("-b,--size", o->size, "n in elements (K, M); xi, learning: at most so many weights");
  sub->add_option("--density", o->densities, "k / n, in (0, 1]; xi and counts take several with commas");
  sub->add_option("--ranks", o->ranks, "number of ranks, or several with commas");
  sub->add_option("--steps", o->steps, "of each run");
  sub->add_option("--seed", o->seed, "of everything that is generated");
  sub->add_option("--seeds", o->seeds, "learning: runs of each row");
  sub->add_option("--data", o->data, "calm, rough, identical or an input of `oktopk list`; learning: optimisers");
  o->transport.add_transport_to(*sub);
  add_json_to(*sub, o->json_file);
  sub->add_option("--html", o->html_file, "also write a page with plots to this file");
  sub->footer(footer());
  sub->callback([&action, o] { action = [o] { return run_study(*o); }; });
}

}  // namespace oktopk
