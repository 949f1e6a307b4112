#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The k largest of n values by magnitude, in the tools that people have: std::nth_element, numpy, torch, oktopk.

    lab/bench/compare_topk.py [--lab build/oktopk-lab] [-n 16M] [--density 0.01] [-r 9] [--json FILE]

Everything runs on one thread and on the same values, which oktopk generates and writes to a temporary file. Every
row gives indices and values. Two questions: the exact top k, and all values above a threshold that is known
(threshold + nonzero). Times are medians; "x slower" is relative to oktopk's kernel for the same question.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

# Before numpy and torch start their threads.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"


def load(name):
    try:
        return __import__(name)
    except ImportError:
        print(f"*** {name.upper()} IS MISSING: its rows are left out (pip install {name}) ***")
        return None


def median_seconds(repetitions, function):
    function()
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def run_oktopk(options, data_file, json_file):
    """The rows that C++ measures: kernel -> (seconds, k)."""
    def rows(only):
        command = [options.lab, "kernels", "-b", options.n, "--density", str(options.density),
                   "--data", options.data, "--iters", str(options.repetitions), "--baselines", "--only",
                   only, "-J", json_file, "--write-data", data_file]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with open(json_file) as stream:
            return json.load(stream)["rows"]
    kernels = {}
    for only in ("exact top-k", "threshold scan", "std"):
        for row in rows(only):
            kernels[row["kernel"]] = (row["time"], int(row["k"]))
    return kernels


def python_rows(numpy, torch, x, k, threshold, repetitions):
    """Rows (question, tool, seconds), and the indices each found, to check that all agree."""
    def numpy_topk():
        idx = numpy.argpartition(numpy.abs(x), x.size - k)[x.size - k:]
        return idx, x[idx]

    def numpy_threshold():
        idx = numpy.nonzero(numpy.abs(x) >= threshold)[0]
        return idx, x[idx]
    tools = [("top-k", "numpy argpartition", numpy_topk), ("threshold", "numpy nonzero", numpy_threshold)]
    if torch:
        t = torch.from_numpy(x)

        def torch_topk(is_sorted):
            idx = torch.topk(t.abs(), k, sorted=is_sorted).indices
            return idx.numpy(), t[idx]

        def torch_threshold():
            idx = torch.nonzero(t.abs() >= threshold, as_tuple=True)[0]
            return idx.numpy(), t[idx]
        tools += [("top-k", "torch.topk", lambda: torch_topk(True)),
                  ("top-k", "torch.topk sorted=False", lambda: torch_topk(False)),
                  ("threshold", "torch nonzero", torch_threshold)]
    for question, name, function in tools:
        found = numpy.sort(numpy.abs(x[function()[0]]))
        if found.size < k or found[-k] != threshold:
            sys.exit(f"compare_topk: {name} found other values than oktopk's threshold {threshold}")
        yield question, name, median_seconds(repetitions, function)


def parse_count(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1].upper()] if text[-1:].upper() in units else int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", default="build/oktopk-lab", help="the command (default: build/oktopk-lab)")
    parser.add_argument("-n", default="16M", help="number of values (default 16M)")
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--data", default="gaussian")
    parser.add_argument("-r", "--repetitions", type=int, default=9)
    parser.add_argument("--json", help="also write the rows to this file")
    options = parser.parse_args()
    numpy, torch = load("numpy"), load("torch")
    if not numpy:
        return 2
    if torch:
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data_file = os.path.join(folder, "values.f32")
        kernels = run_oktopk(options, data_file, os.path.join(folder, "rows.json"))
        x = numpy.fromfile(data_file, dtype=numpy.float32)
    k = kernels["exact top-k"][1]
    assert x.size == parse_count(options.n)
    threshold = numpy.sort(numpy.abs(x))[-k]
    rows = [("top-k", "oktopk", kernels["exact top-k"][0]),
            ("top-k", "std::nth_element", kernels["std::nth_element"][0]),
            ("threshold", "oktopk", kernels["threshold scan"][0]),
            ("threshold", "std push_back", kernels["std scan, push_back"][0])]
    rows += python_rows(numpy, torch, x, k, threshold, options.repetitions)
    versions = f"numpy {numpy.__version__}" + (f", torch {torch.__version__}" if torch else "")
    print(f"# n = {x.size}, k = {k}, {options.data}, one thread each, median of {options.repetitions}; {versions}")
    print(f"# {'question':<10} {'tool':<24} {'ms':>9} {'x slower':>9}")
    result = []
    for question, tool, seconds in sorted(rows, key=lambda row: (row[0] != "top-k", row[2])):
        ours = next(s for q, t, s in rows if q == question and t == "oktopk")
        print(f"  {question:<10} {tool:<24} {seconds * 1e3:9.2f} {seconds / ours:9.1f}")
        result.append({"question": question, "tool": tool, "time": seconds, "times_oktopk": seconds / ours})
    if options.json:
        with open(options.json, "w") as stream:
            json.dump({"n": int(x.size), "k": k, "data": options.data, "versions": versions, "rows": result},
                      stream, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
