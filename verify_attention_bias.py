#!/usr/bin/env python3
r"""Why attention may leave out the key bias, and not the query bias: shown by arithmetic.

The claim, term by term. A query q scores the key k_j by the dot product of the two. With a
bias on each, that is

    (q + b_Q) . (k_j + b_K)  =  q.k_j + b_Q.k_j + q.b_K + b_Q.b_K

The two terms with b_K are the same for all keys j. They add a common shift to the scores of
the row, and softmax cancels a common shift: exp(s + c) / sum exp(s + c) = exp(s) / sum exp(s).
So b_K moves no weight. The term b_Q.k_j differs from key to key, so b_Q can move the weights.

The words:

    query, queries   q_i   (d_k,), (n_q, d_k)   before the bias
    key, keys        k_j   (d_k,), (n_k, d_k)   before the bias
    query_bias       b_Q   (d_k,)               what a Linear layer adds to each query
    key_bias         b_K   (d_k,)               what a Linear layer adds to each key
    scores           s_ij  (n_q, n_k)           q_i . k_j / sqrt(d_k), before softmax
    weights          p_ij  (n_q, n_k)           softmax of row i of the scores

The scope: one head, q and k of the same size, the same b_K on every key, softmax over a row.
It is a property of this formula, and no advice to take a bias out of a model. Nothing is said
of RoPE, QK-norm, position terms in the scores, dropout, quantization, GPU kernels or training.
"""

from __future__ import annotations

import argparse
import errno
import json
import math
import os
import stat
import sys
from operator import add, mul, sub

TYPE_CHECKING = False  # typing is slow to import, and only a type checker needs it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn, TextIO

    Vector = Sequence[float]
    Matrix = Sequence[Vector]
    Matrices = dict[str, list[list[float]]]
    Cases = dict[str, dict[str, Any]]

__version__ = "1.0.0"

TOLERANCE = 1e-12  # relative and absolute, in every comparison

QUERIES = [[1.0, 0.0], [2.0, -1.0]]
KEYS = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]
QUERY_BIAS = [0.0, 1.0]
KEY_BIAS = [3.0, -2.0]


# The arithmetic


def dot(a: Vector, b: Vector) -> float:
    """Return a . b, its products summed by math.fsum: the same last digit in every Python."""
    return math.fsum(map(mul, a, b))


def plus(a: Vector, b: Vector) -> list[float]:
    """Return a + b, as a Linear layer adds its bias to a vector."""
    return list(map(add, a, b))


def minus(a: Vector, b: Vector) -> list[float]:
    """Return a - b, value by value."""
    return list(map(sub, a, b))


def scores(query: Vector, keys: Matrix) -> list[float]:
    """Return q . k_j / sqrt(d_k) for each key: one row of scores.

    query has shape (d_k,), keys (n_k, d_k), the result (n_k,). A ValueError is raised where a
    key is not of the query's size. The formula is "Attention Is All You Need" (Vaswani et al.
    2017), section 3.2.1, equation 1, before softmax.

    >>> scores([1, 0], [[1, 0], [0, 1], [-1, 0]])
    [0.7071067811865475, 0.0, -0.7071067811865475]
    """
    root = math.sqrt(len(query))
    for j, key in enumerate(keys):
        if len(key) != len(query):
            raise ValueError(f"keys[{j}] has {len(key)} values, the query has {len(query)}")
    return [dot(query, key) / root for key in keys]


def softmax(row: Vector) -> list[float]:
    """Return exp(s_j) / sum exp(s) for each score of a row: weights that sum to 1.

    row and the result have shape (n_k,). The largest score is subtracted first, so that exp
    cannot overflow ("Deep Learning", Goodfellow et al. 2016, section 4.1). A ValueError is
    raised where the row is empty or its weights are undefined (a NaN, an infinite largest).

    >>> softmax([0, 0])
    [0.5, 0.5]
    >>> softmax([1001, 1002]) == softmax([1, 2])
    True
    """
    if not row:
        raise ValueError("a row of scores needs at least one score")
    peak = max(row)
    powers = [math.exp(score - peak) for score in row]
    total = math.fsum(powers)
    if math.isnan(total):
        raise ValueError("scores must be numbers, the largest of them finite")
    return [power / total for power in powers]


# The four conditions


def attend(queries: Matrix, keys: Matrix) -> dict[str, Any]:
    """Return the scores and the weights, (n_q, n_k) each, of queries and keys as they are."""
    rows = [scores(query, keys) for query in queries]
    return {"scores": rows, "weights": [softmax(row) for row in rows]}


def compare(queries: Matrix, keys: Matrix, query_bias: Vector, key_bias: Vector) -> dict[str, Any]:
    """Return the four conditions, those with a bias measured against the one without."""
    biased_queries = [plus(query, query_bias) for query in queries]
    biased_keys = [plus(key, key_bias) for key in keys]
    conditions = {
        "no_bias": attend(queries, keys),
        "query_bias": attend(biased_queries, keys),
        "key_bias": attend(queries, biased_keys),
        "query_and_key_bias": attend(biased_queries, biased_keys),
    }
    before, *biased = conditions.values()
    for after in biased:
        changes = map(minus, after["weights"], before["weights"])
        after["max_weight_change"] = max(max(map(abs, row)) for row in changes)
        after["relative_scores_kept"] = all(map(moved_together, before["scores"], after["scores"]))
    return conditions


def moved_together(before: Vector, after: Vector) -> bool:
    """Tell whether a row of scores moved by one common shift, up to rounding."""
    shifts = minus(after, before)
    largest = max(map(abs, [*before, *after]))
    return max(shifts) - min(shifts) <= TOLERANCE * largest


def special_case(keys: Matrix, query_bias: Vector, key_biases: Matrix) -> dict[str, Any]:
    """Return the first query with this bias on keys that each have a bias of their own."""
    queries = QUERIES[:1]
    biased_queries = [plus(query, query_bias) for query in queries]
    return {
        "queries": queries,
        "keys": keys,
        "query_bias": query_bias,
        "key_biases": key_biases,
        **attend(biased_queries, list(map(plus, keys, key_biases))),
    }


# The eight checks. s[name] and p[name] are the scores and the weights of a condition or special
# case; what they should be is worked out from the vectors above without scores and softmax.

ROOT = math.sqrt(2)  # sqrt(d_k)
PAIRS = (0, 1), (0, 2), (1, 2)


def closed_form(*numerators: float) -> list[float]:
    """Return the weights for the scores numerator / sqrt(2), as softmax is defined."""
    powers = [math.exp(numerator / ROOT) for numerator in numerators]
    return [power / math.fsum(powers) for power in powers]


class Check:
    """The verdict on one claim; its fields are those of results.json."""

    def __init__(self, name: str, claim: str) -> None:
        self.name = name
        self.claim = claim
        self.passed = True
        self.max_error = 0.0
        self.failures: list[str] = []

    def fail(self, what: str) -> None:
        """Record a value that is off."""
        self.passed = False
        self.failures.append(what)

    def equal(self, where: str, actual: Any, expected: Any) -> None:
        """Hold two numbers equal at TOLERANCE, or two lists of them, item by item."""
        if isinstance(expected, list):
            if len(actual) != len(expected):
                self.fail(f"{where} has {len(actual)} values, should have {len(expected)}")
            for index, pair in enumerate(zip(actual, expected)):
                self.equal(f"{where}[{index}]", *pair)
            return
        error = abs(actual - expected)
        self.max_error = max(self.max_error, math.inf if math.isnan(error) else error)
        if not math.isclose(actual, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            self.fail(f"{where} is {actual!r}, should be {expected!r}")

    def moved(self, where: str, after: Vector, before: Vector) -> None:
        """Hold that a row changed, in one value at least."""
        change = max(map(abs, minus(after, before)))
        if not change > TOLERANCE:
            self.fail(f"{where} moved by {change!r}, should move by more than {TOLERANCE!r}")


def base_scores_and_weights(check: Check, s: Matrices, p: Matrices) -> None:
    """Without bias the first row is that of the formula; each row of weights sums to 1."""
    check.equal("no_bias.scores[0]", s["no_bias"][0], [1 / ROOT, 0.0, -1 / ROOT])
    check.equal("no_bias.weights[0]", p["no_bias"][0], closed_form(1, 0, -1))
    for name, weights in p.items():
        for i, row in enumerate(weights):
            check.equal(f"the sum of {name}.weights[{i}]", math.fsum(row), 1.0)


def key_bias_shifts_scores_equally(check: Check, s: Matrices, p: Matrices) -> None:
    """b_K adds q.b_K / sqrt(d_k) to each score of the first row: every difference stays."""
    before, after = s["no_bias"][0], s["key_bias"][0]
    check.equal("(key_bias - no_bias).scores[0]", minus(after, before), [3 / ROOT] * 3)
    for a, b in PAIRS:
        where = f"key_bias.scores[0][{a}] - [{b}]"
        check.equal(where, after[a] - after[b], before[a] - before[b])


def key_bias_keeps_weights(check: Check, s: Matrices, p: Matrices) -> None:
    """The weights of the first row with b_K are those without."""
    check.equal("key_bias.weights[0]", p["key_bias"][0], p["no_bias"][0])


def query_bias_changes_relative_scores(check: Check, s: Matrices, p: Matrices) -> None:
    """b_Q adds b_Q.k_j / sqrt(d_k), so the difference of two keys' scores changes.

    By b_Q.(k_a - k_b) / sqrt(d_k) it does, and as p_a / p_b = exp(s_a - s_b) the weights move.
    """
    for i, (before, after) in enumerate(zip(s["no_bias"], s["query_bias"])):
        added = minus(after, before)
        check.equal(f"(query_bias - no_bias).scores[{i}]", added, [0.0, 1 / ROOT, 0.0])
        weights = p["query_bias"][i]
        for (a, b), change in zip(PAIRS, (-1, 0, 1)):
            where, difference = f"query_bias.scores[{i}][{a}] - [{b}]", after[a] - after[b]
            check.equal(where, difference, before[a] - before[b] + change / ROOT)
            where = f"query_bias.weights[{i}][{a}] / [{b}]"
            ratio = weights[a] / weights[b] if weights[b] else math.nan
            check.equal(where, ratio, math.exp(difference))
        check.moved(f"query_bias.weights[{i}]", weights, p["no_bias"][i])


def both_biases_match_query_bias(check: Check, s: Matrices, p: Matrices) -> None:
    """With both biases a score is the sum of the four terms; the weights are those of b_Q."""
    bias_dot_key, bias_dot_bias = (0, 1, 0), -2
    for i, (query_dot_key, query_dot_bias) in enumerate([((1, 0, -1), 3), ((2, -1, -2), 8)]):
        expected = [
            (qk + bk + query_dot_bias + bias_dot_bias) / ROOT
            for qk, bk in zip(query_dot_key, bias_dot_key)
        ]
        check.equal(f"query_and_key_bias.scores[{i}]", s["query_and_key_bias"][i], expected)
    check.equal("query_and_key_bias.weights", p["query_and_key_bias"], p["query_bias"])


def other_query_row(check: Check, s: Matrices, p: Matrices) -> None:
    """Another query's row is shifted by another amount, and its weights stay all the same."""
    added = minus(s["key_bias"][1], s["no_bias"][1])
    check.equal("no_bias.scores[1]", s["no_bias"][1], [2 / ROOT, -1 / ROOT, -2 / ROOT])
    check.equal("(key_bias - no_bias).scores[1]", added, [8 / ROOT] * 3)
    check.moved("from row 0 to row 1 the shift", added, minus(s["key_bias"][0], s["no_bias"][0]))
    check.equal("no_bias.weights[1]", p["no_bias"][1], closed_form(2, -1, -2))
    check.equal("key_bias.weights[1]", p["key_bias"][1], p["no_bias"][1])


def ineffective_query_bias(check: Check, s: Matrices, p: Matrices) -> None:
    """A b_Q moves no weight where it is zero, or where b_Q.k_j is the same for all keys."""
    base = [1 / ROOT, 0.0, -1 / ROOT]
    check.equal("zero_query_bias.scores[0]", s["zero_query_bias"][0], base)
    check.equal("level_keys.scores[0]", s["level_keys"][0], base)
    added = minus(s["level_keys_query_bias"][0], s["level_keys"][0])
    check.equal("(level_keys_query_bias - level_keys).scores[0]", added, [1 / ROOT] * 3)
    for name in "zero_query_bias", "level_keys", "level_keys_query_bias":
        check.equal(f"{name}.weights[0]", p[name][0], closed_form(1, 0, -1))


def per_key_bias_changes_weights(check: Check, s: Matrices, p: Matrices) -> None:
    """b_K on the second key alone is no common shift: the weights move."""
    check.equal("per_key_bias.scores[0]", s["per_key_bias"][0], [1 / ROOT, 3 / ROOT, -1 / ROOT])
    check.equal("per_key_bias.weights[0]", p["per_key_bias"][0], closed_form(1, 3, -1))
    check.moved("per_key_bias.weights[0]", p["per_key_bias"][0], p["no_bias"][0])


CHECKS = {
    base_scores_and_weights: "scores, weights as worked by hand",
    key_bias_shifts_scores_equally: "b_K adds the same to every score",
    key_bias_keeps_weights: "b_K moves no weight",
    query_bias_changes_relative_scores: "b_Q adds b_Q.k_j and moves weights",
    both_biases_match_query_bias: "b_K beside b_Q moves no weight",
    other_query_row: "another q: new shift, same weights",
    ineffective_query_bias: "an equal b_Q.k_j moves no weight",
    per_key_bias_changes_weights: "b_K on one key alone moves weights",
}


def verify() -> dict[str, Any]:
    """Compute the built-in vectors, run the checks on them; return what results.json holds."""
    conditions = compare(QUERIES, KEYS, QUERY_BIAS, KEY_BIAS)
    zero, level = [0.0, 0.0], [[1.0, 1.0], [0.0, 1.0], [-1.0, 1.0]]
    exceptions = {
        "zero_query_bias": special_case(KEYS, zero, [zero] * 3),
        "level_keys": special_case(level, zero, [zero] * 3),
        "level_keys_query_bias": special_case(level, QUERY_BIAS, [zero] * 3),
        "per_key_bias": special_case(KEYS, zero, [zero, KEY_BIAS, zero]),
    }
    cases = {**conditions, **exceptions}
    s = {name: case["scores"] for name, case in cases.items()}
    p = {name: case["weights"] for name, case in cases.items()}
    checks = [Check(function.__name__, claim) for function, claim in CHECKS.items()]
    for check, function in zip(checks, CHECKS):
        function(check, s, p)
    return {
        "tolerance": {"relative": TOLERANCE, "absolute": TOLERANCE},
        "inputs": {
            "queries": QUERIES,
            "keys": KEYS,
            "query_bias": QUERY_BIAS,
            "key_bias": KEY_BIAS,
        },
        "conditions": conditions,
        "exceptions": exceptions,
        "checks": [vars(check) for check in checks],
        "passed": all(check.passed for check in checks),
    }


# The JSON


def to_json(value: Any, indent: str = "\n") -> str:
    """Return JSON text with a vector, as any other list of plain values, on one line."""
    deeper = indent + "  "
    if isinstance(value, dict):
        items = [f'"{key}": {to_json(item, deeper)}' for key, item in value.items()]
        return "{" + deeper + f",{deeper}".join(items) + indent + "}"
    if isinstance(value, list) and value and isinstance(value[0], (dict, list, str)):
        items = [to_json(item, deeper) for item in value]
        return "[" + deeper + f",{deeper}".join(items) + indent + "]"
    return json.dumps(value)


# The report


def fixed(number: float) -> str:
    """Return a number to six decimals, a zero without a sign."""
    return f"{round(number, 6) + 0.0:.6f}"


def vector(values: Vector) -> str:
    """Return a vector as a text: (2, -1)."""
    return f"({', '.join(f'{value:g}' for value in values)})"


def table(conditions: Cases) -> list[str]:
    """Return the first query row as lines, the conditions of equal weights next to each other."""
    lines = [f"{'condition':18}  {'key':7}  {'score':>9}  {'bias adds':>9}  {'weight':>8}"]
    unbiased = conditions["no_bias"]["scores"][0]
    for name in "no_bias", "key_bias", "query_bias", "query_and_key_bias":
        label = name.replace("_", " ")
        rows = conditions[name]["scores"][0], unbiased, conditions[name]["weights"][0]
        for j, (score, before, weight) in enumerate(zip(*rows)):
            added = fixed(score - before) if name != "no_bias" else ""
            bar = "#" * round(32 * min(1, weight))
            figures = f"{fixed(score):>9}  {added:>9}  {fixed(weight):>8}"
            lines.append(f"{label:18}  keys[{j}]  {figures}  {bar}".rstrip())
            label = ""
        lines.append("")
    return lines


def verdicts(conditions: Cases) -> list[str]:
    """Return what each bias did to the scores and weights of all rows, a line each."""
    lines = [f"{'all rows':18}  {'scores moved by':24}  largest weight change"]
    for name in "key_bias", "query_bias", "query_and_key_bias":
        condition = conditions[name]
        moved_by = "a common shift" if condition["relative_scores_kept"] else "a relative change"
        change = condition["max_weight_change"]
        lines.append(f"{name.replace('_', ' '):18}  {moved_by:24}  {change:.6g}")
    return lines


def check_lines(checks: list[dict[str, Any]]) -> list[str]:
    """Return a line for each check, and below one that failed the first value that is off."""
    lines = [f"     {'check':34} error claim"]
    for check in checks:
        verdict = "PASS" if check["passed"] else "FAIL"
        error = f"{check['max_error']:.1g}"
        lines.append(f"{verdict} {check['name']:34} {error:5} {check['claim']}")
        if check["failures"]:
            first, *others = check["failures"]
            lines.append(f"     {first}")
            if others:
                lines.append(f"     and {len(others)} more, listed in the JSON")
    return lines


def report(results: dict[str, Any], where: str) -> str:
    """Return the report, in ASCII; where is the place that the JSON went to."""
    checks = results["checks"]
    passed = sum(check["passed"] for check in checks)
    keys = ", ".join(map(vector, KEYS))
    lines = [
        "Query bias and key bias in one attention head, score = q . k / sqrt(d_k)",
        f"q = {vector(QUERIES[0])}   keys = {keys}   "
        f"b_Q = {vector(QUERY_BIAS)}   b_K = {vector(KEY_BIAS)}",
        "",
        *table(results["conditions"]),
        *verdicts(results["conditions"]),
        "",
        *check_lines(checks),
        "",
        "Scope: one head, q and k of the same size, the same b_K on every key,",
        "softmax over a row. A property of this formula, no advice to take a bias out.",
        "",
        f"{passed} of {len(checks)} checks passed at tolerance {TOLERANCE:g}, wrote {where}",
    ]
    return "\n".join(lines).encode("ascii", "backslashreplace").decode() + "\n"


# The command line


def put(text: str, stream: TextIO | None) -> None:
    """Print a text at once. A reader that has left is no error, any other trouble is."""
    if stream is None:
        raise OSError(errno.EBADF, "it is closed")
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        # Python flushes the stream again as it ends: what is left needs a place to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if not isinstance(error, BrokenPipeError):
            raise


def write(path: str, text: str) -> None:
    """Replace a file whole or not at all; write straight to what is no regular file."""
    if path == "-":
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(newline="\n")
        put(text, sys.stdout)
        return
    if not os.path.basename(path):
        raise OSError(errno.EINVAL, "it names no file")
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and not stat.S_ISREG(mode):
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        return
    target = os.path.realpath(path)
    if mode is not None and not os.access(target, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    new = os.path.join(os.path.dirname(target), f".{os.urandom(8).hex()}.tmp")
    try:
        with open(new, "x", encoding="utf-8", newline="\n") as file:
            if mode is not None:
                os.chmod(new, stat.S_IMODE(mode))
            file.write(text)
        os.replace(new, target)
    finally:
        if os.path.exists(new):
            os.unlink(new)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2 and one line on standard error."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.splitlines())}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 where every check passed, otherwise 1.

    Bad usage and an output that cannot be written raise SystemExit(2).
    """
    parser = Parser(
        prog="verify_attention_bias.py",
        description="Show by arithmetic that a key bias common to all keys moves no attention "
        "weight, and that a query bias can.",
        epilog="example: python3 verify_attention_bias.py --output results.json",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        default="results.json",
        help="where to write the JSON; - is standard output (default: %(default)s)",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    output = parser.parse_args(argv).output

    results = verify()
    text = to_json(results)
    if not results["passed"]:
        # A faulty softmax may give NaN or infinity: JSON has only null for them.
        text = to_json(json.loads(text, parse_constant=lambda _: None))
    try:
        write(output, text + "\n")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        parser.error(f"cannot write {output!r}: {why}; try another --output, or - to print it")

    stream, where = (sys.stderr, "to standard output") if output == "-" else (sys.stdout, output)
    if stream is not None:
        try:
            put(report(results, where), stream)
        except OSError as error:
            parser.error(f"cannot print the report: {error.strerror}; the JSON is written")
    return 0 if results["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
