// SPDX-License-Identifier: Apache-2.0
// The command `oktopk`.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "oktopk/base/error.h"
#include "tools/commands.h"

namespace {

// Output must reach its end: a full disk or a closed pipe is no success.
int checked(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  fmt::print(stderr, "oktopk: cannot write to standard output: {}\n", std::strerror(errno));
  return status == 0 ? 3 : status;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"oktopk: sparse allreduce. Synchronise gradients by moving 1% of them."};
  app.set_version_flag("--version", OKTOPK_VERSION);
  app.require_subcommand(1);
  app.footer(
      "First run: oktopk train --html report.html\n"
      "Exit codes: 0 fine, 1 a wrong result or a broken law, 2 bad usage, 3 communication failed.\n"
      "oktopk <subcommand> --help explains each.");
  app.option_defaults()->always_capture_default();
  oktopk::Action action;
  for (const auto add :
       {oktopk::add_list, oktopk::add_bench, oktopk::add_kernels, oktopk::add_ping, oktopk::add_predict,
        oktopk::add_tune, oktopk::add_explain, oktopk::add_verify, oktopk::add_simulate, oktopk::add_study,
        oktopk::add_report, oktopk::add_rendezvous, oktopk::add_run, oktopk::add_doctor, oktopk::add_describe})
    add(app, action);
  oktopk::add_train(app, action, fmt::format("{}", fmt::join(argv, argv + argc, " ")));
  try {
    app.parse(argc, argv);
    return checked(action());
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? checked(0) : 2;
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
