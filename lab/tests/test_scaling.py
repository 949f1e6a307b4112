# SPDX-License-Identifier: Apache-2.0
"""lab/scaling on made-up rows whose answers are known; nothing is simulated."""

import contextlib
import io
import json
import re
import stat
import tempfile
import unittest
from pathlib import Path

import pytest
from scaling import analysis, docs, document, plan, runs, tables
from scaling import report as program

ROOT = Path(__file__).resolve().parents[2]

MEBI = 1 << 20


def row(platform, ranks, preset, mean, n=MEBI, predicted=None, words=4.0, messages=8.0, **more):
    bound = 2 * (ranks - 1) / ranks
    return {"platform": platform, "n": float(n), "k": n / 100, "ranks": ranks, "preset": preset, "mean": mean,
            "steady": mean, "predicted": predicted or mean, "words_per_k": words, "wire_over_bound": words / bound,
            "messages": messages, **more}


def fixture():
    """Dense takes 1 ms everywhere. topka: 0.25 ms at P = 16, 4 ms at 256, so in log-log it passes dense at 64."""
    found = []
    for platform, slower in (("flat-25g", 1.0), ("fat-tree", 1.5)):
        for ranks, topka, auto in ((16, 0.25e-3, 0.21e-3), (256, 4e-3, 1.2e-3)):
            found += [row(platform, ranks, "dense", 1e-3, words=200 * (ranks - 1) / ranks),
                      row(platform, ranks, "topka", topka, predicted=topka / slower, words=2.0 * (ranks - 1),
                          messages=4),
                      row(platform, ranks, "circulant", 0.2e-3, predicted=0.2e-3 / 1.04 / slower),
                      row(platform, ranks, "auto", auto, method="circulant bit_packed+fp32 skips 16,1", new_key=1)]
    return found


class Numbers(unittest.TestCase):
    def setUp(self):
        self.rows = analysis.Rows(fixture())

    def test_crossings_are_straight_lines_in_log_log(self):
        self.assertEqual(analysis.crossings([(1, 0.5), (2, 0.9)]), [])
        ((place, rises),) = analysis.crossings([(16, 0.25), (256, 4.0)])
        self.assertAlmostEqual(place, 64)
        self.assertTrue(rises)
        self.assertFalse(analysis.crossings([(16, 4.0), (256, 0.25)])[0][1])

    def test_dense_wins_from_where_the_rows_cross(self):
        found = analysis.dense_wins_over_ranks(self.rows, "flat-25g", MEBI, "topka")
        self.assertEqual(found["kind"], "from")
        self.assertAlmostEqual(found["P"], 64)
        never = analysis.dense_wins_over_ranks(self.rows, "flat-25g", MEBI, "circulant")
        self.assertEqual((never["kind"], never["last"][0]), ("never", 256))
        self.assertAlmostEqual(never["last"][1], 5)
        self.assertIsNone(analysis.dense_wins_over_ranks(self.rows, "flat-25g", MEBI, "gtopk"))
        self.assertEqual(tables.rank_crossovers(self.rows, MEBI).rows[0], ["flat-25g", "P > 64", "never, 5.0x"])

    def test_dense_wins_below_the_size_where_the_rows_cross(self):
        small = [row("wan", 16, "dense", 1.0, n=1024), row("wan", 16, "spardl", 2.0, n=1024),
                 row("wan", 16, "dense", 8.0, n=16384), row("wan", 16, "spardl", 4.0, n=16384)]
        self.assertEqual(tables.size_crossovers(analysis.Rows(small)).rows, [["wan", "16", "spardl", "n < 4.0K"]])

    def test_auto_is_compared_with_the_best_and_with_dense(self):
        found = {(r["platform"], r["ranks"]): r for r in analysis.auto_rows(self.rows)}
        near, far = found["flat-25g", 16], found["flat-25g", 256]
        self.assertEqual(near["best_preset"], "circulant")
        self.assertAlmostEqual(near["over_best"], 1.05)
        self.assertAlmostEqual(near["over_dense"], 0.21)
        self.assertAlmostEqual(far["over_best"], 6.0)
        self.assertAlmostEqual(far["over_dense"], 1.2)
        self.assertRegex(tables.auto_line(self.rows),
                         r"best fixed preset in 2 of 4 rows, and slower than dense .* in 2 of 4 \(")
        good = analysis.Rows([r for r in fixture() if r["ranks"] == 16])
        self.assertRegex(tables.auto_line(good), "in 2 of 2 rows, and never slower than dense by more than 5%")
        self.assertEqual(tables.auto(good).rows[0],
                         ["flat-25g", "16", "1M", "circulant bit_packed+fp32 skips 16,1", "0.210",
                          "circulant", "0.200", "1.050", "0.210"])

    def test_without_auto_nothing_is_said_of_it(self):
        rows = analysis.Rows([r for r in fixture() if r["preset"] != "auto"])
        self.assertEqual((analysis.auto_rows(rows), tables.auto_line(rows)), ([], ""))

    def test_model_is_checked_on_flat_platforms_only(self):
        check = analysis.model_check(self.rows)
        self.assertEqual((check["checked"], check["within"], check["worst"]["preset"]), (3, 3, "circulant"))
        self.assertAlmostEqual(check["deviation"], 0.04)
        self.assertEqual(analysis.flat_outliers(self.rows), {})
        slow = analysis.Rows([row("wan", 256, "gtopk", 1.5, predicted=1.2),
                              row("wan", 64, "gtopk", 0.9, predicted=1.0)])
        self.assertEqual(analysis.flat_outliers(slow), {"gtopk": 1.25})
        self.assertRegex(tables.model_line(self.rows), r"3 of 3 rows are within 5% .* 4\.00%\. Beyond that, .*: none\.")
        median, least, most = analysis.contention(self.rows, "fat-tree")
        self.assertAlmostEqual(median, 1.5)
        self.assertEqual((least["preset"], most["preset"]), ("dense", "circulant"))

    def test_bound_and_formulas_stand_beside_what_was_counted(self):
        self.assertEqual(tables.bounds(self.rows, "flat-25g", MEBI).rows[1], ["topka", "16.0", "256"])
        self.assertEqual(tables.complexity(self.rows, "flat-25g", MEBI).rows[1],
                         ["topka", "log P", "4", "4", "2k(P-1)", "30.0", "510", "30.0", "510"])

    def test_every_preset_has_a_formula(self):
        self.assertEqual(set(analysis.FORMULAS), set(plan.PRESETS))
        for preset in plan.PRESETS:
            _, least, most = analysis.formula(preset, row("wan", 64, preset, 1))
            self.assertLessEqual(least, most)

    def test_digits(self):
        self.assertEqual([tables.digits(x) for x in (0, 0.012345, 1.2345, 9.996, 12.345, 1234.5)],
                         ["0", "0.0123", "1.23", "10.0", "12.3", "1,234"])
        self.assertEqual(tables.size(2.5 * MEBI), "2.5M")

    def test_plan_leaves_out_what_takes_hours(self):
        cells = plan.make_cells(["wan", "fat-tree", "dragonfly"], [MEBI, 25 * MEBI], [64, 256, 1024], plan.PRESETS)
        at = {}
        for c in cells:
            at[c.platform, c.n // MEBI, c.ranks] = at.get((c.platform, c.n // MEBI, c.ranks), ()) + c.presets
        for everything in (("wan", 1, 64), ("wan", 1, 256), ("fat-tree", 1, 256)):
            self.assertEqual(set(at[everything]), set(plan.PRESETS))
        self.assertEqual(set(plan.PRESETS) - set(at["fat-tree", 1, 1024]), {"topkdsa", "topka2a"})
        self.assertEqual(set(plan.PRESETS) - set(at["dragonfly", 1, 1024]), {"topkdsa", "topka2a", "oktopk"})
        self.assertEqual(set(plan.PRESETS) - set(at["wan", 1, 1024]), {"topkdsa", "topka2a", "circulant"})
        self.assertEqual({key[2] for key in at if key[:2] == ("wan", 25)}, {64})
        self.assertEqual({key[2] for key in at if key[:2] == ("fat-tree", 25)}, {64, 256})

    def test_what_the_tuner_decides_about_is_apart(self):
        published, tuned = plan.make_cells(["wan"], [MEBI], [64], [*plan.PRESETS, plan.AUTO])
        self.assertEqual(tuned.presets, ("circulant", "auto"))
        self.assertNotIn("auto", published.presets)

    def test_slow_presets_are_alone_and_make_fewer_steps(self):
        def steps(platform, ranks):
            cells = plan.make_cells([platform], [MEBI], [ranks], [*plan.PRESETS, plan.AUTO])
            return {c.presets: "--steps" in c.arguments() for c in cells}
        self.assertFalse(any(steps("fat-tree", 256).values()))
        rest = ("dense", "topka", "gaussiank", "gtopk", "spardl")
        self.assertEqual(steps("fat-tree", 1024), {rest: False, ("circulant", "auto"): False, ("oktopk",): True})
        self.assertTrue(steps("wan", 256)["circulant", "auto"])
        self.assertTrue(steps("wan", 256)["topkdsa",])
        self.assertEqual(steps("wan", 1024), {rest: False, ("oktopk",): True})

    def test_plan_knows_the_platforms_of_the_command(self):
        (place,) = ROOT.glob("*/simulate/platforms.cc")
        source = place.read_text()
        found = re.findall(r'^    \{"([\w-]+)", "[^"]*", (\S+), (\S+), (\S+),\s(.*?)\},$', source,
                           re.DOTALL | re.MULTILINE)
        self.assertEqual([name for name, *_ in found], list(plan.PLATFORMS))
        for name, latency, bandwidth, overhead, rest in found:
            known = plan.PLATFORMS[name]
            self.assertAlmostEqual(known["latency"], float(latency))
            self.assertAlmostEqual(known["bandwidth"], float(bandwidth))
            self.assertAlmostEqual(known["overhead"], 2 * float(overhead))
            self.assertEqual(known["sharers"] > 1, "kRanksPerNode" in rest)

    def test_counts_are_read_as_the_command_reads_them(self):
        self.assertEqual([plan.parse_count(t) for t in ("64K", "25M", "1000")], [65536, 25 * MEBI, 1000])
        self.assertEqual([plan.count_text(n) for n in (65536, 25 * MEBI, 1000)], ["64K", "25M", "1000"])
        for bad in ("", "0", "4X", "-1", "1.5M"):
            self.assertRaises(ValueError, plan.parse_count, bad)

    def test_markdown_has_its_strong_cells(self):
        text = tables.times(self.rows, MEBI).markdown()
        self.assertIn("| flat-25g | 16 | 1.00 | 0.250 | **0.200** | 0.210 |", text)


class Cache(unittest.TestCase):
    """Of results, with a shell script for a command, which counts how often it runs."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.program = self.folder / "oktopk"
        self.write('echo run >>"$0.runs"; while [ $# -gt 1 ]; do shift; done; '
                   'echo "{\\"rows\\": [{\\"n\\": 1}]}" >"$1"')
        self.said = []

    def write(self, script):
        self.program.write_text(f"#!/bin/sh\n{script}\n")
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)

    def runner(self, limit=60):
        return runs.Runner(self.program, self.folder / "out", limit, self.said.append)

    def test_same_command_runs_once_and_a_new_program_again(self):
        for _ in range(2):
            self.assertEqual(self.runner().result(["simulate"])["rows"], [{"n": 1}])
        self.assertEqual(len(self.said), 1)
        self.runner().result(["simulate", "--ranks", "2"])
        self.assertEqual(len(self.said), 2)
        self.write(self.program.read_text() + "# another build")
        self.runner().result(["simulate"])
        self.assertEqual(len(self.said), 3)

    def test_place_is_filled_by_the_same_command_only(self):
        self.assertFalse(self.runner().place(["simulate"]).exists())
        self.runner().result(["simulate"])
        self.assertTrue(self.runner().place(["simulate"]).exists())
        self.assertFalse(self.runner().place(["simulate", "--ranks", "2"]).exists())

    def test_failure_is_kept_out_of_the_cache_and_told(self):
        self.write("echo 'oktopk: no such thing' >&2; exit 2")
        cell = plan.Cell("wan", MEBI, 16, ("dense",))
        with contextlib.redirect_stderr(io.StringIO()) as said:
            rows, failures = runs.simulate(self.runner(), [cell], 1)
        self.assertIn("NOT SIMULATED", said.getvalue())
        self.assertEqual(rows, [])
        self.assertIn("exit code 2: oktopk: no such thing", failures[0][1])
        self.assertEqual(list((self.folder / "out/cache").glob("*.json")), [])

    def test_slow_command_is_ended(self):
        self.write("sleep 60")
        with self.assertRaisesRegex(runs.CommandFailed, "longer than"):
            self.runner(limit=0.2).result(["simulate"])

    def test_rows_of_an_earlier_report_are_kept_where_there_are_no_new_ones(self):
        new = [row("flat-25g", 16, "dense", 2e-3)]
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "scaling.json"
            place.write_text(json.dumps({"rows": fixture()}))
            kept = runs.kept_rows(place, new)
            self.assertEqual(len(kept), len(fixture()) - 1)
            self.assertNotIn(("flat-25g", 16, "dense"), [(r["platform"], r["ranks"], r["preset"]) for r in kept])
            place.write_text("[]")
            self.assertRaisesRegex(runs.CommandFailed, "no scaling.json", runs.kept_rows, place, new)
            self.assertRaisesRegex(runs.CommandFailed, "no scaling.json", runs.kept_rows, Path(folder) / "none", new)


class Page(unittest.TestCase):
    REPORT = {"version": "0.1.0", "again": ["lab/scaling/report.py"], "commands": ["oktopk-lab simulate <&>"],
              "failures": [],
              "explained": [{"platform": "flat-25g", "n": MEBI, "ranks": 16, "method": "circulant", "x_dense": 5.07,
                             "crossovers": {"n_below": None, "density_above": 0.2968}}]}

    def test_document_has_the_numbers_and_one_part_for_each_figure(self):
        page = document.build(analysis.Rows(fixture()), self.REPORT)
        for part in page["parts"]:
            self.assertEqual(len(part), 1)
            self.assertIn(*part, ["heading", "text", "code", "numbers", "table", "plots"])
        text = json.dumps(page)
        for number in ("P > 64", "never, 5.0x", "1.050", "6.000", "30%",
                       "within 10% of the best fixed preset in 2 of 4"):
            self.assertIn(number, text)
        titles = [plot["title"] for part in page["parts"] for plot in part.get("plots", [])]
        for title in ("flat-25g, n = 1M", "fat-tree: messages per rank and step, n = 1M", "No contention: flat-25g",
                      "Shared links: fat-tree", "auto / best fixed preset, n = 1M"):
            self.assertIn(title, titles)
        self.assertIn("oktopk-lab simulate <&>", text)

    def test_report_hands_the_document_to_the_command(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            command = folder / "oktopk-lab"
            command.write_text('#!/bin/sh\necho "$@" >"$0.arguments"; cp "$2" "$4"\n')
            command.chmod(command.stat().st_mode | stat.S_IXUSR)
            runner = runs.Runner(command, folder, 60, print)
            program.write_report(folder, fixture(), self.REPORT, runner)
            self.assertEqual(len(json.loads((folder / "scaling.json").read_text())["rows"]), len(fixture()))
            self.assertEqual(json.loads((folder / "scaling.html").read_text())["title"], "oktopk: scaling")
            command.write_text("#!/bin/sh\necho 'no such part' >&2; exit 2\n")
            with self.assertRaisesRegex(SystemExit, "no such part"):
                program.write_report(folder, fixture(), self.REPORT, runner)


class Docs(unittest.TestCase):
    def test_docs_are_written_between_their_marks(self):
        pytest.importorskip("matplotlib")
        rows = analysis.Rows(fixture())
        images = program.make_images(rows)
        self.assertEqual(set(images), {"time_1M", "predicted", "traffic"})
        self.assertTrue(all(image.startswith(b"\x89PNG") for image in images.values()))
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "scaling.md"
            (Path(folder) / "figures").mkdir()
            place.write_text((ROOT / "docs/scaling.md").read_text())
            docs.write(place, rows, Page.REPORT["explained"], images, MEBI)
            self.assertIn("| flat-25g | P > 64 | never, 5.0x |", place.read_text())
            self.assertIn("<!-- table times_large -->\n\n| platform | P | dense", place.read_text())  # as it was
            self.assertTrue((Path(folder) / "figures/scaling_time.png").exists())
            place.write_text("nothing")
            self.assertRaisesRegex(ValueError, "no place for table", docs.write, place, rows, [], images, MEBI)
