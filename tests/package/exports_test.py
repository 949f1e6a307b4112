# SPDX-License-Identifier: Apache-2.0
"""The binary interface of the library: names outside of namespace oktopk are nobody's business.

    exports_test.py SHARED_LIBRARY STATIC_LIBRARY ABI
"""

import re
import subprocess
import sys
import unittest

# Demangled, a name of ours is oktopk::..., or something that the compiler makes for one.
OURS = re.compile(r"((typeinfo( name)?|vtable|VTT) for |(non-)?virtual thunk to )?oktopk::")


def names(*arguments):
    """(type, demangled name) of each symbol that nm lists."""
    listed = subprocess.run(["nm", "--demangle", *arguments], check=True, stdout=subprocess.PIPE, text=True, timeout=60)
    return re.findall(r"^[0-9a-f]* *(\w) (.+)$", listed.stdout, re.M)


class Exports(unittest.TestCase):
    shared = static = abi = ""

    def test_the_shared_library_exports_names_of_oktopk_only(self):
        exported = [name for kind, name in names("--dynamic", "--defined-only", self.shared) if kind != "A"]
        self.assertGreater(len(exported), 500)
        self.assertEqual([name for name in exported if not OURS.match(name)], [])

    def test_every_exported_name_has_the_version_of_the_binary_interface(self):
        listed = names("--dynamic", "--defined-only", "--with-symbol-versions", self.shared)
        found = {name.rpartition("@")[2] for kind, name in listed if kind != "A"}
        self.assertEqual(found, {f"OKTOPK_{self.abi}"})

    def test_programs_find_what_they_use(self):
        exported = "\n".join(name for _, name in names("--dynamic", "--defined-only", self.shared))
        for wanted in ["oktopk::Reducer::Reducer(", "oktopk::SparseAdamW::SparseAdamW(", "oktopk::run_threads(",
                       "oktopk::make_tcp_world(", "oktopk::make_mpi_world(", "typeinfo for oktopk::CommError"]:
            self.assertIn(wanted, exported)

    def test_the_static_library_defines_no_strong_name_outside_of_oktopk(self):
        """Weak ones are templates of headers, of which the linker keeps any."""
        strong = [name for kind, name in names("--defined-only", "--extern-only", self.static) if kind in "TDBRG"]
        self.assertGreater(len(strong), 500)
        returned = re.compile(r"(^|[ *&>])oktopk::")  # of a template, nm shows the type that it returns first
        self.assertEqual([name for name in strong if not OURS.match(name) and not returned.search(name)], [])


if __name__ == "__main__":
    Exports.shared, Exports.static, Exports.abi = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1])
