"""The tests, and what they share: exact arithmetic and runs of the real script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
SCRIPT = PROJECT / "verify_attention_bias.py"
DATA = PROJECT / "tests" / "data"

DIGITS = 50


def exact_scores(query: Sequence[float], keys: Sequence[Sequence[float]]) -> list[Decimal]:
    """Return q . k / sqrt(d_k), the dot product exact and the rest at 50 digits."""
    with localcontext() as context:
        context.prec = DIGITS
        root = Decimal(len(query)).sqrt()
        dots = [sum(Fraction(a) * Fraction(b) for a, b in zip(query, key)) for key in keys]
        return [Decimal(dot.numerator) / Decimal(dot.denominator) / root for dot in dots]


def exact_softmax(row: Sequence[Decimal]) -> list[Decimal]:
    """Return the softmax of a row at 50 digits, the row shifted into the range of exp."""
    with localcontext() as context:
        context.prec = DIGITS
        powers = [(score - max(row)).exp() for score in row]
        return [power / sum(powers) for power in powers]


def plus(a: list[float], b: list[float]) -> list[float]:
    """Return a + b, as a bias is added to a vector."""
    return [x + y for x, y in zip(a, b)]


def close(actual: float, expected: Any, tolerance: float = 1e-12) -> bool:
    """Tell whether a float is the expected number, relatively or absolutely."""
    error = abs(Fraction(actual) - Fraction(expected))
    return error <= Fraction(tolerance) * max(Fraction(1), abs(Fraction(expected)))


class Exact:
    """What a test case has that compares floats with exact numbers."""

    def assert_exact(self: Any, actual: Any, expected: Any) -> None:
        """Compare a float with a number, or equally long lists of them."""
        if isinstance(expected, list):
            self.assertEqual(len(actual), len(expected))
            for pair in zip(actual, expected):
                self.assert_exact(*pair)
        else:
            self.assertTrue(close(actual, expected), f"{actual!r} is not {expected}")


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
