// SPDX-License-Identifier: Apache-2.0
// `oktopk completion SHELL` and `oktopk man`: the subcommands and options that this command has, in the words of a
// shell or of the manual. Both read the same description that --help prints, so they cannot differ from it.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "tools/commands.h"

namespace oktopk {
namespace {

// The subcommands that --help shows.
std::vector<const CLI::App*> subcommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); });
}

// The options that --help shows, without arguments that have no name.
std::vector<const CLI::Option*> named_options(const CLI::App& app) {
  return app.get_options([](const CLI::Option* o) {
    return !o->get_group().empty() && !(o->get_lnames().empty() && o->get_snames().empty());
  });
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

std::string dashed(const CLI::Option& option) {
  return option.get_lnames().empty() ? "-" + option.get_snames().front() : "--" + option.get_lnames().front();
}

// Text that stands between single quotes in any of the shells.
std::string quotable(const std::string& text) { return replaced(replaced(text, "'", "'\\''"), "\n", " "); }

struct Word {
  std::string word, meaning;
};

std::vector<Word> words_of(const CLI::App& app) {
  std::vector<Word> words;
  for (const CLI::App* sub : subcommands(app)) words.push_back({sub->get_name(), quotable(sub->get_description())});
  for (const CLI::Option* option : named_options(app))
    words.push_back({dashed(*option), quotable(option->get_description())});
  return words;
}

// The words after `oktopk` and after `oktopk SUBCOMMAND`, as cases of a shell's case statement.
template <class Format>
std::string cases(const CLI::App& app, const Format& format) {
  std::string text = fmt::format("    '') {} ;;\n", format(words_of(app)));
  for (const CLI::App* sub : subcommands(app))
    text += fmt::format("    {}) {} ;;\n", sub->get_name(), format(words_of(*sub)));
  return text;
}

std::string for_bash(const CLI::App& app) {
  const auto format = [](const std::vector<Word>& words) {
    std::string list;
    for (const Word& w : words) list += (list.empty() ? "" : " ") + w.word;
    return fmt::format("words='{}'", list);
  };
  return "# eval \"$(oktopk completion bash)\"\n_oktopk() {\n  local words=\n  local sub=${COMP_WORDS[1]}\n"
         "  [ \"$COMP_CWORD\" -gt 1 ] || sub=\n  case $sub in\n" +
         cases(app, format) +
         "  esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"${COMP_WORDS[COMP_CWORD]}\"))\n}\n"
         "complete -o default -F _oktopk oktopk\n";
}

std::string for_zsh(const CLI::App& app) {
  const auto format = [](const std::vector<Word>& words) {
    std::string list;
    for (const Word& w : words) list += fmt::format(" '{}:{}'", w.word, replaced(w.meaning, ":", "\\:"));
    return fmt::format("items=({})", list);
  };
  return "#compdef oktopk\n# eval \"$(oktopk completion zsh)\"\n_oktopk() {\n  local -a items\n  local sub=$words[2]\n"
         "  (( CURRENT > 2 )) || sub=\n  case $sub in\n" +
         cases(app, format) +
         "  esac\n  _describe 'oktopk' items || _files\n}\n"
         "if [ \"$funcstack[1]\" = _oktopk ]; then _oktopk \"$@\"; else compdef _oktopk oktopk; fi\n";
}

std::string for_fish(const CLI::App& app) {
  std::string text = "# oktopk completion fish | source\n";
  for (const CLI::App* sub : subcommands(app))
    text += fmt::format("complete -c oktopk -f -n __fish_use_subcommand -a {} -d '{}'\n", sub->get_name(),
                        quotable(sub->get_description()));
  for (const CLI::App* sub : subcommands(app))
    for (const CLI::Option* option : named_options(*sub)) {
      text += fmt::format("complete -c oktopk -n '__fish_seen_subcommand_from {}'", sub->get_name());
      for (const std::string& name : option->get_lnames()) text += " -l " + name;
      for (const std::string& name : option->get_snames()) text += " -s " + name;
      text +=
          fmt::format("{} -d '{}'\n", option->get_expected_max() > 0 ? " -r" : "", quotable(option->get_description()));
    }
  return text;
}

// Text of a manual page as it is: no dot or quote begins a line, and dashes are dashes.
std::string roff(std::string text) {
  text = replaced(replaced(std::move(text), "\\", "\\e"), "-", "\\-");
  return ".nf\n" + replaced("\n" + text, "\n", "\n\\&").substr(1) + "\n.fi\n";
}

std::string manual(const CLI::App& app) {
  std::string text = fmt::format(
      ".TH OKTOPK 1 \"\" \"oktopk {}\" \"User commands\"\n.SH NAME\noktopk \\- sparse allreduce\n"
      ".SH DESCRIPTION\n{}",
      OKTOPK_VERSION, roff(app.get_formatter()->make_help(&app, "oktopk", CLI::AppFormatMode::Normal)));
  for (const CLI::App* sub : subcommands(app))
    text += fmt::format(".SH OKTOPK \\&{}\n{}", sub->get_name(), roff(sub->help("oktopk")));
  return text;
}

}  // namespace

void add_describe(CLI::App& app, Action& action) {
  auto* completion = app.add_subcommand("completion", "prints the completion of this command for a shell")->group("");
  auto shell = std::make_shared<std::string>();
  completion->add_option("shell", *shell, "bash, zsh or fish")->required();
  completion->footer(
      "bash: eval \"$(oktopk completion bash)\" in ~/.bashrc\n"
      "zsh:  eval \"$(oktopk completion zsh)\" in ~/.zshrc, after compinit\n"
      "fish: oktopk completion fish > ~/.config/fish/completions/oktopk.fish");
  completion->callback([&app, &action, shell] {
    action = [&app, shell] {
      require(*shell == "bash" || *shell == "zsh" || *shell == "fish", "completion ", *shell,
              ": the shell must be bash, zsh or fish");
      fmt::print("{}", *shell == "bash" ? for_bash(app) : *shell == "zsh" ? for_zsh(app) : for_fish(app));
      return 0;
    };
  });
  auto* man = app.add_subcommand("man", "prints the manual page: oktopk man | man -l -")->group("");
  man->callback([&app, &action] {
    action = [&app] {
      fmt::print("{}", manual(app));
      return 0;
    };
  });
}

}  // namespace oktopk
