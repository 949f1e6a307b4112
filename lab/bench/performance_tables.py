#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what docs/performance.md shows and prints its tables, or writes them into it.

    lab/bench/performance_tables.py [--only elements,codecs] [--write] [--quick] [--least]

Each table stands in the page between `<!-- table NAME -->` and `<!-- end -->`; --write replaces what is between.
Needs an otherwise idle machine; --least uses the least of the times instead of their medians, for one that is not.
--quick measures small sizes, to see that everything runs. The table topk needs numpy, and torch for its rows. The
table gpu needs an NVIDIA GPU, and is made only when --only names it.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/performance.md"
MPI = ["mpirun", "--oversubscribe", "-n"]
os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


def run(command):
    """The JSON that the command writes with -J."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "out.json")
        print("+", " ".join(command), file=sys.stderr)
        subprocess.run([*command, "-J", file], check=True, stdout=subprocess.DEVNULL)
        with open(file) as stream:
            return json.load(stream)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


class Tables:
    def __init__(self, options):
        self.oktopk, self.lab, self.least, self.quick = options.oktopk, options.lab, options.least, options.quick
        self.large = "256K" if options.quick else "16M"
        self.repetitions = "3" if options.quick else "31"
        self.kernel_rows = None

    def kernels(self):
        """(kernel, density) -> level -> row, measured once for all tables."""
        if self.kernel_rows is None:
            self.kernel_rows = {}
            for row in run([self.lab, "kernels", "-b", self.large, "--density", "0.01,0.001", "--simd", "all",
                            "--iters", self.repetitions])["rows"]:
                density = "1%" if row["k"] > row["n"] / 200 else "0.1%"
                self.kernel_rows.setdefault((row["kernel"], density), {})[row["simd"]] = row
        return self.kernel_rows

    def ratio(self, row):
        return row["ratio_min"] if self.least else row["ratio"]

    def nanoseconds(self, row):
        scale = row["time_min"] / row["time"] if self.least and row["time"] > 0 else 1
        return row["ns_per_entry"] * scale

    def levels(self):
        return list(next(iter(self.kernels().values())))

    def elements(self):
        def asked(row):
            return ", ".join(f'{r["most"]:.2f}' for r in row["reach"])
        rows = []
        for (kernel, density), by_level in self.kernels().items():
            best = by_level[self.levels()[-1]]
            if best["limit"] in ("read", "axpy"):
                limit = best["limit_time_min"] if self.least else best["limit_time"]
                rows.append([kernel, density, f'{best["limit"]}, {1e3 * limit:.2f} ms',
                             *[f"{self.ratio(row):.2f}" for row in by_level.values()], asked(best)])
        return table(["kernel", "density", "limit", *self.levels(), "reach"], rows)

    def entries(self):
        rows = []
        for (kernel, density), by_level in self.kernels().items():
            if kernel.startswith(("reduce", "trim", "dense mean")):
                asked = ", ".join(f'{r["most"]:g}' for r in by_level[self.levels()[-1]]["reach"])
                rows.append([kernel, density, *[f"{self.nanoseconds(row):.2f}" for row in by_level.values()], asked])
        return table(["kernel, ns per entry", "density", *self.levels(), "reach"], rows)

    def codecs(self):
        pairs = {}
        for (kernel, density), by_level in self.kernels().items():
            match = re.fullmatch(r"(?:index|value|frame) (\S+) (encode|decode)", kernel)
            if match:
                pairs.setdefault((kernel.rsplit(" ", 1)[0], density), {})[match[2]] = by_level
        rows = []
        for (name, density), verbs in pairs.items():
            best = self.levels()[-1]
            rows.append([name, density, f'{verbs["encode"][best]["bits_per_entry"]:.2f}',
                         *[" / ".join(f"{self.nanoseconds(verbs[verb][level]):.2f}" for verb in ("encode", "decode"))
                           for level in self.levels()]])
        return table(["coding, encode / decode, ns per entry", "density", "bits", *self.levels()], rows)

    def topk(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "out.json")
            subprocess.run([sys.executable, ROOT / "lab/bench/compare_topk.py", "--lab", self.lab, "-n", self.large,
                            "-r", "3" if self.quick else "9", "--json", file], check=True, stdout=subprocess.DEVNULL)
            with open(file) as stream:
                result = json.load(stream)
        rows = [[r["tool"], r["question"], f'{1e3 * r["time"]:.2f}', f'{r["times_oktopk"]:.1f}']
                for r in result["rows"]]
        return f'{result["versions"]}, one thread each:\n\n' + table(["tool", "question", "ms", "x slower"], rows)

    def bench(self, transport, ranks, presets, n, *options):
        launch = [*MPI, str(ranks)] if transport == "mpi" else []
        own = [] if transport == "mpi" else ["--ranks", str(ranks)]
        return run([*launch, self.oktopk, "bench", "--transport", transport, *own, "--preset", presets, "-b", n,
                    "--iters", self.repetitions, *options])["rows"]

    def steps(self):
        rows = []
        for n in ("64K", "256K") if self.quick else ("1M", "16M"):
            for ranks in (2, 4):
                for r in self.bench("mpi", ranks, "circulant,oktopk,dense", n, "--codec", "bit_packed+fp32"):
                    rows.append([r["preset"], n, str(ranks), f'{1e3 * r["axpy_time"]:.2f}', f'{1e3 * r["time"]:.2f}',
                                 f'{r["times_axpy"]:.2f}', f'{1e3 * r["dense_result_time"]:.2f}',
                                 f'{r["dense_result_time"] / r["axpy_time"]:.2f}',
                                 f'{1e3 * r["mpi_allreduce_time"]:.2f}', f'{r["speedup_over_mpi"]:.2f}'])
        return table(["preset", "n", "P", "axpy, ms", "step, ms", "x axpy", "dense result, ms", "x axpy",
                      "MPI_Allreduce, ms", "x faster than it"], rows)

    def phases(self):
        names = ["check", "select", "exchange", "settle", "wire"]
        rows = []
        for ranks in (2, 4):
            for r in self.bench("mpi", ranks, "circulant", self.large, "--codec", "bit_packed+fp32"):
                rows.append([r["preset"], str(ranks), *[f'{1e3 * r["phases"][name]:.2f}' for name in names],
                             f'{1e3 * r["axpy_time"]:.2f}'])
        return table(["preset, ms", "P", *names, "axpy"], rows)

    def wire(self):
        rows = []
        for codec in ("coo32+fp32", "bit_packed+fp32", "elias_fano+fp32", "elias_fano+bf16", "elias_fano+log8"):
            for ranks in (2,) if self.quick else (2, 4, 8):
                row = [codec, str(ranks)]
                for skips in ("direct", "halving"):
                    (r,) = self.bench("threads", ranks, "circulant", "256K" if self.quick else "4M",
                                      "--codec", codec, "--skips", skips)
                    row += [f'{r["messages"]:.0f}', f'{r["words_per_k"]:.3f}', f'{r["wire_over_bound"]:.3f}']
                rows.append(row)
        return table(["codec", "P", "direct: messages", "words/k", "x bound",
                      "halving: messages", "words/k", "x bound"], rows)

    def gpu(self):
        sizes = ["-b", "64K"] if self.quick else ["-b", "16M", "-e", "128M", "-f", "8"]
        result = run([self.lab, "kernels", "--device", "cuda", *sizes, "--density", "0.01,0.001", "--ranks", "1,8",
                      "--iters", self.repetitions])
        rows = []
        for r in result["rows"]:
            limit, time = ("limit_time_min", "time_min") if self.least else ("limit_time", "time")
            goal = ", ".join(f'{g["most"]:g} {"ok" if g["met"] else "over"}' for g in r["reach"])
            rows.append([r["kernel"], f'2^{math.log2(r["n"]):g}', f'{100 * r["k"] / r["n"]:.1g}%',
                         f'{r["limit"]}, {1e3 * r[limit]:.4f} ms', f"{1e3 * r[time]:.4f}", f"{self.ratio(r):.2f}",
                         goal])
        return f'{result["device"]}:\n\n' + table(["kernel", "n", "density", "limit", "ms", "x limit", "reach"], rows)


ON_GPU = ["gpu"]  # only when asked for
NAMES = ["elements", "entries", "codecs", "topk", "steps", "phases", "wire"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oktopk", default=str(ROOT / "build/oktopk"))
    parser.add_argument("--lab", default=str(ROOT / "build/oktopk-lab"))
    parser.add_argument("--only", default=",".join(NAMES), help="names of tables, with commas")
    parser.add_argument("--write", action="store_true", help="write them into docs/performance.md")
    parser.add_argument("--least", action="store_true", help="least times instead of medians")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    options = parser.parse_args()
    tables = Tables(options)
    for name in options.only.split(","):
        if name not in NAMES + ON_GPU:
            parser.error(f"unknown table '{name}'; there are: {', '.join(NAMES + ON_GPU)}")
        text = getattr(tables, name)()
        print(f"<!-- table {name} -->\n\n{text}\n\n<!-- end -->", flush=True)
        if options.write:
            pattern = rf"(<!-- table {name} -->).*?(<!-- end -->)"
            page, count = re.subn(pattern, lambda m: f"{m[1]}\n\n{text}\n\n{m[2]}", PAGE.read_text(), flags=re.DOTALL)
            if count != 1:
                sys.exit(f"{PAGE}: no place for table {name}")
            PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
