// SPDX-License-Identifier: Apache-2.0
// The subcommands of `oktopk`, one file each. Every function adds its subcommand to the app and
// sets `action` when the user chose it. Exit codes: 0 fine; 1 a result was wrong or a law broken; 2
// bad usage; 3 the world failed (CommError).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace oktopk {

using Action = std::function<int()>;

void add_list(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_kernels(CLI::App& app, Action& action);
void add_ping(CLI::App& app, Action& action);
void add_predict(CLI::App& app, Action& action);
void add_tune(CLI::App& app, Action& action);
void add_explain(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_simulate(CLI::App& app, Action& action);
void add_study(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action);
void add_describe(CLI::App& app, Action& action);  // completion and man
void add_report(CLI::App& app, Action& action);
void add_rendezvous(CLI::App& app, Action& action);
void add_run(CLI::App& app, Action& action);
// `command`: what the user typed, for reports.
void add_train(CLI::App& app, Action& action, const std::string& command);

}  // namespace oktopk
