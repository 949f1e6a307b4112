// SPDX-License-Identifier: Apache-2.0
// The command `oktopk`: its subcommands by what they are for, and the names that they had before.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>
#include <vector>

#include "tools/commands.h"

int main(int argc, char** argv) {
  constexpr std::array<std::string_view, 4> kMoved = {"study", "simulate", "kernels", "report"};
  constexpr std::array<std::array<const char*, 3>, 3> kFormers = {
      {{"predict", "explain", "--all"}, {"ping", "tune", "--links"}, {"rendezvous", "run", "--serve-only"}}};
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (std::ranges::find(kMoved, first) != kMoved.end()) {
    fmt::print(stderr, "oktopk: '{0}' has moved: run 'oktopk-lab {0}' (built by OKTOPK_BUILD_LAB)\n", first);
    return 2;
  }
  std::vector<const char*> words(argv, argv + argc);
  for (const auto& [former, subcommand, flag] : kFormers) {
    if (first != former) continue;
    oktopk::note_former(former, fmt::format("{} {}", subcommand, flag));
    words[1] = flag;
    words.insert(words.begin() + 1, subcommand);
  }
  CLI::App app{"oktopk: sparse allreduce. Synchronise gradients by moving 1% of them."};
  app.set_version_flag("--version", OKTOPK_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();
  oktopk::Action action;
  oktopk::add_train(app, action, fmt::format("{}", fmt::join(argv, argv + argc, " ")));
  for (const auto add : {oktopk::add_tune, oktopk::add_explain, oktopk::add_bench, oktopk::add_verify,
                         oktopk::add_doctor, oktopk::add_run, oktopk::add_list, oktopk::add_describe})
    add(app, action);
  app.footer(  // after the subcommands, which would show it, too
      "First run: oktopk train --html report.html\n"
      "Exit codes: 0 fine, 1 a wrong result or a broken law, 2 bad usage, 3 communication failed.\n"
      "oktopk <subcommand> --help explains each.");
  return oktopk::run_app(app, action, static_cast<int>(words.size()), words.data());
}
