"""--input: one's own vectors, from a trained head to a document that is no such thing."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import unittest
from typing import Any
from unittest import mock

import verify_attention_bias
from tests import DATA, WINDOWS, biased_vectors, exact_scores, exact_weights, run, strict_json
from tests.test_command_line import COMMITTED, InAFolder

HEAD = DATA / "minilm-layer0-head0.json"
BUILT_IN = strict_json(COMMITTED)["inputs"]


class Given(InAFolder):
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
        for name, condition in results["conditions"].items():
            queries, keys = biased_vectors(inputs, name)
            self.assert_exact(condition["scores"], [exact_scores(q, keys) for q in queries])
            self.assert_exact(condition["weights"], exact_weights(inputs, name))


class TrainedHead(Given):
    def test_every_value_agrees_with_the_reference(self) -> None:
        results, _ = self.compute(HEAD.read_bytes())
        expected = strict_json(HEAD.with_suffix(".expected.json").read_bytes())
        self.assertEqual(list(results), ["tolerance", "inputs", "conditions", "formats"])
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
        report = done.stdout.decode("ascii").replace(os.linesep, "\n")
        self.assertIn("\nqueries 6 x 32; keys 6 x 32\nb_Q (-0.174, -0.0342, 0.11, ...)", report)
        self.assertIn(
            "\nall-MiniLM-L6-v2 (Apache-2.0), layer 0 head 0, tokens [CLS] the cat", report
        )
        self.assertIn("\nkey bias             a common shift     0\n", report)
        for label in "query bias        ", "query and key bias":
            line = f"\n{label}   a relative change  0.220595 at weights[2][0]\n"
            self.assertIn(line, report)
        self.assertIn("\nqueries[2] ", report)
        self.assertIn("nothing written", report)
        self.assertIn("\nWith one key bias for all keys this can only confirm the algebra", report)
        self.assertIn("\nNo layer_weights are given: nothing has shown", report)
        self.assertEqual(self.names(), [])


class Agreement(Given):
    def test_the_built_in_vectors_give_the_built_in_conditions(self) -> None:
        results, report = self.compute(BUILT_IN)
        expected = strict_json(COMMITTED)
        for field in "tolerance", "inputs", "conditions", "formats":
            self.assert_same_json(results[field], expected[field])
        built_in = run("--output", "-").stderr.decode().splitlines()
        self.assertEqual(report[:32], built_in[:32])

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
        self.assertIn("key bias             a common shift     0", report)

    def test_d_k_of_1(self) -> None:
        self.case([[0.5], [-2.0]], [[1.0], [2.0], [3.0]], [0.25], [-1.0])

    def test_scores_a_thousand_apart(self) -> None:
        conditions, _ = self.case([[1000.0]], [[1.0], [0.0], [-1.0]], [1.0], [1.0])
        self.assertEqual(conditions["no_bias"]["weights"], [[1.0, 0.0, 0.0]])

    def test_a_relative_change_that_moves_no_weight(self) -> None:
        _, report = self.case([[2000.0]], [[1.0], [0.0]], [1.0], [0.0])
        self.assertIn("query bias           a relative change  0", report)

    def test_scores_at_the_end_of_the_range(self) -> None:
        inputs = {"queries": [[-1e30]], "keys": [[1e30], [1e30]], "query_bias": [-1e30]}
        results, _ = self.compute(inputs)
        self.assertIs(results["conditions"]["query_bias"]["relative_scores_kept"], True)
        self.assert_exact(results["conditions"]["query_bias"]["scores"], [[-2e60, -2e60]])


class Size(Given):
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
            # In each format each score is one sum and each row of weights one more; the exact
            # weights have rows of their own. The table sums the weights that it does not show.
            self.assertEqual(fsum.call_count, 16 * n_q * n_k + 20 * n_q + 5)
            self.assertEqual(exp.call_count, 20 * n_q * n_k)


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
        for given, words in ((b"[" * 100000, "recursion"), (b"{", "line 1 column 2")):
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
        ):
            with self.subTest(given=given[:40]):
                self.assert_refused(given, words, "; should be one JSON object in UTF-8; ")
        for given in (b"[" * 100000, b'{"queries": ' * 100000, b'{"keys": ' + b"[" * 300 + b"1"):
            self.assert_refused(given)

    def test_deep_lists(self) -> None:
        for depth in 3, 100, 900:
            given = json.dumps(BUILT_IN)[:-1].encode() + b', "mask": ' + b"[" * depth + b"1"
            self.assert_refused(given + b"]" * depth + b"}")

    def test_what_is_no_object(self) -> None:
        for given in ([], [BUILT_IN], 1.5, "queries", None, True, {"inputs": [1.5]}):
            with self.subTest(given=given):
                shown = json.dumps(given["inputs"] if isinstance(given, dict) else given)[:40]
                words = "should be an object with the fields description, queries, keys, query_b"
                self.assert_refused(given, f"it is {shown}", words)

    def test_fields(self) -> None:
        for name in "queries", "keys":
            fewer = {field: value for field, value in BUILT_IN.items() if field != name}
            self.assert_refused(fewer, f"{name} is null, should be a list of vectors; ")
        for name in BUILT_IN:
            twice = json.dumps(BUILT_IN)[:-1] + f', "{name}": [[1, 2]]}}'
            self.assert_refused(twice.encode(), f'a field is "{name}", should be given once; ')
        words = 'a field is "values", should be among description, queries, '
        self.assert_refused({**BUILT_IN, "values": []}, words, "layer_weights; ")
        self.assert_refused(
            {**BUILT_IN, "description": 7}, "description is 7.0, should be a text; "
        )

    def test_numbers(self) -> None:
        for literal, shown in (
            ("NaN", "NaN"),
            ("Infinity", "Infinity"),
            ("-Infinity", "-Infinity"),
            ("1e999", "Infinity"),
            ("1.0000001e30", "1.0000001e+30"),
            ("-2e30", "-2e+30"),
            ("9" * 400, "Infinity"),
            ("9" * 20000, "Infinity"),
            ("true", "true"),
            ("null", "null"),
            ('"1"', '"1"'),
            ("{}", "{}"),
            ('"' + "x" * 38 + '"', '"' + "x" * 38 + '"'),
            ('"' + "x" * 39 + '"', '"' + "x" * 39 + "..."),
            ('"' + "x" * 100 + '"', '"' + "x" * 39 + "..."),
        ):
            with self.subTest(literal=literal[:40]):
                text = json.dumps(BUILT_IN)
                for field, place in (("keys", "keys[2][1]"), ("key_bias", "key_bias[1]")):
                    value = json.dumps(BUILT_IN[field])
                    start, end = value.rindex(" ") + 1, value.index("]", value.rindex(" "))
                    given = text.replace(value, value[:start] + literal + value[end:])
                    words = "should be a number of at most 1e+30 in size; "
                    self.assert_refused(given.encode(), f"{place} is {shown}, {words}")

    def test_shapes(self) -> None:
        for field, value, words in (
            (
                "queries",
                [[1, 0], [2]],
                "the shape of queries[1] is [1], should be [2] as that of q",
            ),
            (
                "keys",
                [[1, 0], [2, 1, 3]],
                "the shape of keys[1] is [3], should be [2] as that of k",
            ),
            ("keys", [[1, 0, 0]], "the shape of keys is [1, 3], should be [1, 2]; "),
            ("query_bias", [1], "the shape of query_bias is [1], should be [2] or [2, 2]; "),
            ("key_bias", [1, 2, 3], "the shape of key_bias is [3], should be [2] or [3, 2]; "),
            ("key_bias", [[1, 2]] * 2, "the shape of key_bias is [2, 2], should be [2] or [3, 2]"),
            (
                "key_bias",
                [[1, 2, 3]] * 3,
                "the shape of key_bias is [3, 3], should be [2] or [3, 2]",
            ),
            ("key_bias", [[1, 2], 3, [4, 5]], "the shape of key_bias[1] is [], should be [2] as"),
            ("query_bias", [1, [2, 3]], "the shape of query_bias[1] is [2], should be [] as that"),
            ("query_bias", [[0, 1]], "the shape of query_bias is [1, 2], should be [2] or [2, 2]"),
            ("queries", [], "queries is [], should be a list with something in it; "),
            ("queries", [[]], "queries[0] is [], should be a list with something in it"),
            ("keys", [], "keys is [], should be a list with"),
            ("keys", [[1, 0], []], "keys[1] is [], should be a list with"),
            ("key_bias", [], "key_bias is [], should be a list with"),
            ("queries", [1, 0], "queries is [1.0, 0.0], should be a list of vectors; "),
            ("keys", [[[1, 0]]], "keys is [[[1.0, 0.0]]], should be a list of vectors; "),
            ("queries", 1, "queries is 1.0, should be lists of numbers; "),
            ("queries", "one", 'queries is "one", should be lists of numbers'),
            ("queries", None, "queries is null, should be a list of vectors"),
            ("keys", {"0": [1, 0]}, 'keys is {"0": [1.0, 0.0]}, should be lists of numbers'),
            ("key_bias", False, "key_bias is false, should be lists of numbers"),
            ("mask", [[0, 0, 0]], "the shape of mask is [1, 3], should be [2, 3]; "),
            ("mask", [[0, 0]] * 2, "the shape of mask is [2, 2], should be [2, 3]; "),
            ("mask", [0, 0, 0], "the shape of mask is [3], should be [2, 3]"),
            (
                "mask",
                [[0, 0, 0], None],
                "the shape of mask[1] is [], should be [3] as that of mask[0]",
            ),
            (
                "layer_weights",
                [[0.5, 0.5, 0, 0]] * 2,
                "layer_weights is [2, 4], should be [2, 3]; ",
            ),
            ("layer_weights", [[0.5, 0.5, 0]], "layer_weights is [1, 3], should be [2, 3]"),
            ("layer_weights", [[0.5]] * 3, "layer_weights is [3, 1], should be [2, 1]"),
            ("layer_weights", [[0.5, 0.5, None]] * 2, "layer_weights[0][2] is null, should be a n"),
        ):
            with self.subTest(field=field, value=value):
                self.assert_refused({**BUILT_IN, field: value}, words)

    def test_masks(self) -> None:
        hint = "should be a number of at most 1e+30 in size, or null to close it; "
        for literal, shown in (
            ("NaN", "NaN"),
            ("Infinity", "Infinity"),
            ('"-inf"', '"-inf"'),
            ("true", "true"),
            ("-3.4028234663852886e38", "-3.4028234663852886e+38"),
            ("-3.3895313892515355e38", "-3.3895313892515355e+38"),
        ):
            given = json.dumps({**BUILT_IN, "mask": [[0, 0, 0], [0, None, 7]]})
            given = given.replace("7]", f"{literal}]")
            self.assert_refused(given.encode(), f"mask[1][2] is {shown}, {hint}")
        for closed in [None] * 3, [None, -math.inf, None]:
            words = 'mask[1] is "closed to all keys", should be left out with queries[1], or open'
            self.assert_refused({**BUILT_IN, "mask": [[0, 0, 0], closed]}, words)

    def test_the_largest_numbers_are_taken(self) -> None:
        inputs = {
            "queries": [[1e30] * 3],
            "keys": [[-1e30] * 3, [1e30] * 3],
            "mask": [[-1e30, 1e30]],
        }
        for row in [-1e30, None], [None, 1e30]:
            self.compute({**inputs, "mask": [row]})
        for bias in [1e30] * 3, [-1e30, 5e-324, 1e30]:
            results, _ = self.compute({**inputs, "query_bias": bias, "key_bias": bias})
            self.assertIs(results["conditions"]["key_bias"]["relative_scores_kept"], True)

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
        self.assert_usage(run(*arguments, **options), " is named twice, should be two files")
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

    def test_a_file_named_0_is_not_standard_input(self) -> None:
        given = self.output.read_bytes()
        done = run("--input", "-", "--output", "0", input=given, cwd=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual(self.names(), ["0", "results.json"])

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
        self.assertIn("computing, 98%", texts)
        self.assertFalse(any(text.startswith("computing, 1") and len(text) > 14 for text in texts))
        self.assertLessEqual(len(texts), 122)
        self.assertTrue(shown.endswith(b"\r" + b" " * 16 + b"\r"))

    def test_what_is_shown_is_shown_at_once(self) -> None:
        class Terminal(io.StringIO):
            flushed: list[str] = []

            def isatty(self) -> bool:
                return True

            def flush(self) -> None:
                self.flushed.append(self.getvalue())

        with contextlib.redirect_stderr(Terminal()) as terminal:
            verify_attention_bias.show_progress("half way")
        self.assertEqual(terminal.flushed, ["\rhalf way        \r"])

    def test_elsewhere_it_does_not(self) -> None:
        given = json.dumps({**BUILT_IN, "queries": [[1.0, 0.0]] * 300}).encode()
        done = run("--input", "-", "--output", str(self.output), input=given)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
