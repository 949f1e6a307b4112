# SPDX-License-Identifier: Apache-2.0
"""Writes the tables and figures of docs/scaling.md: what stands between `<!-- table NAME -->` and `<!-- end -->`. The
table of the larger n stays as it is where no larger n was simulated."""

import re
import textwrap

from . import plan, tables


WIDTH = 120


def sections(rows, explained, n):
    """name -> Markdown"""
    reference = "flat-25g" if "flat-25g" in rows.values("platform") else rows.values("platform")[0]
    large = rows.values("n")[-1]
    auto = textwrap.fill(tables.auto_line(rows), WIDTH)
    model = [textwrap.fill(line, WIDTH) for line in (tables.model_line(rows), tables.contention_line(rows)) if line]
    return ({"times_large": tables.times(rows, large).markdown()} if large > n else {}) | {
        "times": tables.times(rows, n).markdown(),
        "ranks": tables.rank_crossovers(rows, n).markdown(),
        "explained": tables.explained(explained).markdown() if explained else "`oktopk explain` failed.",
        "model": "\n\n".join(model),
        "ratios": tables.model_ratios(rows, n).markdown(),
        "complexity": tables.complexity(rows, reference, n).markdown(),
        "bounds": tables.bounds(rows, reference, n).markdown(),
        "auto": f"{auto}\n\n{tables.auto(rows).markdown()}" if auto else "Preset auto was not simulated.",
    }


FIGURES = {"scaling_time.png": "time_{n}", "scaling_traffic.png": "traffic", "scaling_predicted.png": "predicted"}


def write(page, rows, explained, images, n):
    text = page.read_text()
    for name, content in sections(rows, explained, n).items():
        pattern = rf"(<!-- table {name} -->).*?(<!-- end -->)"
        text, count = re.subn(pattern, lambda m: f"{m[1]}\n\n{content}\n\n{m[2]}", text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{page}: no place for table {name}")
    page.write_text(text)
    for file, image in FIGURES.items():
        (page.parent / "figures" / file).write_bytes(images[image.format(n=plan.count_text(n))])
