// SPDX-License-Identifier: Apache-2.0
// The command `oktopk-lab`: research tools, which the product does without (lab/README.md).
#include "lab/commands.h"

int main(int argc, char** argv) {
  CLI::App app{"oktopk-lab: experiments about sparse allreduce, on simulated machines, kernels and training."};
  app.set_version_flag("--version", OKTOPK_VERSION);
  app.require_subcommand(1);
  app.footer("oktopk-lab <subcommand> --help explains each. The command for everyday use is oktopk.");
  app.option_defaults()->always_capture_default();
  oktopk::Action action;
  for (const auto add : {oktopk::add_study, oktopk::add_simulate, oktopk::add_kernels, oktopk::add_report})
    add(app, action);
  return oktopk::run_app(app, action, argc, argv);
}
