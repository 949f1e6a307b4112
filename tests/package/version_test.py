# SPDX-License-Identifier: Apache-2.0
"""The version of the project stands in one place of the repository, and every package file has it.

    version_test.py BUILD_FOLDER
"""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT = re.compile(r"project\(oktopk VERSION ([0-9.]+)")
VERSION = PROJECT.search((ROOT / "CMakeLists.txt").read_text())[1]


def versions(build):
    """Which version each package file has, by its name."""
    yield "pkg-config", re.findall(r"^Version: (.+)$", (build / "oktopk.pc").read_text(), re.M)
    yield "find_package", re.findall(
        r'^set\(PACKAGE_VERSION "([^"]+)"\)', (build / "oktopkConfigVersion.cmake").read_text(), re.M
    )
    yield "Debian", re.findall(
        r'^set\(CPACK_PACKAGE_VERSION "([^"]+)"\)', (build / "CPackConfig.cmake").read_text(), re.M
    )


class Version(unittest.TestCase):
    build = Path("build")

    def test_every_package_file_has_the_version_of_the_project(self):
        for name, found in versions(self.build):
            self.assertEqual(found, [VERSION], name)

    def test_the_version_stands_in_one_place(self):
        """A copy of the repository with another number in CMakeLists.txt is that version everywhere."""
        with tempfile.TemporaryDirectory() as folder:
            copy, build = Path(folder) / "copy", Path(folder) / "build"
            for name in ["cmake", "oktopk"]:
                shutil.copytree(ROOT / name, copy / name)
            for name in ["LICENSE", "pyproject.toml"]:
                shutil.copy(ROOT / name, copy)
            text = (ROOT / "CMakeLists.txt").read_text()
            (copy / "CMakeLists.txt").write_text(PROJECT.sub("project(oktopk VERSION 7.8.9", text))
            parts = [f"-DOKTOPK_{part}=OFF" for part in
                     ["BUILD_TOOLS", "BUILD_TESTS", "BUILD_EXAMPLES", "WITH_MPI", "WITH_CUDA"]]
            subprocess.run(["cmake", "-S", copy, "-B", build, "-G", "Ninja", "-DBUILD_SHARED_LIBS=ON", *parts],
                           check=True, stdout=subprocess.DEVNULL, timeout=300)
            for name, found in versions(build):
                self.assertEqual(found, ["7.8.9"], name)
            self.assertIn("OKTOPK_7.8 {", (build / "oktopk.map").read_text())
            ninja = (build / "build.ninja").read_text()
            self.assertIn("liboktopk.so.7.8.9", ninja)
            self.assertRegex(ninja, r"SONAME = liboktopk\.so\.7\.8\n")

    def test_the_page_of_promises_names_every_installed_header_once(self):
        installed = re.findall(r'^#include "oktopk/([^"]+)"', (ROOT / "oktopk/oktopk.h").read_text(), re.M)
        page = (ROOT / "docs/stability.md").read_text().split("## C++")[1].split("\n## ")[0]
        named = re.findall(r"`([a-z_]+/[a-z_]+\.h)`", page)
        self.assertEqual(sorted(named), sorted([*installed, "comm/mpi_comm.h", "oktopk/oktopk.h"]))

    def test_no_other_file_names_the_version_of_the_project(self):
        """The change log does, and data of tests that are about any version."""
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, stdout=subprocess.PIPE, check=False, text=True).stdout
        number = re.compile(rf"(?<![0-9.]){re.escape(VERSION)}(?![0-9.])")
        for name in listed.split():
            path = ROOT / name
            is_exempt = name in {"CMakeLists.txt", "CHANGELOG.md"} or name.startswith(("tests/", "fuzz/corpus/"))
            if is_exempt or not path.is_file():
                continue
            try:
                text = path.read_text()
            except UnicodeDecodeError:
                continue
            self.assertIsNone(number.search(text), f"{name} has the version {VERSION}, which CMakeLists.txt has")


if __name__ == "__main__":
    Version.build = Path(sys.argv.pop(1)).resolve()
    unittest.main()
