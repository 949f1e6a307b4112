// SPDX-License-Identifier: Apache-2.0
// The subcommands of `oktopk`, one file each. Every function adds its subcommand to the app, in its group of --help
// (no group: not shown), and sets `action` when the user chose it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "tools/options.h"

namespace oktopk {

// `command`: what the user typed, for reports.
void add_train(CLI::App& app, Action& action, const std::string& command);
void add_tune(CLI::App& app, Action& action);
void add_explain(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action);
void add_run(CLI::App& app, Action& action);
void add_list(CLI::App& app, Action& action);
void add_describe(CLI::App& app, Action& action);  // completion and man

}  // namespace oktopk
