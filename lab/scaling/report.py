#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Simulates weak scaling on every platform of `oktopk-lab simulate` and writes a page about it, with its data:

    lab/scaling/report.py [--out report] [--quick] [--jobs 2] [--write-docs]

    report/scaling.html    the page, self-contained         report/document.json  the page for `oktopk-lab report`
    report/scaling.json    all rows                         report/cache/         results; delete to simulate again

Results are kept under a key of the command line and of the program: an interrupted report continues. All of it takes
hours, about one of them at n = 1M, P = 1024; --ranks, --sizes and --platforms ask for less. Needs SimGrid.
--finished reports on the simulations in the cache; --keep adds rows of an earlier report. --write-docs also writes the
tables and figures of docs/scaling.md, and needs matplotlib.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab"))

from scaling import analysis, docs, document, plan, runs  # noqa: E402


def make_images(rows):
    """name -> PNG, for docs/scaling.md"""
    try:
        from scaling import figures
    except ModuleNotFoundError as error:
        sys.exit(f"scaling: no {error.name} here, which --write-docs needs. Install python3-matplotlib "
                 f"(Debian, Ubuntu), or: python3 -m venv .venv && .venv/bin/pip install matplotlib")
    platforms = rows.values("platform")
    reference = "flat-25g" if "flat-25g" in platforms else platforms[0]
    images = {f"time_{plan.count_text(n)}": figures.overview(rows, n) for n in rows.values("n")}
    return images | {"predicted": figures.predicted(rows),
                     "traffic": figures.traffic(rows, reference, figures.most_ranks_size(rows, reference))}


def write_report(out, found, report, runner):
    page = document.build(analysis.Rows(found), report)
    everything = {"tool": "oktopk scaling report", **report, "rows": found}
    (out / "scaling.json").write_text(json.dumps(everything, indent=1) + "\n")
    (out / "document.json").write_text(json.dumps(page, indent=1) + "\n")
    code, output = runner.execute(["report", str(out / "document.json"), "-o", str(out / "scaling.html")])
    if code != 0:
        sys.exit(f"scaling: oktopk-lab report: {output.strip()}")


def parse_options(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", default=str(ROOT / "build/oktopk-lab"), help="simulates (default: build/oktopk-lab)")
    parser.add_argument("--oktopk", default=str(ROOT / "build/oktopk"), help="explains (default: build/oktopk)")
    parser.add_argument("--out", default="report", help="folder for everything (default: report)")
    parser.add_argument("--platforms", help="names, with commas (default: all)")
    parser.add_argument("--ranks", help="with commas (default: 16,64,256,1024)")
    parser.add_argument("--sizes", help="n, with commas (default: 1M,25M)")
    parser.add_argument("--presets", default=",".join([*plan.PRESETS, plan.AUTO]),
                        help="with commas (default: all, and auto)")
    parser.add_argument("--quick", action="store_true", help="two platforms, P = 16 and 64, n = 64K")
    parser.add_argument("--jobs", type=int, default=1, help="simulations at a time (default: 1)")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for one simulation (default: 3600)")
    parser.add_argument("--finished", action="store_true",
                        help="a report of the simulations that are in the cache; none is started")
    parser.add_argument("--keep", help="the scaling.json of an earlier report: its rows are taken for what is not "
                                       "simulated now")
    parser.add_argument("--write-docs", action="store_true", help="also write docs/scaling.md")
    options = parser.parse_args(arguments)
    usual = (",".join(plan.PLATFORMS), "16,64,256,1024", "1M,25M")
    if options.quick:
        usual = ("flat-25g,fat-tree", "16,64", "64K")
    options.platforms = (options.platforms or usual[0]).split(",")
    try:
        options.ranks = sorted({plan.parse_count(r) for r in (options.ranks or usual[1]).split(",")})
        options.sizes = sorted({plan.parse_count(n) for n in (options.sizes or usual[2]).split(",")})
    except ValueError as error:
        parser.error(str(error))
    unknown = [p for p in options.platforms if p not in plan.PLATFORMS]
    if unknown:
        parser.error(f"unknown platform '{unknown[0]}'; there are: {', '.join(plan.PLATFORMS)}")
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: it must be at least 1")
    return options


def main(arguments=None):
    options = parse_options(arguments)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)

    def say(text):
        print(text, file=sys.stderr, flush=True)
    try:
        runner, tuner = (runs.Runner(program, out, options.limit, say) for program in (options.lab, options.oktopk))
    except runs.CommandFailed as error:
        sys.exit(f"scaling: {error}")
    cells = plan.make_cells(options.platforms, options.sizes, options.ranks, options.presets.split(","))
    planned = cells
    if options.finished:
        missing = [cell for cell in cells if not runner.place(cell.arguments()).exists()]
        cells = [cell for cell in cells if cell not in missing]
        for cell in missing:
            say("not in the cache: oktopk-lab " + " ".join(cell.arguments()))
    found, failures = runs.simulate(runner, cells, options.jobs)
    if options.keep:
        try:
            found += runs.kept_rows(options.keep, found)
        except runs.CommandFailed as error:
            sys.exit(f"scaling: --keep {error}")
    if not found:
        sys.exit(f"scaling: nothing could be simulated: {failures[0][1] if failures else 'no cells'}")
    again = [f"lab/scaling/report.py --platforms {','.join(options.platforms)} "
             f"--ranks {','.join(map(str, options.ranks))} "
             f"--sizes {','.join(map(plan.count_text, options.sizes))} --presets {options.presets}"]
    report = {
        "version": runner.execute(["--version"])[1].strip() or "unknown version",
        "again": again, "commands": ["oktopk-lab " + " ".join(cell.arguments()) for cell in cells],
        "failures": [f"{cell.platform}, P = {cell.ranks}, n = {plan.count_text(cell.n)}: {why}"
                     for cell, why in failures],
        "explained": runs.explain(tuner, planned),
    }
    order = {name: i for i, name in enumerate(dict.fromkeys([*options.platforms, *plan.PLATFORMS]))}
    found.sort(key=lambda row: (order[row["platform"]], row["n"], row["ranks"]))
    rows = analysis.Rows(found)
    write_report(out, found, report, runner)
    if options.write_docs:
        docs.write(ROOT / "docs/scaling.md", rows, report["explained"], make_images(rows), options.sizes[0])
    print(f"{out / 'scaling.html'}: {len(found)} rows" + (f", {len(failures)} simulations failed" if failures else ""))
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("scaling: interrupted; the same command continues from here")
