"""--input: one's own vectors, from a trained head to a document that is no such thing."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import random
import unittest
from typing import Any
from unittest import mock

import verify_attention_bias
from tests import DATA, Exact, exact_scores, exact_softmax, plus, run, strict_json
from tests.test_command_line import COMMITTED, InAFolder

HEAD = DATA / "minilm-layer0-head0.json"
BUILT_IN = strict_json(COMMITTED)["inputs"]
WINDOWS = os.name == "nt"


class Given(Exact, InAFolder):
    """A test that gives vectors to the script."""

    def compute(self, inputs: Any) -> tuple[Any, list[str]]:
        """Return the JSON and the lines of the report for vectors, or for a text as it is."""
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            printed = self.run_main(inputs)
        self.assertEqual(errors.getvalue(), "")
        report = printed.splitlines()
        self.assertLessEqual(len(report), 60)
        self.assertLessEqual(max(map(len, report)), 100)
        return strict_json(self.output.read_bytes()), report

    def run_main(self, inputs: Any) -> str:
        """Run main in this process, which is quicker, and return what it prints."""
        path = self.folder / "inputs.json"
        path.write_bytes(inputs if isinstance(inputs, bytes) else json.dumps(inputs).encode())
        try:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                arguments = ["--input", str(path), "--output", str(self.output)]
                self.assertEqual(verify_attention_bias.main(arguments), 0)
        finally:
            path.unlink()
        return printed.getvalue()

    def assert_follows(self, results: Any, inputs: Any) -> None:
        """Work each score and weight out again from the vectors, at 50 digits."""
        names = ["no_bias", "query_bias", "key_bias", "query_and_key_bias"]
        self.assertEqual(list(results["conditions"]), names)
        for name in names:
            queries, keys = inputs["queries"], inputs["keys"]
            if "query" in name:
                queries = [plus(query, inputs["query_bias"]) for query in queries]
            if "key" in name:
                keys = [plus(key, inputs["key_bias"]) for key in keys]
            rows = [exact_scores(query, keys) for query in queries]
            self.assert_exact(results["conditions"][name]["scores"], rows)
            weights = [exact_softmax(row) for row in rows]
            self.assert_exact(results["conditions"][name]["weights"], weights)


class TrainedHead(Given):
    def test_every_value_agrees_with_the_reference(self) -> None:
        results, _ = self.compute(HEAD.read_bytes())
        expected = strict_json(HEAD.with_suffix(".expected.json").read_bytes())
        self.assertEqual(list(results), ["tolerance", "inputs", "conditions"])
        self.assertEqual(results["inputs"], strict_json(HEAD.read_bytes()))
        self.assertEqual(list(results["conditions"]), list(expected))
        for name, condition in expected.items():
            for field, values in condition.items():
                with self.subTest(condition=name, field=field):
                    self.assert_exact(results["conditions"][name][field], values)
        kept = [c.get("relative_scores_kept") for c in results["conditions"].values()]
        self.assertEqual(kept, [None, False, True, False])

    def test_the_report_says_what_moved_and_where(self) -> None:
        done = run("--input", str(HEAD), cwd=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        report = done.stdout.decode("ascii")
        self.assertIn("\nqueries: 6, keys: 6, d_k: 32\n", report.replace(os.linesep, "\n"))
        self.assertIn("'all-MiniLM-L6-v2 (Apache-2.0), layer 0 head 0, tokens [CLS]", report)
        self.assertRegex(
            report, r"\nkey bias            a common shift     kept     \d\.\d+e-17 at "
        )
        for label in "query bias        ", "query and key bias":
            line = f"\n{label}  a relative change  changed  0.220595 at weights[2][0]"
            self.assertIn(line, report)
        self.assertIn("nothing written", report)
        self.assertEqual(self.names(), [])


class Agreement(Given):
    def test_heads_of_many_sizes_agree_with_50_digits(self) -> None:
        generator = random.Random(16362)
        for n_q, n_k, d_k, spread in (1, 1, 1, 3), (1, 9, 5, 1), (4, 3, 64, 2), (2, 30, 17, 0.1):

            def vector(size: int = d_k, spread: float = spread) -> list[float]:
                return [generator.gauss(0, spread) for _ in range(size)]

            inputs = {
                "queries": [vector() for _ in range(n_q)],
                "keys": [vector() for _ in range(n_k)],
                "query_bias": vector(),
                "key_bias": vector(),
            }
            with self.subTest(n_q=n_q, n_k=n_k, d_k=d_k):
                results, _ = self.compute(inputs)
                self.assert_follows(results, inputs)
                self.assertIs(results["conditions"]["key_bias"]["relative_scores_kept"], True)
                changed = n_k > 1
                kept = results["conditions"]["query_bias"]["relative_scores_kept"]
                self.assertIs(kept, not changed)

    def test_the_built_in_vectors_give_the_built_in_conditions(self) -> None:
        results, report = self.compute(BUILT_IN)
        expected = strict_json(COMMITTED)
        for field in "tolerance", "inputs", "conditions":
            self.assertEqual(results[field], expected[field])
        self.assertEqual(report[1], "queries: 2, keys: 3, d_k: 2")
        built_in = run("--output", "-").stderr.decode().splitlines()
        self.assertEqual(report[3:22], built_in[3:22])

    def test_inputs_given_back_give_the_same_bytes(self) -> None:
        once, again = self.folder / "once.json", self.folder / "again.json"
        for given in (
            HEAD.read_bytes(),
            b'{"keys": [[-0.0], [7]], "query_bias": [12345678901234567890],\
            "queries": [[5e-324]], "key_bias": [1e22], "description": "\\ud800 \\u00e9 \\" NaN"}',
        ):
            run("--input", "-", "--output", str(once), input=given)
            inputs = json.dumps(strict_json(once.read_bytes())["inputs"]).encode()
            done = run("--input", "-", "--output", str(again), input=inputs)
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            self.assertEqual(once.read_bytes(), again.read_bytes())

    def test_a_byte_order_mark_is_accepted(self) -> None:
        path = self.folder / "marked.json"
        path.write_bytes(b"\xef\xbb\xbf" + json.dumps(BUILT_IN).encode())
        done = run("--input", str(path), "--output", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(strict_json(done.stdout)["inputs"], BUILT_IN)


class OddButRight(Given):
    def case(self, queries: Any, keys: Any, query_bias: Any, key_bias: Any) -> Any:
        inputs = {
            "queries": queries,
            "keys": keys,
            "query_bias": query_bias,
            "key_bias": key_bias,
        }
        results, report = self.compute(inputs)
        self.assert_follows(results, inputs)
        for condition in results["conditions"].values():
            for row in condition["weights"]:
                self.assertTrue(math.isclose(math.fsum(row), 1, rel_tol=1e-15))
        return results["conditions"], report

    def test_integers_zeros_and_subnormals(self) -> None:
        self.case([[1, -0.0]], [[5e-324, 2], [0, -1]], [0, 0], [1, 5e-324])

    def test_one_key(self) -> None:
        conditions, report = self.case([[1.0, 2.0]], [[3.0, 4.0]], [5.0, 6.0], [7.0, 8.0])
        for condition in conditions.values():
            self.assertEqual(condition["weights"], [[1.0]])
        self.assertIs(conditions["query_and_key_bias"]["relative_scores_kept"], True)
        self.assertIn("key bias            a common shift     kept     0", report)

    def test_d_k_of_1(self) -> None:
        self.case([[0.5], [-2.0]], [[1.0], [2.0], [3.0]], [0.25], [-1.0])

    def test_scores_a_thousand_apart(self) -> None:
        conditions, _ = self.case([[1000.0]], [[1.0], [0.0], [-1.0]], [1.0], [1.0])
        self.assertEqual(conditions["no_bias"]["weights"], [[1.0, 0.0, 0.0]])

    def test_a_relative_change_that_moves_no_weight(self) -> None:
        _, report = self.case([[2000.0]], [[1.0], [0.0]], [1.0], [0.0])
        self.assertIn("query bias          a relative change  kept     0", report)

    def test_scores_at_the_end_of_the_range(self) -> None:
        # The shift is 2e308, which float64 does not have.
        conditions, _ = self.case([[-1e154]], [[1e154], [1e154]], [2e154], [0.0])
        self.assertIs(conditions["query_bias"]["relative_scores_kept"], True)


class Verdicts(Given):
    def test_rounding_is_told_apart_from_a_change(self) -> None:
        inputs = {
            "queries": [[1.0, 0.0], [0.0, 0.5]],
            "keys": [[0.1, 0.2], [0.3, 0.4], [-0.5, 0.6]],
            "query_bias": [0.0, 0.0],
            "key_bias": [1e9, 1.0],
        }
        results, report = self.compute(inputs)
        key_bias = results["conditions"]["key_bias"]
        self.assertIs(key_bias["relative_scores_kept"], True)
        self.assertGreater(key_bias["max_weight_change"], 1e-12)
        at = next(i for i, line in enumerate(report) if line.startswith("all rows"))
        self.assertTrue(
            report[at + 1].startswith("key bias            a common shift     rounded ")
        )
        self.assertEqual(report[at + 2], "query bias          a common shift     kept     0")
        self.assertEqual(
            report[at + 4 : at + 6],
            [
                "key bias: a common shift moves no weight in exact arithmetic. This is rounding:",
                "float64 has a spacing of 1.2e-07 at the largest score, 7.07107e+08.",
            ],
        )

    def test_kept_means_within_1e_12_of_the_largest_score(self) -> None:
        # Scores 1 and 1 + off become 8 and 8 + 8 off: they move by 7 and by 7 + 7 off.
        for off, kept in ((1.1e-12, True), (1.2e-12, False)):
            inputs = {
                "queries": [[1.0]],
                "keys": [[1.0], [1.0 + off]],
                "query_bias": [7.0],
                "key_bias": [0.0],
            }
            results, _ = self.compute(inputs)
            self.assertIs(results["conditions"]["query_bias"]["relative_scores_kept"], kept)

    def test_one_row_that_changed_is_enough(self) -> None:
        inputs = {
            "queries": [[0.0, 1.0], [1.0, 0.0]],
            "keys": [[1.0, 0.0], [2.0, 0.0]],
            "query_bias": [0.0, 0.0],
            "key_bias": [0.0, 0.0],
        }
        results, _ = self.compute(inputs)
        self.assertIs(results["conditions"]["key_bias"]["relative_scores_kept"], True)
        inputs["query_bias"] = [1e-9, 0.0]
        results, report = self.compute(inputs)
        self.assertIs(results["conditions"]["query_bias"]["relative_scores_kept"], False)
        lines = [line for line in report if line.startswith("query bias          a ")]
        self.assertRegex(
            lines[0], r"a relative change  changed  \d\.\d+e-10 at weights\[0\]\[\d\]$"
        )


class Size(Given):
    def many(self, n_k: int) -> list[str]:
        keys = [[float(j), -1e5 * j] for j in range(n_k)]
        inputs = {
            "queries": [[1e3, 1.0]],
            "keys": keys,
            "query_bias": [1.0, 1e3],
            "key_bias": [1e12, 1.0],
            "description": "x" * 1000,
        }
        return self.compute(inputs)[1]

    def test_the_table_is_there_while_it_fits(self) -> None:
        self.assertTrue(any("keys[7]" in line for line in self.many(8)))
        for n_k in (9, 500):
            report = self.many(n_k)
            self.assertFalse(any("keys[" in line for line in report))
            self.assertTrue(any(line.startswith("key bias ") for line in report))

    def test_the_work_is_in_step_with_the_size(self) -> None:
        for n_q, n_k in ((1, 50), (1, 200), (4, 50)):
            inputs = {
                "queries": [[1.0, 2.0]] * n_q,
                "keys": [[float(j), 1.0] for j in range(n_k)],
                "query_bias": [0.0, 1.0],
                "key_bias": [1.0, 0.0],
            }
            with mock.patch.object(math, "fsum", side_effect=math.fsum) as fsum:
                with mock.patch.object(math, "exp", side_effect=math.exp) as exp:
                    self.run_main(inputs)
            # Each score is one sum, each row of weights one more.
            self.assertEqual(fsum.call_count, 4 * (n_q * n_k + n_q))
            self.assertEqual(exp.call_count, 4 * n_q * n_k)


class Refused(Given):
    def assert_refused(self, given: Any, *words: str) -> None:
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            with self.assertRaises(SystemExit) as caught:
                self.run_main(given)
        error = printed.getvalue()
        self.assertEqual(caught.exception.code, 2)
        self.assertRegex(error, r"\Averify_attention_bias\.py: error: cannot use '.*': .*\n\Z")
        for word in words:
            self.assertIn(word, error)
        self.assertEqual(self.names(), [])

    def test_in_a_process_of_its_own(self) -> None:
        for given, words in ((b"[" * 100000, "nested too deeply"), (b"{", "line 1 column 2")):
            done = run("--input", "-", "--output", str(self.output), input=given)
            self.assert_error(done, "cannot use '-': ", words)
            self.assertEqual(self.names(), [])

    def test_what_is_no_document(self) -> None:
        for given, words in (
            (b"", "Expecting value: line 1 column 1"),
            (b"\xff\xfe", "can't decode byte 0xff in position 0"),
            (b'{"queries": [[1]],\n"keys" [[1]]}', "line 2 column 8"),
            (b'{"queries": [[1, 0], [2', "line 1 column 24"),
            (json.dumps(BUILT_IN).encode() * 2, "Extra data: line 1 column"),
            (b"queries", "Expecting value: line 1 column 1"),
            (b"[" * 100000, "nested too deeply"),
            (b'{"queries": ' * 100000, "nested too deeply"),
        ):
            with self.subTest(given=given[:40]):
                self.assert_refused(given, words, "should be ")

    def test_what_is_no_object(self) -> None:
        for given in ([], [BUILT_IN], 1, "queries", None, True):
            with self.subTest(given=given):
                self.assert_refused(given, "should be one with the fields queries, keys, query_b")

    def test_fields(self) -> None:
        for name in "queries", "keys", "query_bias", "key_bias":
            fewer = {field: value for field, value in BUILT_IN.items() if field != name}
            self.assert_refused(fewer, f"the field {name} is missing")
            twice = json.dumps(BUILT_IN)[:-1] + f', "{name}": [[1, 2]]}}'
            self.assert_refused(twice.encode(), f"the field '{name}' is given twice; ")
        self.assert_refused(
            {**BUILT_IN, "values": []}, "the field 'values' is unknown", "key_bias, description; "
        )
        self.assert_refused({**BUILT_IN, "description": 7}, "description should be a text; ")

    def test_numbers(self) -> None:
        for literal, what in (
            ("NaN", "nan, should be finite"),
            ("Infinity", "inf, should be finite"),
            ("-Infinity", "-inf, should be finite"),
            ("1e999", "inf, should be finite and in the range of float64"),
            ("-1e999", "-inf, should be finite"),
            ("9" * 400, "inf, should be finite"),
            ("9" * 20000, "inf, should be finite"),
            ("true", "true, should be a number"),
            ("null", "null, should be a number"),
            ('"1"', "a text, should be a number"),
            ("{}", "an object, should be a number"),
            ("[1]", "a list, should be a number"),
        ):
            with self.subTest(literal=literal[:40]):
                text = json.dumps(BUILT_IN)
                for field, place in (("keys", "keys[2][1]"), ("key_bias", "key_bias[1]")):
                    value = json.dumps(BUILT_IN[field])
                    start, end = value.rindex(" ") + 1, value.index("]", value.rindex(" "))
                    given = text.replace(value, value[:start] + literal + value[end:])
                    self.assert_refused(given.encode(), f"{place} is {what}")

    def test_shapes(self) -> None:
        for field, value, words in (
            ("queries", [[1, 0], [2]], "queries[1] has length 1, should have 2 as queries[0] has"),
            ("keys", [[1, 0], [2, 1, 3]], "keys[1] has length 3, should have 2"),
            ("query_bias", [1], "query_bias has length 1, should have 2"),
            ("key_bias", [1, 2, 3], "key_bias has length 3, should have 2"),
            ("queries", [], "queries is empty, should have length at least 1; "),
            ("queries", [[]], "queries[0] is empty"),
            ("keys", [], "keys is empty"),
            ("keys", [[1, 0], []], "keys[1] is empty, should have length 2"),
            ("key_bias", [], "key_bias is empty, should have length 2"),
            ("queries", [1, 0], "queries[0] is a number, should be a list of numbers; "),
            ("keys", [1, 0], "keys[0] is a number, should be a list of numbers"),
            ("query_bias", [[0, 1]], "query_bias[0] is a list, should be a number"),
            ("queries", 1, "queries is a number, should be a list of lists"),
            ("queries", "one", "queries is a text, should be a list of lists"),
            ("queries", None, "queries is null, should be a list of lists"),
            ("keys", {"0": [1, 0]}, "keys is an object, should be a list of lists"),
            ("key_bias", False, "key_bias is false, should be a list of numbers"),
        ):
            with self.subTest(field=field, value=value):
                self.assert_refused({**BUILT_IN, field: value}, words)

    def test_what_leaves_the_range_of_float64(self) -> None:
        cases: list[tuple[str, Any, str]] = [
            ("queries", [[1, 0], [1, 1e308]], "queries[1][1] with its bias leaves the range"),
            ("keys", [[1, 0], [-1.7e308, 0]], "keys[1][0] with its bias leaves the range"),
            ("keys", [[1, 1], [1, 1e200]], "queries[1], the score of keys[1] leaves the range"),
        ]
        for field, value, words in cases:
            given = {**BUILT_IN, field: value}
            if field == "keys" and value[1][1]:
                given["queries"] = [[0, 1], [0, 1e200]]
            else:
                given.update(query_bias=[0, 1e308], key_bias=[-1e308, 0])
            with self.subTest(field=field, value=value):
                self.assert_refused(given, words)
        given = {**BUILT_IN, "queries": [[1e200, -1e200]], "keys": [[1e200, 1e200]]}
        self.assert_refused(given, "queries[0], the score of keys[0] leaves the range")

    def test_what_cannot_be_read(self) -> None:
        for path in (self.folder / "missing.json", self.folder):
            done = run("--input", str(path), "--output", str(self.output))
            self.assert_error(done, f"cannot use {str(path)!r}: ")
        self.assert_error(run("--input", "", "--output", str(self.output)), "cannot use ''")
        self.assertEqual(self.names(), [])

    @unittest.skipIf(WINDOWS, "Windows has no preexec_fn")
    def test_standard_input_that_is_closed(self) -> None:
        done = run("--input", "-", preexec_fn=lambda: os.close(0))
        self.assert_error(done, "cannot use '-': ")


class OutputThatIsTheInput(InAFolder):
    def assert_same_refused(self, *arguments: str, **options: Any) -> None:
        before = self.output.read_bytes()
        self.assert_error(run(*arguments, **options), " is named twice, should be two files")
        self.assertEqual(self.output.read_bytes(), before)

    def setUp(self) -> None:
        super().setUp()
        self.output.write_text(json.dumps(BUILT_IN), "utf-8")

    def test_by_its_name(self) -> None:
        name = str(self.output)
        self.assert_same_refused("--input", name, "--output", name)
        self.assert_same_refused("--input", name, "--output", "results.json", cwd=self.folder)

    def test_by_standard_input(self) -> None:
        with self.output.open("rb") as stdin:
            self.assert_same_refused("--input", "-", "--output", str(self.output), stdin=stdin)

    @unittest.skipIf(WINDOWS, "Windows has links for few users only")
    def test_by_a_link(self) -> None:
        for make in (os.symlink, os.link):
            link = self.folder / "link.json"
            make(self.output, link)
            self.assert_same_refused("--input", str(link), "--output", str(self.output))
            self.assert_same_refused("--input", str(self.output), "--output", str(link))
            link.unlink()


@unittest.skipIf(WINDOWS, "Windows has no pty")
class Progress(Given):
    def test_a_terminal_shows_how_far_the_run_is(self) -> None:
        import pty

        inputs = {**BUILT_IN, "queries": [[1.0, 0.0]] * 300}
        path = self.folder / "inputs.json"
        path.write_text(json.dumps(inputs), "utf-8")
        parent, child = pty.openpty()
        try:
            done = run("--input", str(path), "--output", str(self.output), stderr=child)
            os.close(child)
            shown = b""
            with contextlib.suppress(OSError):
                while chunk := os.read(parent, 4096):
                    shown += chunk
        finally:
            os.close(parent)
        self.assertEqual(done.returncode, 0)
        texts = [text.strip() for text in shown.decode().split("\r") if text.strip()]
        self.assertEqual(texts[:2] + texts[-1:], ["reading", "computing, 0%", "writing"])
        self.assertIn("computing, 50%", texts)
        self.assertIn("computing, 99%", texts)
        self.assertFalse(any(text.startswith("computing, 1") and len(text) > 14 for text in texts))
        self.assertLessEqual(len(texts), 122)
        self.assertTrue(shown.endswith(b"\r" + b" " * 16 + b"\r"))

    def test_elsewhere_it_does_not(self) -> None:
        given = json.dumps({**BUILT_IN, "queries": [[1.0, 0.0]] * 300}).encode()
        done = run("--input", "-", "--output", str(self.output), input=given)
        self.assertEqual((done.returncode, done.stderr), (0, b""))


if __name__ == "__main__":
    unittest.main()
