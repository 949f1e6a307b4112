# SPDX-License-Identifier: Apache-2.0
"""Doxygen's input filter: turns the plain comments of our headers into the ones that Doxygen reads.

    // text                  before a declaration    /// text
    int k = 0;  // text      behind one              int k = 0;  ///< text
                // more      below that              ///< more
    the comment on top, without the licence line     /// \\file

Characters that Doxygen would interpret are escaped: our comments are plain text.
"""

import re
import sys

TRAILING = re.compile(r"^(.*\S)(\s+)// (?!NOLINT)(.*)$")


def escaped(text: str) -> str:
    return re.sub(r"([\\@<>#&$%])", r"\\\1", text)


def filtered(lines: list[str]) -> list[str]:
    out, column, at_top = [], None, True
    for line in lines:
        own = re.match(r"^(\s*)//( ?)(.*)$", line)
        if "SPDX-License-Identifier" in line:
            out.append("/// \\file")
        elif own and column == len(own.group(1)):
            out.append(f"{own.group(1)}///< {escaped(own.group(3))}")
        elif own:
            # "// ---- Part" is a heading between declarations and belongs to none of them.
            is_rule = own.group(3).startswith("----")
            out.append("" if is_rule and not at_top else f"{own.group(1)}///{own.group(2)}{escaped(own.group(3))}")
            column = None
        else:
            behind = TRAILING.match(line)
            column = len(behind.group(1) + behind.group(2)) if behind else None
            if behind and not line.startswith(("#include", "}")):
                out.append(f"{behind.group(1)}{behind.group(2)}///< {escaped(behind.group(3))}")
            else:
                column = None
                out.append(line)
            at_top = at_top and not line.strip()
    return out


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        print("\n".join(filtered(file.read().splitlines())))
