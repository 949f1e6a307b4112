#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kernels of a GPU as its hardware counters see them, as a table for docs/performance.md.

    lab/gpu/figures.py [--lab build/oktopk-lab] [-n 64M] [--density 0.01] [--ranks 1] [--csv FILE]

Runs `oktopk-lab kernels --device cuda` once under Nsight Compute (ncu), which leaves the clocks alone, and prints for
each kernel the launch that took longest: its time, the share of the memory's peak throughput, the share of the warps
that can be active at a time, and registers per thread. --csv reads the output of an earlier run of ncu instead.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import shutil
import subprocess
import sys
from typing import Dict, List, Optional

METRICS = {
    "gpu__time_duration.sum": "us",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "memory, % of peak",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "active warps, %",
    "launch__registers_per_thread": "registers",
}
TIME = "gpu__time_duration.sum"
MICROSECONDS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6,
                "second": 1e6}


def run_ncu(options: argparse.Namespace) -> str:
    ncu = shutil.which("ncu")
    if ncu is None:
        sys.exit("figures: ncu (Nsight Compute) was not found")
    command = [ncu, "--csv", "--clock-control", "none", "--metrics", ",".join(METRICS), options.lab, "kernels",
               "--device", "cuda", "-b", options.n, "--density", options.density, "--ranks", options.ranks, "--iters",
               "1"]
    print("+", " ".join(command), file=sys.stderr)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode != 0:
        sys.exit(f"figures: ncu ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def launches(text: str) -> Dict[str, Dict[str, float]]:
    """Of each kernel's longest launch: metric -> value, times in microseconds. Lines before ncu's own are skipped."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith('"ID"')]
    if not starts:
        sys.exit("figures: no table of ncu in its output")
    by_launch: Dict[str, Dict[str, float]] = {}
    names: Dict[str, str] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[starts[0]:]))):
        if row.get("Metric Name") not in METRICS or not row.get("Metric Value"):
            continue
        value = float(row["Metric Value"].replace(",", ""))
        if row["Metric Name"] == TIME:
            value *= MICROSECONDS[row["Metric Unit"]]
        names[row["ID"]] = kernel_name(row["Kernel Name"])
        by_launch.setdefault(row["ID"], {})[row["Metric Name"]] = value
    longest: Dict[str, Dict[str, float]] = {}
    for launch, values in by_launch.items():
        name = names[launch]
        if name not in longest or values.get(TIME, 0) > longest[name].get(TIME, 0):
            longest[name] = values
    return longest


def kernel_name(full: str) -> str:
    """Without the return type, namespaces and parameters; template arguments stay."""
    for noise in ("<unnamed>::", "(anonymous namespace)::"):
        full = full.replace(noise, "")
    full = full.replace("(bool)1", "true").replace("(bool)0", "false")
    found = re.search(r"(\w+)(<.*>)?\(", full)
    return found[1] + (found[2] or "") if found else full


def table(kernels: Dict[str, Dict[str, float]]) -> str:
    lines: List[str] = ["| kernel | " + " | ".join(METRICS.values()) + " |", "| --- |" + " ---: |" * len(METRICS)]
    for name, values in sorted(kernels.items(), key=lambda item: -item[1].get(TIME, 0)):
        cells = [f"{values[metric]:.1f}" if metric in values else "-" for metric in METRICS]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", default="build/oktopk-lab")
    parser.add_argument("-n", default="64M")
    parser.add_argument("--density", default="0.01")
    parser.add_argument("--ranks", default="1")
    parser.add_argument("--csv", help="the output of an earlier run of ncu --csv")
    options = parser.parse_args(arguments)
    if options.csv:
        with open(options.csv, encoding="utf-8") as stream:
            text = stream.read()
    else:
        text = run_ncu(options)
    print(table(launches(text)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
