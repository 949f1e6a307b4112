# SPDX-License-Identifier: Apache-2.0
"""scripts/check_includes.py on small trees: what it finds, and what it leaves alone."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECK = Path(__file__).resolve().parent.parent.parent / "scripts/check_includes.py"

SUM_H = """#pragma once
#include <vector>
namespace oktopk {
struct Sum { double value = 0; };
constexpr int kTerms = 3;
Sum add_up(const std::vector<double>& terms);
}
"""


def check(**sources):
    """The lines that the check prints about oktopk/base/<name>.cc with these sources, and its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "scripts").mkdir()
        shutil.copy(CHECK, root / "scripts")
        (root / "oktopk/base").mkdir(parents=True)
        (root / "oktopk/base/sum.h").write_text(SUM_H)
        for name, text in sources.items():
            (root / f"oktopk/base/{name}.cc").write_text(text)
        ended = subprocess.run([sys.executable, root / "scripts/check_includes.py"], stdout=subprocess.PIPE, text=True)
    return ended.stdout.splitlines()[:-1], ended.returncode


class CheckIncludes(unittest.TestCase):
    def test_a_header_that_is_reached_by_another_is_enough(self):
        code = '#include "oktopk/base/sum.h"\nSum f() { std::vector<double> x(kTerms); return add_up(x); }\n'
        self.assertEqual(check(user=code), ([], 0))

    def test_a_missing_standard_header_is_named(self):
        code = '#include "oktopk/base/sum.h"\nstd::string f();\n'
        self.assertEqual(check(user=code), (["oktopk/base/user.cc: std::string is used without <string>"], 1))

    def test_another_file_s_include_does_not_help(self):
        code = "double f() { return add_up({kTerms}).value + Sum{}.value; }\n"
        found, status = check(other='#include "oktopk/base/sum.h"\n', user=code)
        self.assertEqual(found, [
            "oktopk/base/user.cc: Sum is used without oktopk/base/sum.h",
            "oktopk/base/user.cc: kTerms is used without oktopk/base/sum.h",
            "oktopk/base/user.cc: add_up() is called without oktopk/base/sum.h",
        ])
        self.assertEqual(status, 1)

    def test_comments_texts_members_and_own_names_are_no_uses(self):
        code = ('// std::map of Sum\nconst char* t = "std::map add_up(Sum)";\nstruct Own {\n  int add_up(int);\n};\n'
                "int f(Own o) { return o.add_up(1); }\n")
        self.assertEqual(check(user=code), ([], 0))


if __name__ == "__main__":
    unittest.main()
