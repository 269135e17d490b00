"""What the README and the docstrings show is what a run gives."""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import math
import os
import re
import unittest
from typing import Any

import verify_attention_bias
from tests import CONDITIONS, DATA, FORMATS, PROJECT, SCRIPT, Exact, strict_json
from verify_attention_bias import KEY_BIAS, KEYS, QUERIES, QUERY_BIAS

README = (PROJECT / "README.md").read_text("utf-8")
RESULTS = strict_json((PROJECT / "results.json").read_bytes())


def blocks(language: str) -> list[str]:
    """Return the code blocks of the README in that language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def report(*arguments: str) -> str:
    """Return the report of a run."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        verify_attention_bias.main(list(arguments))
    return printed.getvalue()


def norm(vector: list[float]) -> float:
    return math.sqrt(math.fsum(value * value for value in vector))


def load_tests(loader: Any, tests: unittest.TestSuite, pattern: Any) -> unittest.TestSuite:
    """Add the examples of the docstrings and of the README."""
    there = os.getcwd()
    tests.addTests(doctest.DocTestSuite(verify_attention_bias))
    tests.addTests(
        doctest.DocFileSuite(
            str(PROJECT / "README.md"),
            module_relative=False,
            encoding="utf-8",
            setUp=lambda _: os.chdir(PROJECT),
            tearDown=lambda _: os.chdir(there),
        )
    )
    return tests


class Shown(Exact):
    def test_the_sample_reports_are_the_real_ones(self) -> None:
        built_in, head, formats = blocks("text")
        text = report("--output", os.devnull).replace(f"wrote {os.devnull}", "wrote results.json")
        self.assert_same_text(built_in, text)
        text = report("--input", str(DATA / "minilm-layer0-head0.json"))
        self.assert_same_text(head, text[text.index("in exact") :].split("\n\n")[0] + "\n")
        text = report("--input", str(DATA / "cases" / "large-key-bias.json"))
        lines = text[text.index("rounding moves") :].splitlines()[:5]
        self.assert_same_text(formats, "\n".join(lines) + "\n")

    def test_the_commands_are_those_of_the_build(self) -> None:
        commands = blocks("sh")[0].splitlines()
        self.assertEqual(len(commands), 2)
        for path in ".ci/run", ".github/workflows/tests.yml":
            lines = [line.strip(" -") for line in (PROJECT / path).read_text().splitlines()]
            for command in commands:
                self.assertTrue(any(line.endswith(command) for line in lines), (path, command))

    def test_the_other_commands_name_what_there_is(self) -> None:
        test, head = (block.split() for block in blocks("sh")[1:])
        self.assertTrue((PROJECT / head[-1]).exists())
        found = unittest.defaultTestLoader.loadTestsFromName(test[-1])
        self.assertEqual(found.countTestCases(), 1)

    def test_the_python_is_python(self) -> None:
        for block in blocks("python"):
            if ">>>" not in block:
                ast.parse(block)

    def test_links_within_the_project_lead_somewhere(self) -> None:
        for target in re.findall(r"\]\(([^)#:]+)\)", README):
            self.assertTrue((PROJECT / target).exists(), target)

    def test_public_functions_have_an_example(self) -> None:
        for name in "scores", "softmax", "main":
            self.assertIn(">>> ", getattr(verify_attention_bias, name).__doc__)

    def test_every_function_says_what_it_does(self) -> None:
        for node in ast.walk(ast.parse(SCRIPT.read_text("utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                self.assertTrue(ast.get_docstring(node), node.name)

    def test_the_readme_names_every_check_and_every_field(self) -> None:
        names = {check["name"] for check in RESULTS["checks"]} | {*RESULTS, *RESULTS["tolerance"]}
        names |= {*RESULTS["conditions"]["key_bias"], *RESULTS["checks"][0], *RESULTS["exceptions"]}
        names |= {*CONDITIONS, *FORMATS, *verify_attention_bias.FIELDS, "layer_weights_error"}
        for name in names:
            self.assertIn(f"`{name}`", README)
        for word in "in_proj_weight", "qkv":
            self.assertIn(f"`{word}`", README)


class NumbersInProse(unittest.TestCase):
    """Each number that the README states, worked out again."""

    def assert_said(self, *sentences: str) -> None:
        text = " ".join(README.split())
        for sentence in sentences:
            self.assertIn(sentence, text)

    def test_the_worked_lines(self) -> None:
        for name, query, bias in (
            ("q = (1, 0)", [1, 0], [0, 0]),
            ("the same with keys k + b_K = (4, -2), (3, -1), (2, -2)", [1, 0], KEY_BIAS),
            ("q + b_Q = (1, 1)", [1, 1], [0, 0]),
        ):
            keys = [[a + bias[0], b + bias[1]] for a, b in KEYS]
            scores = [(query[0] * a + query[1] * b) / math.sqrt(2) for a, b in keys]
            powers = [math.exp(score) for score in scores]
            shown = ", ".join(f"{score:.4f}" for score in scores).replace("0.0000", "0")
            exponentials = ", ".join(f"{power:.3f}" for power in powers).replace("1.000", "1")
            weights = ", ".join(f"{power / math.fsum(powers):.3f}" for power in powers)
            row = f"| {name} | {shown} | {exponentials}; {math.fsum(powers):.3f} | {weights} |"
            self.assert_said(row)
        self.assertEqual([QUERIES[0], QUERY_BIAS, KEY_BIAS], [[1, 0], [0, 1], [3, -2]])
        vectors = "q = (1, 0), the keys are (1, 0), (0, 1) and (-1, 0), $`b_Q`$ is (0, 1), $`b_K`$ "
        self.assert_said(vectors + "(3, -2), and ")
        self.assert_said(f"(1, 1) · (3, -2)/√2 = {1 / math.sqrt(2):.3f} to every score")

    def test_the_tolerance_lies_between(self) -> None:
        rounding = max(check["max_error"] for check in RESULTS["checks"])
        conditions = RESULTS["conditions"]
        before = conditions["no_bias"]["weights"]
        changes = []
        for name in "query_bias", "query_and_key_bias":
            for rows in zip(conditions[name]["weights"], before):
                changes += [abs(a - b) for a, b in zip(*rows)]
        self.assert_said(f"the rounding here, at most {rounding:.0e},")
        self.assert_said(f"the smallest change of a weight by $`b_Q`$, {min(changes):.4f}.")
        self.assertLess(rounding, 1e-12)
        self.assertGreater(min(changes), 1e-12)
        self.assert_said(f"{rounding:.0e} is a last digit")
        self.assertLessEqual(rounding, 4 * math.ulp(math.exp(2 * math.sqrt(2))))

    def test_the_picture_s_words(self) -> None:
        shift = sum(a * b for a, b in zip(QUERIES[0], KEY_BIAS)) / math.sqrt(2)
        self.assert_said(f"raises every score by {shift:.3f} and moves no weight")
        self.assert_said(f"raises one score by {1 / math.sqrt(2):.3f} and moves the weights")

    def test_the_trained_head(self) -> None:
        head = strict_json((DATA / "minilm-layer0-head0.json").read_bytes())
        key_bias, query_bias = norm(head["key_bias"]), norm(head["query_bias"])
        self.assert_said(f"it has norm {key_bias:.4f}, $`b_Q`$ {query_bias:.2f}.")

    def test_the_large_key_bias(self) -> None:
        case = strict_json((DATA / "cases" / "large-key-bias.json").read_bytes())
        self.assert_said(f"b_K of norm {norm(case['inputs']['key_bias']):.0f}")
        errors = case["expected"]["formats"]["bfloat16"]
        both, alone = errors["query_and_key_bias"], errors["query_bias"]
        self.assert_said(f"brings bfloat16 from {both:.2g} to {alone:.2g} of the exact weights")
        self.assert_said(f"keeps {FORMATS['bfloat16'][0]} bits of each biased key")

    def test_the_bounds(self) -> None:
        self.assert_said(f"more than {verify_attention_bias.LAYER_TOLERANCE} off")
        self.assert_said(f"agree to {verify_attention_bias.TOLERANCE:g}, relatively or absolutely")
        self.assert_said("-65504 or -1e4 in a mask", "the lowest float32 closes it")
        self.assertGreater(-65504, -verify_attention_bias.LARGEST)
