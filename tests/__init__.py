"""The tests, and what they share: arithmetic of their own, and runs of the real script.

python3 -m unittest runs them all, and so does python3 -m unittest tests.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import TestCase, TestLoader, TestSuite

PROJECT = Path(__file__).resolve().parent.parent
SCRIPT = PROJECT / "verify_attention_bias.py"
DATA = PROJECT / "tests" / "data"
WINDOWS = os.name == "nt"

CONDITIONS = ["no_bias", "query_bias", "key_bias", "query_and_key_bias"]
# significant bits, exponent of the least step, largest number
FORMATS = {
    "float64": (53, -1074, Fraction(sys.float_info.max)),
    "float32": (24, -149, Fraction(2**24 - 1) * 2**104),
    "bfloat16": (8, -133, Fraction(2**8 - 1) * 2**120),
    "float16": (11, -24, Fraction(65504)),
}
DIGITS = 50


def load_tests(loader: TestLoader, tests: TestSuite, pattern: str | None) -> TestSuite:
    """Let the package stand for all that is in it."""
    folder = str(Path(__file__).parent)
    return loader.discover(folder, pattern=pattern or "test*.py", top_level_dir=str(PROJECT))


def exact_dots(query: Sequence[Any], keys: Sequence[Sequence[Any]]) -> list[Fraction]:
    """Return q . k for each key, as fractions."""
    return [
        sum((Fraction(a) * Fraction(b) for a, b in zip(query, key)), Fraction()) for key in keys
    ]


def decimal(number: Any) -> Decimal:
    """Return a number at the precision of the context."""
    fraction = Fraction(number)
    return Decimal(fraction.numerator) / Decimal(fraction.denominator)


def exact_scores(query: Sequence[Any], keys: Sequence[Sequence[Any]]) -> list[Decimal]:
    """Return q . k / sqrt(d_k), the dot product exact and the rest at 50 digits."""
    with localcontext() as context:
        context.prec = DIGITS
        root = Decimal(len(query)).sqrt()
        return [decimal(dot) / root for dot in exact_dots(query, keys)]


def exact_softmax(row: Sequence[Decimal], mask: Sequence[Any] | None = None) -> list[Decimal]:
    """Return exp(s + m) / sum exp(s + m) at 50 digits, with nothing subtracted."""
    with localcontext() as context:
        context.prec, context.Emax, context.Emin = DIGITS, MAX_EMAX, MIN_EMIN
        terms = mask or [0] * len(row)
        powers = [
            Decimal(0) if term is None else (score + decimal(term)).exp()
            for score, term in zip(row, terms)
        ]
        total = sum(powers)
        return [power / total for power in powers]


def bias_rows(bias: Any, count: int, d_k: int) -> list[list[Any]]:
    """Return a bias as one row for each vector."""
    if bias is None:
        return [[0] * d_k] * count
    return bias if isinstance(bias[0], list) else [bias] * count


def biased_vectors(inputs: Any, name: str) -> tuple[list[Any], list[Any]]:
    """Return the queries and the keys of a condition, exact, as fractions."""
    result = []
    for vectors, bias in ("queries", "query_bias"), ("keys", "key_bias"):
        rows = [[Fraction(value) for value in row] for row in inputs[vectors]]
        if (vectors == "queries" and "query" in name) or (vectors == "keys" and "key" in name):
            added = bias_rows(inputs.get(bias), len(rows), len(rows[0]))
            rows = [[a + Fraction(b) for a, b in zip(*pair)] for pair in zip(rows, added)]
        result.append(rows)
    return result[0], result[1]


def exact_weights(inputs: Any, name: str) -> list[list[Decimal]]:
    """Return all weights of a condition, at 50 digits."""
    queries, keys = biased_vectors(inputs, name)
    masks = inputs.get("mask") or [None] * len(queries)
    return [exact_softmax(exact_scores(q, keys), mask) for q, mask in zip(queries, masks)]


def kept_exactly(inputs: Any, name: str) -> bool:
    """Tell whether each row's open scores moved by one amount."""
    before, after = biased_vectors(inputs, "no_bias"), biased_vectors(inputs, name)
    masks = inputs.get("mask") or [[0] * len(before[1])] * len(before[0])
    for i, mask in enumerate(masks):
        pairs = zip(exact_dots(before[0][i], before[1]), exact_dots(after[0][i], after[1]), mask)
        if len({b - a for a, b, term in pairs if term is not None}) > 1:
            return False
    return True


def nearest(number: Fraction, form: str) -> Fraction | None:
    """Return the number of a format that is nearest, of two the even one; None past its range."""
    bits, least, largest = FORMATS[form]
    if number == 0:
        return number
    size = abs(number)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** max(exponent - bits + 1, least)
    result = round(number / step) * step
    return result if abs(result) <= largest else None


def format_error(inputs: Any, name: str, form: str) -> float | None:
    """Return how far a format has the weights of a condition from the exact ones."""
    vectors = []
    for rows, exact in zip(biased_vectors(inputs, name), biased_vectors(inputs, "no_bias")):
        # A biased vector is what float64 has of the sum.
        sums = rows if rows == exact else [[Fraction(float(v)) for v in row] for row in rows]
        vectors.append([[nearest(value, form) for value in row] for row in sums])
    if any(value is None for rows in vectors for row in rows for value in row):
        return None
    masks = inputs.get("mask") or [None] * len(vectors[0])
    largest = 0.0
    for query, mask, right in zip(vectors[0], masks, exact_weights(inputs, name)):
        root = math.sqrt(len(query))
        scores = [
            nearest(Fraction(float(dot) / root), form) for dot in exact_dots(query, vectors[1])
        ]
        if None in scores:
            return None
        with localcontext() as context:
            context.prec = DIGITS
            weights = exact_softmax([decimal(score) for score in scores], mask)
        largest = max(largest, *[float(abs(a - b)) for a, b in zip(weights, right)])
    return largest


def close(actual: Any, expected: Any, tolerance: float = 1e-12) -> bool:
    """Tell whether a float is the expected number, relatively or absolutely."""
    if not isinstance(actual, float) or not math.isfinite(actual):
        return False
    error = abs(Fraction(actual) - Fraction(expected))
    return error <= Fraction(tolerance) * max(Fraction(1), abs(Fraction(expected)))


class Exact(TestCase):
    """A test case that compares floats with exact numbers, and texts but for last digits."""

    def assert_exact(self, actual: Any, expected: Any) -> None:
        """Compare a float with a number, or equally long lists of them."""
        if isinstance(expected, list):
            self.assertIsInstance(actual, list)
            self.assertEqual(len(actual), len(expected))
            for pair in zip(actual, expected):
                self.assert_exact(*pair)
        elif expected is None or isinstance(expected, bool):
            self.assertIs(actual, expected)
        else:
            off = f"{actual!r} is not {expected}"
            if isinstance(actual, float):
                off += f", off by {float(abs(Fraction(actual) - Fraction(expected))):.1e}"
            self.assertTrue(close(actual, expected), off)

    def assert_same_json(self, actual: Any, expected: Any, where: str = "") -> None:
        """Compare two documents, their floats at 1e-12: exp may round a last digit otherwise."""
        self.assertIs(type(actual), type(expected), where)
        if isinstance(expected, dict):
            self.assertEqual(list(actual), list(expected), where)
            for name in expected:
                self.assert_same_json(actual[name], expected[name], f"{where}.{name}")
        elif isinstance(expected, list):
            self.assertEqual(len(actual), len(expected), where)
            for i, pair in enumerate(zip(actual, expected)):
                self.assert_same_json(*pair, f"{where}[{i}]")
        elif isinstance(expected, float):
            self.assertTrue(close(actual, expected), f"{where} is {actual!r}, not {expected!r}")
        else:
            self.assertEqual(actual, expected, where)

    def assert_same_text(self, actual: str, expected: str) -> None:
        """Compare two texts, the numbers in them at 1e-12."""
        number = r"(-?\d+(?:\.\d+)?(?:e[-+]\d+)?)"
        texts = [re.split(number, re.sub(r" +", " ", text)) for text in (actual, expected)]
        for a, b in zip(*texts):
            numbers = re.fullmatch(number, a) and re.fullmatch(number, b)
            if a != b and not (numbers and close(float(a), float(b))):
                self.assertEqual(actual, expected)
        self.assertEqual(len(texts[0]), len(texts[1]), f"{actual}\n{expected}")


def strict_json(text: str | bytes) -> Any:
    """Parse RFC 8259 JSON: no NaN, no infinity, no name twice in an object."""

    def constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError(f"a name stands twice in {[name for name, _ in pairs]}")
        return dict(pairs)

    return json.loads(text, parse_constant=constant, object_pairs_hook=no_twins)


def run(*arguments: str, python: Sequence[str] = (), **options: Any) -> Any:
    """Run the real script in a process of its own and return the completed process."""
    command = [sys.executable, *python, str(SCRIPT), *arguments]
    environment = {name: value for name, value in os.environ.items() if name[:6] != "PYTHON"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options = {"env": environment, **pipes, **options}
    return subprocess.run(command, timeout=60, check=False, **options)
