// SPDX-License-Identifier: Apache-2.0
// The subcommands of `oktopk-lab`. Every function adds its subcommand to the app and sets `action` when the user chose
// it.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/options.h"

namespace oktopk {

void add_study(CLI::App& app, Action& action);
void add_simulate(CLI::App& app, Action& action);
void add_kernels(CLI::App& app, Action& action);
void add_report(CLI::App& app, Action& action);

}  // namespace oktopk
