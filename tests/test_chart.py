"""--chart: the picture holds each bar against its weight, and stands alone."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import stat
import tempfile
import unittest
from typing import Any
from xml.etree import ElementTree

import verify_attention_bias
from tests import DATA, PROJECT, run, strict_json
from tests.test_command_line import COMMITTED, InAFolder, limit_file_size

NAMESPACE = "{http://www.w3.org/2000/svg}"
PICTURE = PROJECT / ".github" / "weights.svg"
HEAD = DATA / "minilm-layer0-head0.json"
ORDER = ["no_bias", "key_bias", "query_bias", "query_and_key_bias"]
WINDOWS = os.name == "nt"


def texts(root: Any, kind: str | None = None) -> list[str]:
    found = root.iter(f"{NAMESPACE}text")
    return [text.text or "" for text in found if kind in (None, text.get("class"))]


def bars(root: Any) -> list[Any]:
    return [rect for rect in root.iter(f"{NAMESPACE}rect") if rect.get("class") != "page"]


class Picture(InAFolder):
    def draw(self, inputs: Any) -> tuple[Any, Any]:
        """Return the picture of vectors, as XML, and what the JSON holds for them."""
        path, chart = self.folder / "inputs.json", self.folder / "chart.svg"
        path.write_text(json.dumps(inputs), "utf-8")
        arguments = ["--input", str(path), "--output", str(self.output), "--chart", str(chart)]
        quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
        with quiet[0], quiet[1]:
            self.assertEqual(verify_attention_bias.main(arguments), 0)
        return ElementTree.fromstring(chart.read_bytes()), strict_json(self.output.read_bytes())

    def assert_drawn(self, root: Any, results: Any, shown: list[int]) -> None:
        """Hold each bar against its weight: the shown keys, and one bar for all others."""
        weights = []
        for name in ORDER:
            row = results["conditions"][name]["weights"][0]
            weights += [row[j] for j in shown]
            if len(shown) < len(row):
                weights.append(sum(row[j] for j in range(len(row)) if j not in shown))
        self.assertEqual(len(bars(root)), len(weights))
        self.assertEqual(texts(root, "weight"), [f"{weight:.3f}" for weight in weights])
        for bar, weight in zip(bars(root), weights):
            self.assertAlmostEqual(float(bar.get("width")), 400 * weight, delta=0.001)
        self.assertEqual({bar.get("x") for bar in bars(root)}, {"290"})
        # No bar, no text and no line of them lies on another or outside of the page.
        height = float(root.get("height"))
        tops = [float(bar.get("y")) for bar in bars(root)]
        self.assertTrue(all(a + 18 < b for a, b in zip(tops, tops[1:])))
        for text in root.iter(f"{NAMESPACE}text"):
            self.assertTrue(0 < float(text.get("y")) < height - 10)
            self.assertTrue(24 <= float(text.get("x")) <= 700)

    def test_the_committed_picture_is_what_the_script_draws(self) -> None:
        done = run("--chart", "-", "--output", str(self.output))
        self.assertEqual(done.stdout, PICTURE.read_bytes())
        self.assertEqual(self.output.read_bytes(), COMMITTED)
        self.assertIn(b" passed at tolerance 1e-12, wrote ", done.stderr)
        self.assertTrue(done.stderr.rstrip().endswith(b" and to standard output"))

    def test_each_bar_of_it_is_its_weight(self) -> None:
        root = ElementTree.parse(PICTURE).getroot()
        self.assert_drawn(root, strict_json(COMMITTED), [0, 1, 2])
        self.assertEqual(texts(root, "weight")[:6], ["0.576", "0.284", "0.140"] * 2)
        self.assertEqual(texts(root, "weight")[6:], ["0.446", "0.446", "0.108"] * 2)
        self.assertEqual(
            texts(root, "key"), ["keys[0] = (1, 0)", "keys[1] = (0, 1)", "keys[2] = (-1, 0)"] * 4
        )
        self.assertEqual(texts(root, "condition"), [name.replace("_", " ") for name in ORDER])
        self.assertIn("b_Q = (0, 1), b_K = (3, -2)", texts(root))

    def test_pairs_are_said_and_coloured(self) -> None:
        root = ElementTree.parse(PICTURE).getroot()
        headings = [
            "no bias, key bias: the same weights",
            "query bias, query and key bias: the same weights",
        ]
        self.assertEqual(texts(root, "bold")[1:], headings)
        kinds = [bar.get("class") for bar in bars(root)]
        self.assertEqual(kinds, ["first"] * 6 + ["second"] * 6)
        words = root.findtext(f"{NAMESPACE}desc") or ""
        for heading in headings:
            self.assertIn(heading, words)
        self.assertIn("first query", root.findtext(f"{NAMESPACE}title") or "")

    def test_it_stands_alone(self) -> None:
        text = PICTURE.read_text("ascii")
        for word in "script", "href", "url(", "@import", "@font-face", "<image", "<foreign", "\r":
            self.assertNotIn(word, text)
        self.assertEqual(text.count("http"), 1)

    def test_a_trained_head(self) -> None:
        root, results = self.draw(strict_json(HEAD.read_bytes()))
        self.assert_drawn(root, results, [0, 1, 2, 3, 4, 5])
        self.assertIn(
            "b_Q = (-0.174, -0.0342, 0.11, ...), b_K = (-0.000142, ", texts(root, "head")[0]
        )
        self.assertTrue(texts(root, "head")[1].startswith("all-MiniLM-L6-v2 (Apache-2.0)"))

    def test_many_keys(self) -> None:
        generator = random.Random(16362)
        for n_k in (1, 8, 9, 300):
            inputs = {
                "queries": [[generator.gauss(0, 1), generator.gauss(0, 1)]],
                "keys": [[generator.gauss(0, 2), generator.gauss(0, 2)] for _ in range(n_k)],
                "query_bias": [1.0, -1.0],
                "key_bias": [0.5, 0.5],
            }
            root, results = self.draw(inputs)
            rows = [results["conditions"][name]["weights"][0] for name in ORDER]
            largest = sorted(range(n_k), key=lambda j: -max(row[j] for row in rows))
            shown = sorted(largest[:7]) if n_k > 8 else list(range(n_k))
            self.assert_drawn(root, results, shown)
            labels = [f"keys[{j}]" for j in shown] + [f"the other {n_k - 7}"] * (n_k > 8)
            self.assertEqual(texts(root, "key"), labels * 4)
            said = f"The 7 keys of the largest weights, and one bar for the other {n_k - 7}."
            self.assertEqual(said in texts(root), n_k > 8)

    def test_a_pair_that_rounding_sets_apart_is_not_called_the_same(self) -> None:
        inputs = {
            "queries": [[1.0, 0.0]],
            "keys": [[0.1, 0.2], [0.3, 0.4]],
            "query_bias": [0.0, 0.0],
            "key_bias": [1e9, 1.0],
        }
        root, _ = self.draw(inputs)
        self.assertRegex(
            texts(root, "bold")[1], r"^no bias, key bias: weights up to \S+e-\d\d apart$"
        )

    def test_a_description_is_escaped(self) -> None:
        inputs = {
            **strict_json(COMMITTED)["inputs"],
            "description": '<b> & " \u00e9\u4e2d\x07\ud800\n]]>',
        }
        root, _ = self.draw(inputs)
        self.assertEqual(texts(root, "head")[1], '<b> & " \u00e9\u4e2d   ]]>')
        inputs["description"] = "x" * 1000
        root, _ = self.draw(inputs)
        self.assertEqual(texts(root, "head")[1], "x" * 88)


class Written(InAFolder):
    def setUp(self) -> None:
        super().setUp()
        self.chart = self.folder / "chart.svg"

    def test_results_json_is_written_as_well(self) -> None:
        done = run("--chart", "chart.svg", cwd=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual(self.names(), ["chart.svg", "results.json"])
        self.assertIn(b", wrote results.json and chart.svg", done.stdout)
        self.assertEqual(self.chart.read_bytes(), PICTURE.read_bytes())

    def test_with_input_it_may_stand_alone(self) -> None:
        done = run("--input", str(HEAD), "--chart", str(self.chart), cwd=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual(self.names(), ["chart.svg"])

    def test_one_that_cannot_be_written_leaves_both_as_they_were(self) -> None:
        self.output.write_text("old")
        self.chart.write_text("old")
        missing = str(self.folder / "missing" / "file")
        for output, chart in ((missing, str(self.chart)), (str(self.output), missing)):
            done = run("--output", output, "--chart", chart)
            self.assert_error(done, f"cannot write {missing!r}")
        for output, chart in ((str(self.folder), str(self.chart)), ("-", str(self.folder))):
            done = run("--output", output, "--chart", chart)
            self.assert_error(done, f"cannot write {str(self.folder)!r}")
        self.assertEqual((self.output.read_text(), self.chart.read_text()), ("old", "old"))
        self.assertEqual(self.names(), ["chart.svg", "results.json"])

    @unittest.skipIf(WINDOWS, "Windows has no RLIMIT_FSIZE")
    def test_a_write_that_fails_half_way(self) -> None:
        self.chart.write_text("old")
        arguments = ["--output", str(self.output), "--chart", str(self.chart)]
        self.assert_error(run(*arguments, preexec_fn=limit_file_size(5000)), "File too large")
        self.assertEqual(self.chart.read_text(), "old")
        self.assertEqual(self.names(), ["chart.svg"])

    @unittest.skipIf(WINDOWS, "Windows has no /dev/full")
    def test_a_full_device_is_tried_before_a_file_is_replaced(self) -> None:
        for options in (("--output", "--chart"), ("--chart", "--output")):
            done = run(options[0], "/dev/full", options[1], str(self.chart))
            self.assert_error(done, "cannot write '/dev/full'")
            done = run(options[0], "/dev/full", options[1], "-")
            self.assert_error(done, "cannot write '/dev/full'")
            self.assertEqual(self.names(), [])

    @unittest.skipIf(WINDOWS, "Windows has no named pipes in folders")
    def test_a_pipe_gets_nothing_where_the_other_file_cannot_be_written(self) -> None:
        os.mkfifo(self.output)
        reader = os.open(self.output, os.O_RDONLY | os.O_NONBLOCK)
        try:
            missing = str(self.folder / "missing" / "chart.svg")
            done = run("--output", str(self.output), "--chart", missing)
            self.assertEqual(os.read(reader, 1000), b"")
        finally:
            os.close(reader)
        self.assert_error(done, f"cannot write {missing!r}")

    @unittest.skipIf(WINDOWS, "Windows has no such modes")
    def test_links_and_modes(self) -> None:
        self.chart.write_text("old")
        self.chart.chmod(0o604)
        link = self.folder / "link.svg"
        link.symlink_to("chart.svg")
        run("--output", str(self.output), "--chart", str(link))
        self.assertTrue(link.is_symlink())
        self.assertEqual(self.chart.read_bytes(), PICTURE.read_bytes())
        self.assertEqual(stat.S_IMODE(self.chart.stat().st_mode), 0o604)

    def test_one_file_for_two_things_is_refused(self) -> None:
        path = self.folder / "inputs.json"
        path.write_text("{}")
        for arguments in (
            ["--output", "-", "--chart", "-"],
            ["--output", "one", "--chart", "./one"],
            ["--chart", "results.json"],
            ["--input", "inputs.json", "--chart", "./inputs.json"],
        ):
            with self.subTest(arguments=arguments):
                done = run(*arguments, cwd=self.folder)
                self.assert_error(done, f"{arguments[-1]!r} is named twice, should be two files\n")
                self.assertEqual(self.names(), ["inputs.json"])


class NotAsked(unittest.TestCase):
    def test_nothing_is_imported_for_it(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            done = run("--output", "-", python=["-S", "-X", "importtime"], cwd=folder)
        modules = {
            line.split(b"|")[-1].strip() for line in done.stderr.splitlines() if b"|" in line
        }
        self.assertIn(b"argparse", modules)
        for module in (
            b"html",
            b"xml",
            b"typing",
            b"dataclasses",
            b"pathlib",
            b"tempfile",
            b"decimal",
        ):
            self.assertNotIn(module, modules)

    def test_a_fault_is_drawn_as_it_is(self) -> None:
        results = verify_attention_bias.verify()
        results["conditions"]["no_bias"]["weights"][0] = [0.5, 0.25, 0.25]
        root = ElementTree.fromstring(verify_attention_bias.chart(results))
        self.assertIn("no bias, key bias: weights up to 0.11 apart", texts(root, "bold"))


if __name__ == "__main__":
    unittest.main()
