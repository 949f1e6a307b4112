// SPDX-License-Identifier: Apache-2.0
// The command `oktopk`.
#include <fmt/format.h>

#include <cstdio>

#include "oktopk/base/error.h"
#include "tools/commands.h"

int main(int argc, char** argv) {
  CLI::App app{"oktopk: sparse allreduce. Synchronise gradients by moving 1% of them."};
  app.set_version_flag("--version", OKTOPK_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 fine, 1 a wrong result or a broken law, 2 bad usage, 3 communication failed.\n"
      "oktopk <subcommand> --help explains each.");
  oktopk::Action action;
  oktopk::add_list(app, action);
  oktopk::add_bench(app, action);
  oktopk::add_kernels(app, action);
  oktopk::add_predict(app, action);
  oktopk::add_tune(app, action);
  oktopk::add_explain(app, action);
  oktopk::add_verify(app, action);
  oktopk::add_simulate(app, action);
  oktopk::add_study(app, action);
  oktopk::add_report(app, action);
  oktopk::add_train(app, action, fmt::format("{}", fmt::join(argv, argv + argc, " ")));
  try {
    app.parse(argc, argv);
    return action();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const oktopk::UsageError& error) {
    fmt::print(stderr, "oktopk: {}\n", error.what());
    return 2;
  } catch (const oktopk::CommError& error) {
    fmt::print(stderr, "oktopk: communication failed: {}\n", error.what());
    return 3;
  } catch (const std::exception& error) {
    fmt::print(stderr, "oktopk: {}\n", error.what());
    return 3;
  }
}
