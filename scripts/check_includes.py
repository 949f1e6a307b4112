#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every file of oktopk/, tools/ and lab/ reaches the headers of the names it uses, by its own includes.

Several sources are compiled as one, where a missing include goes unseen; this reads each file alone, in a second
where a compiler takes minutes. Names: those of std in the table below, and all types, functions and constants that
a header of these folders declares. Prints each violation and exits 1 if any.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["oktopk", "tools", "lab"]

# Header of the standard library -> names in std that need it.
STANDARD = {
    "algorithm": "sort stable_sort nth_element min max minmax clamp copy copy_n copy_if fill fill_n lower_bound "
                 "upper_bound all_of any_of none_of find find_if transform reverse rotate max_element min_element "
                 "count count_if is_sorted partition stable_partition remove_if set_union set_intersection merge "
                 "adjacent_find for_each generate",
    "array": "array to_array",
    "atomic": "atomic atomic_thread_fence memory_order_relaxed memory_order_acquire memory_order_release",
    "bit": "bit_cast popcount countl_zero countr_zero bit_width bit_ceil bit_floor has_single_bit",
    "chrono": "chrono",
    "cmath": "sqrt log log2 log1p pow ceil floor fabs isfinite isnan isinf exp exp2 lround llround signbit ldexp "
             "frexp nextafter",
    "condition_variable": "condition_variable condition_variable_any",
    "cstdint": "int8_t uint8_t int16_t uint16_t int32_t uint32_t int64_t uint64_t",
    "cstring": "memcpy memset memcmp memmove strlen",
    "deque": "deque",
    "exception": "exception_ptr current_exception rethrow_exception make_exception_ptr uncaught_exceptions",
    "functional": "function greater less plus",
    "limits": "numeric_limits",
    "list": "list",
    "map": "map multimap",
    "memory": "unique_ptr make_unique shared_ptr make_shared weak_ptr",
    "mutex": "mutex lock_guard unique_lock scoped_lock once_flag call_once",
    "numeric": "accumulate iota partial_sum reduce inner_product exclusive_scan inclusive_scan gcd lcm",
    "optional": "optional nullopt make_optional",
    "random": "mt19937 mt19937_64 uniform_int_distribution normal_distribution",
    "set": "set",
    "span": "span as_bytes as_writable_bytes",
    "sstream": "ostringstream istringstream stringstream",
    "stdexcept": "runtime_error logic_error invalid_argument out_of_range",
    "string": "string to_string stoi stol stod",
    "string_view": "string_view",
    "thread": "thread jthread this_thread",
    "tuple": "tuple tie make_tuple",
    "unordered_map": "unordered_map",
    "unordered_set": "unordered_set",
    "utility": "exchange",
    "variant": "variant visit holds_alternative",
    "vector": "vector",
}
HEADER_OF = {name: header for header, names in STANDARD.items() for name in names.split()}
# A header that brings another along by the standard's own words, or in every library there is.
BRINGS = {"string": {"string_view"}, "sstream": {"string", "string_view"}, "stdexcept": {"string"},
          "thread": {"chrono"}, "condition_variable": {"mutex", "chrono"}, "mutex": {"chrono"},
          "functional": {"utility"}, "memory": {"utility"}, "map": {"utility"}, "algorithm": {"utility"},
          "vector": {"utility"}, "array": {"utility"}, "optional": {"utility"}}

COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
TYPE = re.compile(r"^(?:template <[^\n]*>\n)?(?:class|struct|enum class|enum|using)\s+(\w+)(?![\w ]*;)", re.M)
FUNCTION = re.compile(r"^(?:\[\[\w+\]\] |inline |constexpr )*[\w:][\w:<>,*& ]*[ *&]([a-z]\w*)\(", re.M)
CONSTANT = re.compile(r"^(?:(?:inline )?constexpr [\w:<>, ]+|#define) (k[A-Z]\w*|OKTOPK_\w+)\b", re.M)
# The same at any depth: members, and what a function declares for itself.
DECLARED = re.compile(r"\b(?:class|struct|enum class|using|constexpr [\w:<>, ]+?|const \w+) (\w+)")
CALLABLE = re.compile(r"^ *(?!return)[\w:][\w:<>,*& ]*[ *&](\w+)\(|\bauto (\w+) = \[", re.M)


class File:
    def __init__(self, path):
        text = path.read_text()
        self.name = path.relative_to(ROOT).as_posix()
        includes = re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', text, re.M)
        self.standard = {header for quote, header in includes if quote == "<"}
        self.own = [header for quote, header in includes if quote == '"']
        self.is_whole = path.suffix == ".cc" or "#pragma once" in text
        self.code = COMMENT_OR_TEXT.sub(" ", text)
        self.types = set(TYPE.findall(self.code)) | set(CONSTANT.findall(self.code))
        self.functions = set(FUNCTION.findall(self.code))


def reached(file, files, seen):
    """The files that an include of this one reads, itself among them."""
    if file.name not in seen:
        seen[file.name] = file
        for header in file.own:
            if header in files:
                reached(files[header], files, seen)
    return seen.values()


def homes(files):
    """Name of ours -> the headers that declare it; functions apart, because only a call is told from a variable."""
    types, functions = {}, {}
    for file in files.values():
        if file.name.endswith(".h"):
            for name in file.types:
                types.setdefault(name, set()).add(file.name)
            for name in file.functions:
                functions.setdefault(name, set()).add(file.name)
    return types, functions


def check(file, files, types, functions):
    sources = list(reached(file, files, {}))
    there = {source.name for source in sources}
    standard = {header for source in sources for header in source.standard}
    for header in list(standard):
        standard |= BRINGS.get(header, set())
    for name in sorted(set(re.findall(r"\bstd::(\w+)", file.code))):
        if HEADER_OF.get(name, "") and HEADER_OF[name] not in standard:
            yield f"std::{name} is used without <{HEADER_OF[name]}>"
    declared = {name for source in sources for name in DECLARED.findall(source.code)}
    for name in sorted(set(re.findall(r"(?<![\w.:>])([A-Z]\w+|k[A-Z]\w+)\b", file.code)) - declared):
        if name in types and not types[name] & there:
            yield f"{name} is used without {' or '.join(sorted(types[name]))}"
    callable_here = {name for source in sources for names in CALLABLE.findall(source.code) for name in names}
    for name in sorted(set(re.findall(r"(?<![\w.:>~])([a-z]\w*)(?:<\w+>)?\(", file.code)) - callable_here):
        if name in functions and not functions[name] & there:
            yield f"{name}() is called without {' or '.join(sorted(functions[name]))}"


def main():
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    paths = sorted(p for p in found if p.suffix in {".h", ".cc"} and ROOT / "lab/tests" not in p.parents)
    # A header without a guard is a piece of text that others include in their middle.
    files = {file.name: file for file in map(File, paths) if file.is_whole}
    types, functions = homes(files)
    problems = [(file.name, what) for file in files.values() for what in check(file, files, types, functions)]
    for name, what in problems:
        print(f"{name}: {what}")
    print(f"check_includes: {len(files)} files, {len(types) + len(functions)} names of ours, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
