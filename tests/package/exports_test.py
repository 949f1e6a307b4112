# SPDX-License-Identifier: Apache-2.0
"""The binary interface of the library: all names of namespace oktopk, and no others.

    exports_test.py SHARED_LIBRARY STATIC_LIBRARY ABI
"""

import re
import subprocess
import sys
import unittest

# A mangled name in namespace oktopk: a function or variable, or a table or thunk that the compiler makes for a class.
OURS = re.compile(r"_Z(T[ISVT]|T[hv].*?_|GV)?N[KOR]*6oktopk")


def names(*arguments):
    """(type, name) of each symbol that nm lists."""
    listed = subprocess.run(["nm", *arguments], check=True, stdout=subprocess.PIPE, text=True, timeout=60)
    return re.findall(r"^[0-9a-f]* *(\w) (.+)$", listed.stdout, re.M)


def exported(library):
    """(name, version) of each name that a shared library exports."""
    listed = names("--dynamic", "--defined-only", "--with-symbol-versions", library)
    return [(name.partition("@")[0], name.rpartition("@")[2]) for kind, name in listed if kind != "A"]


class Exports(unittest.TestCase):
    shared = static = abi = ""

    def test_the_shared_library_exports_names_of_oktopk_only(self):
        found = [name for name, _ in exported(self.shared)]
        self.assertGreater(len(found), 500)
        self.assertEqual([name for name in found if not OURS.match(name)], [])

    def test_every_exported_name_has_the_version_of_the_binary_interface(self):
        self.assertEqual({version for _, version in exported(self.shared)}, {f"OKTOPK_{self.abi}"})

    def test_the_shared_library_exports_all_that_the_static_one_has(self):
        """Instances of templates among them, which programs cannot make themselves."""
        ours = {name for _, name in names("--defined-only", "--extern-only", self.static) if OURS.match(name)}
        self.assertGreater(len(ours), 500)
        self.assertEqual(ours - {name for name, _ in exported(self.shared)}, set())

    def test_the_static_library_defines_no_strong_name_outside_of_oktopk(self):
        """Weak ones are templates of headers, of which the linker keeps any."""
        strong = [name for kind, name in names("--defined-only", "--extern-only", self.static) if kind in "TDBRG"]
        self.assertGreater(len(strong), 500)
        self.assertEqual([name for name in strong if not OURS.match(name)], [])


if __name__ == "__main__":
    Exports.shared, Exports.static, Exports.abi = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1])
