# SPDX-License-Identifier: Apache-2.0
"""`oktopk completion` and `oktopk man`: shells and manual readers take them, and they have every option of --help.

    describe_test.py COMMAND

A shell or a manual reader that is not installed is named on stderr; bash is always there.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

COMPLETE = """
source "$1"
COMP_WORDS=("${@:2}")
COMP_CWORD=$(($# - 2))
_oktopk
printf '%s\\n' "${COMPREPLY[@]}"
"""


def output(*command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60, **options).stdout


class Describe(unittest.TestCase):
    command = ""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def written(self, *arguments):
        path = Path(self.folder.name) / "_oktopk"
        path.write_text(output(self.command, *arguments))
        return path

    def completed(self, *words):
        return output("bash", "-c", COMPLETE, "bash", self.written("completion", "bash"), *words).split()

    def found(self, program):
        if shutil.which(program):
            return True
        print(f"NOT RUN: {program} is not installed", file=sys.stderr)
        return False

    def options_in_help(self, subcommand):
        return set(re.findall(r"^ +(?:-\w,)?(--[a-z][a-z0-9-]+)", output(self.command, subcommand, "--help"), re.M))

    def test_bash_completes_subcommands_and_options(self):
        self.assertEqual(self.completed("oktopk", "tr"), ["train"])
        self.assertEqual(self.completed("oktopk", "p"), [])  # former names work, and are not shown
        self.assertEqual(self.completed("oktopk", "bench", "-n"), [])
        self.assertEqual(self.completed("oktopk", "bench", "--den"), ["--density"])
        self.assertEqual(self.completed("oktopk", "list", "--den"), [])
        self.assertEqual(self.completed("oktopk", "run", "some-file"), [])  # bash goes on with file names

    def test_bash_and_the_manual_have_every_option_of_help(self):
        manual = self.written("man").read_text().replace("\\-", "-")
        for subcommand in ["bench", "train", "tune", "run", "explain"]:
            options = self.options_in_help(subcommand)
            self.assertGreater(len(options), 5, subcommand)
            self.assertLessEqual(options, set(self.completed("oktopk", subcommand, "")), subcommand)
            section = manual.split(f".SH OKTOPK \\&{subcommand}\n")[1].split(".SH")[0]
            self.assertLessEqual(options, set(re.findall(r"--[a-z][a-z0-9-]+", section)), subcommand)

    def test_zsh_reads_its_completion(self):
        if not self.found("zsh"):
            return
        script = self.written("completion", "zsh")
        checks = (
            'compdef() { :; }; _describe() { shown=("${(@P)2}") }; _files() { :; }; source "$1"; '
            "words=(oktopk bench --d); CURRENT=3; _oktopk; print -rl -- $shown"
        )
        shown = output("zsh", "-fc", checks, "zsh", script)
        self.assertIn("--density:k / n, in (0, 1]\n", shown)
        self.assertIn("--codec:index+value coding of all frames; of dense, the values'\n", shown)

    def test_fish_reads_its_completion(self):
        if not self.found("fish"):
            return
        script = self.written("completion", "fish")
        shown = output("fish", "--no-config", "-c", f"source {script}; complete -C 'oktopk bench --dens'")
        self.assertIn("--density\tk / n, in (0, 1]", shown)

    def test_manual_readers_take_the_manual(self):
        if not self.found("groff"):
            return
        page = self.written("man")
        ended = subprocess.run(["groff", "-man", "-ww", "-z", "-Tascii", page], stderr=subprocess.PIPE, text=True,
                               check=True, timeout=60)
        self.assertEqual(ended.stderr, "")

    def test_another_shell_is_refused(self):
        ended = subprocess.run([self.command, "completion", "tcsh"], stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual((ended.returncode, ended.stderr),
                         (2, "oktopk: completion tcsh: the shell must be bash, zsh or fish\n"))


if __name__ == "__main__":
    Describe.command = str(Path(sys.argv.pop(1)).resolve())
    unittest.main()
