"""--chart: the picture holds each bar against its weight, and stands alone."""

from __future__ import annotations

import contextlib
import io
import json
import random
import stat
import subprocess
import sys
import unittest
from typing import Any
from xml.etree import ElementTree

import verify_attention_bias
from tests import DATA, PROJECT, WINDOWS, run, strict_json
from tests.test_command_line import COMMITTED, InAFolder, limit_file_size

NAMESPACE = "{http://www.w3.org/2000/svg}"
PICTURE = PROJECT / ".github" / "weights.svg"
HEAD = DATA / "minilm-layer0-head0.json"
ORDER = ["no_bias", "key_bias", "query_bias", "query_and_key_bias"]


def texts(root: Any, *kinds: str) -> list[str]:
    found = root.iter(f"{NAMESPACE}text")
    return [text.text or "" for text in found if not kinds or text.get("class") in kinds]


def bars(root: Any) -> list[Any]:
    return [rect for rect in root.iter(f"{NAMESPACE}rect") if rect.get("class") != "page"]


def lines(root: Any) -> list[list[str]]:
    """Return the texts of the picture, those at one height together."""
    heights: dict[str, list[str]] = {}
    for text in root.iter(f"{NAMESPACE}text"):
        heights.setdefault(text.get("y"), []).append(text.text or "")
    return list(heights.values())


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

    def assert_drawn(self, root: Any, results: Any, query: int, shown: list[int]) -> None:
        """Hold each line against its score and weight, and each bar against its weight."""
        expected, widths = [], []
        before = results["conditions"]["no_bias"]["scores"][query]
        for name in ORDER:
            condition = results["conditions"][name]
            row, weights = condition["scores"][query], condition["weights"][query]
            expected.append([name.replace("_", " "), "score", "bias adds", "weight"])
            widths.append(0.0)
            for j in shown:
                added = "" if name == "no_bias" else f"{row[j] - before[j] + 0.0:.3f}"
                expected.append([f"keys[{j}]", f"{row[j]:.3f}", added, f"{weights[j]:.3f}"])
                widths.append(140 * weights[j])
            if len(shown) < len(row):
                rest = sum(weights[j] for j in range(len(row)) if j not in shown)
                expected.append([f"the other {len(row) - len(shown)}", "", "", f"{rest:.3f}"])
                widths.append(140 * rest)
        found = [line for line in lines(root) if len(line) == 4]
        for line, right in zip(found, expected):
            self.assert_same_text(" ".join(line).replace("-0.000", "0.000"), " ".join(right))
        self.assertEqual(len(found), len(expected))
        for bar, width in zip(bars(root), widths):
            self.assertAlmostEqual(float(bar.get("width")), width, delta=0.001)
        self.assertEqual(len(bars(root)), len(widths))
        self.assertEqual({bar.get("x") for bar in bars(root)}, {"318"})
        self.assert_apart(root)

    def assert_apart(self, root: Any) -> None:
        """Hold that no bar and no line of text lies on another or outside of the page."""
        height = float(root.get("viewBox").split()[3])
        tops = [float(bar.get("y")) for bar in bars(root) if float(bar.get("width"))]
        self.assertTrue(all(a + 17 < b for a, b in zip(tops, tops[1:])))
        for text in root.iter(f"{NAMESPACE}text"):
            x, y = float(text.get("x")), float(text.get("y"))
            self.assertTrue(16 < y < height - 10)
            # A character of this size is 8 wide, 9 where it is bold.
            width = len(text.text or "") * (9 if text.get("class") == "bold" else 8)
            right = x if text.get("class") == "number" else x + width
            self.assertTrue(x >= 20 and right <= 540, text.text)
        heights = [float(text.get("y")) for text in root.iter(f"{NAMESPACE}text")]
        for a, b in zip(sorted(set(heights)), sorted(set(heights))[1:]):
            self.assertGreaterEqual(b - a, 20)

    def test_the_committed_picture_is_what_the_script_draws(self) -> None:
        done = run("--chart", "-", "--output", str(self.output))
        self.assert_same_text(done.stdout.decode(), PICTURE.read_text("ascii"))
        self.assert_results(self.output.read_bytes())
        self.assertIn(b" passed at tolerance 1e-12, wrote ", done.stderr)
        self.assertTrue(done.stderr.rstrip().endswith(b" and to standard output"))

    def test_each_line_of_it(self) -> None:
        root = ElementTree.parse(PICTURE).getroot()
        self.assert_drawn(root, strict_json(COMMITTED), 0, [0, 1, 2])
        self.assertEqual(
            [line[0] for line in lines(root) if len(line) == 1][:6],
            [
                "Attention weights of queries[0]",
                "q = (1, 0)",
                "queries (1, 0), (2, -1); keys (1, 0), (0, 1), (-1, 0)",
                "b_Q (0, 1); b_K (3, -2)",
                "Key bias: every score + 2.121, no weight moved",
                "Query bias: keys[1] + 0.707, the others 0: weights moved",
            ],
        )
        kinds = [bar.get("class") for bar in bars(root)]
        self.assertEqual(kinds, ["of_no_bias"] * 8 + ["of_query_bias"] * 8)
        words = root.findtext(f"{NAMESPACE}desc") or ""
        for heading in texts(root, "bold")[1:]:
            self.assertIn(heading, words)
        title = root.findtext(f"{NAMESPACE}title")
        self.assertEqual(title, "Attention weights of queries[0]")
        scope = " ".join(texts(root, "scope"))
        self.assertEqual(scope, " ".join(verify_attention_bias.SCOPE.split()))

    def test_it_stands_alone(self) -> None:
        text = PICTURE.read_text("ascii")
        for word in "script", "href", "url(", "@import", "@font-face", "<image", "<foreign", "\r":
            self.assertNotIn(word, text)
        self.assertEqual(text.count("http"), 1)
        self.assertIn("prefers-color-scheme: dark", text)

    def test_a_trained_head(self) -> None:
        root, results = self.draw(strict_json(HEAD.read_bytes()))
        self.assert_drawn(root, results, 2, [0, 1, 2, 3, 4, 5])
        top = texts(root, "bold", "head")
        self.assertEqual(top[0], "Attention weights of queries[2]")
        self.assertTrue(top[1].startswith("q = (-0.945, "))
        self.assertEqual(top[2], "queries 6 x 32; keys 6 x 32")
        self.assertTrue(top[3].startswith("b_Q (-0.174, -0.0342, 0.11, ...); b_K (-0.0"))
        self.assertIn("all-MiniLM-L6-v2 (Apache-2.0), layer 0 head 0", " ".join(top))

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
            self.assert_drawn(root, results, 0, shown)

    def test_the_sentences_follow_the_exact_verdict(self) -> None:
        inputs = {"queries": [[1.0]], "keys": [[0.1], [0.3], [0.2]], "mask": [[0.0, 0.0, None]]}
        for key_bias, query_bias, sentences in (
            ([1e9], [0.0], ["every score + 1.00e+09, no weight moved", "every score + 0.000, no"]),
            (
                [-2.5],
                [1.0],
                ["every score - 2.500, no weight moved", "scores + 0.100 to + 0.300: w"],
            ),
            (
                [[1.0], [1.0], [5.0]],
                [[-1.0]],
                ["every score + 1.000, no", "scores - 0.300 to - 0.10"],
            ),
            ([[0.0], [-1.0], [5.0]], [0.0], ["keys[1] - 1.000, the others 0: weights moved", ""]),
            ([[0.25], [0.0], [5.0]], [0.0], ["keys[0] + 0.250, the others 0: weights moved", ""]),
            ([[-1.0], [1.0], [5.0]], [0.0], ["scores - 1.000 to + 1.000: weights moved", ""]),
            (
                None,
                None,
                ["every score + 0.000, no weight moved", "every score + 0.000, no weight m"],
            ),
        ):
            root, _ = self.draw({**inputs, "key_bias": key_bias, "query_bias": query_bias})
            for found, bias, words in zip(texts(root, "bold")[1:], ("Key", "Query"), sentences):
                self.assertTrue(found.startswith(f"{bias} bias: {words}"), found)
            self.assert_apart(root)
        far = {"queries": [[1e6]], "keys": [[0.0], [1.0]], "query_bias": [0.5]}
        root, _ = self.draw(far)
        self.assertEqual(
            texts(root, "bold")[2], "Query bias: keys[1] + 0.500, the others 0: no weight moved"
        )

    def test_a_description_is_escaped(self) -> None:
        inputs = {**strict_json(COMMITTED)["inputs"], "description": '<b> & " \u00e9\u4e2d\x07]]>'}
        root, _ = self.draw(inputs)
        self.assertEqual(texts(root, "head")[3], '<b> & " \u00e9\u4e2d\\x07]]>')
        inputs["description"] = "\u4e2d" * 1000
        root, _ = self.draw(inputs)
        self.assertEqual(texts(root, "head")[3], "\u4e2d" * 29 + "...")
        inputs["description"] = "word " * 1000
        root, _ = self.draw(inputs)
        self.assert_apart(root)


class Written(InAFolder):
    def setUp(self) -> None:
        super().setUp()
        self.chart = self.folder / "chart.svg"

    def test_results_json_is_written_as_well(self) -> None:
        done = run("--chart", "chart.svg", cwd=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual(self.names(), ["chart.svg", "results.json"])
        self.assertIn(b", wrote results.json and chart.svg", done.stdout)
        self.assert_same_text(self.chart.read_text("ascii"), PICTURE.read_text("ascii"))

    def test_with_input_it_may_stand_alone(self) -> None:
        done = run("--input", str(HEAD), "--chart", str(self.chart), cwd=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual(self.names(), ["chart.svg"])

    def test_each_is_whole_or_as_it_was_the_json_first(self) -> None:
        missing = str(self.folder / "missing" / "file")
        for output, chart, written in (
            (missing, str(self.chart), []),
            (str(self.output), missing, ["results.json"]),
            (str(self.folder), str(self.chart), []),
        ):
            done = run("--output", output, "--chart", chart)
            self.assert_error(done, "cannot write ", "; try another file, or - for standard output")
            self.assertEqual(self.names(), written)
            for name in written:
                (self.folder / name).unlink()

    @unittest.skipIf(WINDOWS, "Windows has no RLIMIT_FSIZE")
    def test_a_write_that_fails_half_way(self) -> None:
        self.output.write_text("old")
        self.chart.write_text("old")
        arguments = ["--output", str(self.output), "--chart", str(self.chart)]
        self.assert_error(run(*arguments, preexec_fn=limit_file_size(5000)), "File too large")
        self.assertEqual((self.output.read_text(), self.chart.read_text()), ("old", "old"))
        self.assertEqual(self.names(), ["chart.svg", "results.json"])

    @unittest.skipIf(WINDOWS, "Windows has no /dev/full")
    def test_a_full_device(self) -> None:
        done = run("--output", str(self.output), "--chart", "/dev/full")
        self.assert_error(done, "cannot write '/dev/full'")
        self.assert_results(self.output.read_bytes())

    @unittest.skipIf(WINDOWS, "Windows has no such modes")
    def test_links_and_modes(self) -> None:
        self.chart.write_text("old")
        self.chart.chmod(0o604)
        link = self.folder / "link.svg"
        link.symlink_to("chart.svg")
        run("--output", str(self.output), "--chart", str(link))
        self.assertTrue(link.is_symlink())
        self.assert_same_text(self.chart.read_text("ascii"), PICTURE.read_text("ascii"))
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
                self.assert_usage(done, f"{arguments[-1]!r} is named twice, should be two files\n")
                self.assertEqual(self.names(), ["inputs.json"])


class NotAsked(unittest.TestCase):
    def test_nothing_is_imported_for_it(self) -> None:
        code = (
            "import sys, verify_attention_bias as program\n"
            "try:\n    program.main(['--output', '-'])\nfinally:\n"
            "    print(*sys.modules, file=sys.stderr)"
        )
        command = [sys.executable, "-S", "-c", code]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
        modules = done.stderr.splitlines()[-1].split()
        self.assertIn("argparse", modules)
        for module in "html", "xml", "typing", "dataclasses", "pathlib", "tempfile", "decimal":
            self.assertNotIn(module, modules)
