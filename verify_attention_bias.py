#!/usr/bin/env python3
"""Why attention may leave out the key bias, and not the query bias: shown by arithmetic.

The claim, term by term. A query q scores the key k_j by their dot product over sqrt(d_k). With
a bias on each, the product is

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
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any, NoReturn, TextIO

    Vector = list[float]
    Matrix = list[list[float]]
    Matrices = dict[str, Matrix]
    JsonObject = dict[str, Any]
    Each = Callable[[Matrix], Iterable[Vector]]

__version__ = "1.0.0"

TOLERANCE = 1e-12  # relative and absolute, in every comparison

QUERIES = [[1.0, 0.0], [2.0, -1.0]]
KEYS = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]
QUERY_BIAS = [0.0, 1.0]
KEY_BIAS = [3.0, -2.0]

SCOPE = "one head, q and k of the same size, the same b_K on every key,\nsoftmax over a row"
FIELDS = "queries", "keys", "query_bias", "key_bias"
BIASED = "key_bias", "query_bias", "query_and_key_bias"
PAIRED = "no_bias", *BIASED  # in this order, conditions of equal weights are neighbours


# The arithmetic


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    """Return a . b, its products summed by math.fsum: the same last digit in every Python."""
    try:
        return math.fsum(map(mul, a, b))
    except (OverflowError, ValueError):
        return math.nan  # infinite products, or a sum that is infinite on its way


def plus(a: Vector, b: Vector) -> Vector:
    """Return a + b, as a Linear layer adds its bias to a vector."""
    return list(map(add, a, b))


def minus(a: Vector, b: Vector) -> Vector:
    """Return a - b, value by value."""
    return list(map(sub, a, b))


def scores(query: Sequence[float], keys: Sequence[Sequence[float]]) -> Vector:
    """Return q . k_j / sqrt(d_k) for each key: one row of scores.

    query has shape (d_k,), keys (n_k, d_k), the result (n_k,). A ValueError is raised where a
    key is not of the query's size, an OverflowError where a score leaves the range of float64.
    The formula is "Attention Is All You Need" (Vaswani et al. 2017), section 3.2.1, equation 1,
    before softmax.

    >>> scores([1, 0], [[1, 0], [0, 1], [-1, 0]])
    [0.7071067811865475, 0.0, -0.7071067811865475]
    """
    root = math.sqrt(len(query))
    row = []
    for j, key in enumerate(keys):
        if len(key) != len(query):
            raise ValueError(f"keys[{j}] has {len(key)} values, the query has {len(query)}")
        score = dot(query, key) / root
        if not math.isfinite(score):
            raise OverflowError(f"the score of keys[{j}] leaves the range of float64")
        row.append(score)
    return row


def softmax(row: Sequence[float]) -> Vector:
    """Return exp(s_j) / sum exp(s) for each score of a row: weights that sum to 1.

    row and the result have shape (n_k,). The largest score is subtracted first, so that exp
    cannot overflow ("Deep Learning", Goodfellow et al. 2016, section 4.1). A ValueError is
    raised where the row is empty or its weights are undefined (a NaN, an infinite largest).

    >>> softmax([0, 0])
    [0.5, 0.5]
    >>> softmax([1001, 1002]) == softmax([1, 2])
    True
    """
    if len(row) == 0:
        raise ValueError("a row of scores needs at least one score")
    peak = max(row)
    powers = [math.exp(score - peak) for score in row]
    total = math.fsum(powers)
    if math.isnan(total):
        raise ValueError("scores must be numbers, the largest of them finite")
    return [power / total for power in powers]


# The four conditions


def attend(queries: Matrix, keys: Matrix, each: Each = iter) -> JsonObject:
    """Return the scores and the weights, (n_q, n_k) each, of queries and keys as they are."""
    rows: Matrix = []
    for query in each(queries):
        try:
            rows.append(list(scores(query, keys)))
        except OverflowError as error:
            raise OverflowError(f"queries[{len(rows)}], {error}") from None
    return {"scores": rows, "weights": [list(softmax(row)) for row in rows]}


def add_bias(name: str, vectors: Matrix, bias: Vector) -> Matrix:
    """Return the queries or keys with their bias; an OverflowError names the sum out of range."""
    biased = [plus(vector, bias) for vector in vectors]
    for i, vector in enumerate(biased):
        if not all(map(math.isfinite, vector)):
            t = list(map(math.isfinite, vector)).index(False)
            raise OverflowError(f"{name}[{i}][{t}] with its bias leaves the range of float64")
    return biased


def moved_together(before: Vector, after: Vector) -> bool:
    """Tell whether a row of scores moved by one common shift, up to rounding."""
    shifts = [b / 2 - a / 2 for a, b in zip(before, after)]  # halves, as a shift may overflow
    largest = max(map(abs, [*before, *after]))
    return max(shifts) - min(shifts) <= TOLERANCE * largest / 2


def compare(inputs: JsonObject, each: Each = iter) -> JsonObject:
    """Return inputs and their four conditions, those with a bias measured against no_bias.

    inputs has the four FIELDS. each iterates over queries: it is iter, or shows progress as well.
    """
    queries, keys = inputs["queries"], inputs["keys"]
    biased_queries = add_bias("queries", queries, inputs["query_bias"])
    biased_keys = add_bias("keys", keys, inputs["key_bias"])
    conditions = {
        "no_bias": attend(queries, keys, each),
        "query_bias": attend(biased_queries, keys, each),
        "key_bias": attend(queries, biased_keys, each),
        "query_and_key_bias": attend(biased_queries, biased_keys, each),
    }
    before = conditions["no_bias"]
    for name in BIASED:
        after = conditions[name]
        changes = map(minus, after["weights"], before["weights"])
        after["max_weight_change"] = max(max(map(abs, row)) for row in changes)
        after["relative_scores_kept"] = all(map(moved_together, before["scores"], after["scores"]))
    tolerance = {"relative": TOLERANCE, "absolute": TOLERANCE}
    return {"tolerance": tolerance, "inputs": inputs, "conditions": conditions}


def special_case(keys: Matrix, query_bias: Vector, key_biases: Matrix) -> JsonObject:
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


def scores_for(*numerators: int) -> Vector:
    """Return the closed form of scores: numerator / sqrt(2)."""
    return [numerator / ROOT for numerator in numerators]


def weights_for(*numerators: int) -> Vector:
    """Return the closed form of the weights for these scores, as softmax is defined."""
    powers = [math.exp(score) for score in scores_for(*numerators)]
    total = math.fsum(powers)
    return [power / total for power in powers]


class Check:
    """What a check found: the largest error, and a line for each value that is off."""

    def __init__(self) -> None:
        self.max_error = 0.0
        self.failures: list[str] = []

    def equal(self, where: str, actual: Any, expected: Any) -> None:
        """Hold two numbers equal at TOLERANCE, or two lists of them, item by item."""
        if isinstance(expected, list):
            if len(actual) != len(expected):
                self.failures.append(f"{where} has {len(actual)} values, not {len(expected)}")
            for index, pair in enumerate(zip(actual, expected)):
                self.equal(f"{where}[{index}]", *pair)
            return
        error = abs(actual - expected)
        self.max_error = max(self.max_error, math.inf if math.isnan(error) else error)
        if not math.isclose(actual, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            self.failures.append(f"{where} is {actual!r}, should be {expected!r}")

    def moved(self, where: str, after: Vector, before: Vector) -> None:
        """Hold that a row changed, in one value at least."""
        change = max(map(abs, minus(after, before)))
        if not change > TOLERANCE:
            least = f"should move by more than {TOLERANCE!r}"
            self.failures.append(f"{where} moved by {change!r}, {least}")


def base_scores_and_weights(check: Check, s: Matrices, p: Matrices) -> None:
    """Without bias the first row is that of the formula; each row of weights sums to 1."""
    check.equal("no_bias.scores[0]", s["no_bias"][0], scores_for(1, 0, -1))
    check.equal("no_bias.weights[0]", p["no_bias"][0], weights_for(1, 0, -1))
    for name, weights in p.items():
        for i, row in enumerate(weights):
            check.equal(f"the sum of {name}.weights[{i}]", math.fsum(row), 1.0)


def key_bias_shifts_scores_equally(check: Check, s: Matrices, p: Matrices) -> None:
    """b_K adds q.b_K / sqrt(d_k) to each score of the first row: every difference stays."""
    before, after = s["no_bias"][0], s["key_bias"][0]
    check.equal("(key_bias - no_bias).scores[0]", minus(after, before), scores_for(3, 3, 3))
    for a, b in PAIRS:
        where = f"key_bias.scores[0][{a}] - [{b}]"
        check.equal(where, after[a] - after[b], before[a] - before[b])


def key_bias_keeps_weights(check: Check, s: Matrices, p: Matrices) -> None:
    """The weights of the first row with b_K are those without."""
    check.equal("key_bias.weights[0]", p["key_bias"][0], p["no_bias"][0])


def query_bias_changes_relative_scores(check: Check, s: Matrices, p: Matrices) -> None:
    """b_Q changes the difference of keys a and b by b_Q.(k_a - k_b) / sqrt(d_k).

    It adds b_Q.k_j / sqrt(d_k) to each score; as p_a / p_b = exp(s_a - s_b), the weights move.
    """
    for i, (before, after) in enumerate(zip(s["no_bias"], s["query_bias"])):
        where = f"(query_bias - no_bias).scores[{i}]"
        check.equal(where, minus(after, before), scores_for(0, 1, 0))
        weights = p["query_bias"][i]
        for (a, b), change in zip(PAIRS, scores_for(-1, 0, 1)):
            difference = after[a] - after[b]
            where = f"query_bias.scores[{i}][{a}] - [{b}]"
            check.equal(where, difference, before[a] - before[b] + change)
            where = f"query_bias.weights[{i}][{a}] / [{b}]"
            ratio = weights[a] / weights[b] if weights[b] else math.nan
            check.equal(where, ratio, math.exp(difference))
        check.moved(f"query_bias.weights[{i}]", weights, p["no_bias"][i])


def both_biases_match_query_bias(check: Check, s: Matrices, p: Matrices) -> None:
    """With both biases a score is the sum of the four terms; the weights are those of b_Q.

    The terms are q.k_j + b_Q.k_j + q.b_K + b_Q.b_K, over sqrt(d_k).
    """
    first = scores_for(1 + 0 + 3 - 2, 0 + 1 + 3 - 2, -1 + 0 + 3 - 2)
    second = scores_for(2 + 0 + 8 - 2, -1 + 1 + 8 - 2, -2 + 0 + 8 - 2)
    check.equal("query_and_key_bias.scores", s["query_and_key_bias"], [first, second])
    check.equal("query_and_key_bias.weights", p["query_and_key_bias"], p["query_bias"])


def other_query_row(check: Check, s: Matrices, p: Matrices) -> None:
    """Another query's row is shifted by another amount, and its weights stay all the same."""
    first, second = map(minus, s["key_bias"], s["no_bias"])
    check.equal("no_bias.scores[1]", s["no_bias"][1], scores_for(2, -1, -2))
    check.equal("(key_bias - no_bias).scores[1]", second, scores_for(8, 8, 8))
    check.moved("from row 0 to row 1 the shift", second, first)
    check.equal("no_bias.weights[1]", p["no_bias"][1], weights_for(2, -1, -2))
    check.equal("key_bias.weights[1]", p["key_bias"][1], p["no_bias"][1])


def ineffective_query_bias(check: Check, s: Matrices, p: Matrices) -> None:
    """A b_Q moves no weight where it is zero, or where b_Q.k_j is the same for all keys."""
    check.equal("zero_query_bias.scores[0]", s["zero_query_bias"][0], scores_for(1, 0, -1))
    check.equal("level_keys.scores[0]", s["level_keys"][0], scores_for(1, 0, -1))
    added = minus(s["level_keys_query_bias"][0], s["level_keys"][0])
    check.equal("(level_keys_query_bias - level_keys).scores[0]", added, scores_for(1, 1, 1))
    for name in "zero_query_bias", "level_keys", "level_keys_query_bias":
        check.equal(f"{name}.weights[0]", p[name][0], weights_for(1, 0, -1))


def per_key_bias_changes_weights(check: Check, s: Matrices, p: Matrices) -> None:
    """b_K on the second key alone is no common shift: the weights move."""
    check.equal("per_key_bias.scores[0]", s["per_key_bias"][0], scores_for(1, 3, -1))
    check.equal("per_key_bias.weights[0]", p["per_key_bias"][0], weights_for(1, 3, -1))
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


def verify() -> JsonObject:
    """Compute the built-in vectors, run the checks on them; return what results.json holds."""
    results = compare(dict(zip(FIELDS, (QUERIES, KEYS, QUERY_BIAS, KEY_BIAS))))
    zero, level = [0.0, 0.0], [[1.0, 1.0], [0.0, 1.0], [-1.0, 1.0]]
    exceptions = {
        "zero_query_bias": special_case(KEYS, zero, [zero] * 3),
        "level_keys": special_case(level, zero, [zero] * 3),
        "level_keys_query_bias": special_case(level, QUERY_BIAS, [zero] * 3),
        "per_key_bias": special_case(KEYS, zero, [zero, KEY_BIAS, zero]),
    }
    cases = {**results["conditions"], **exceptions}
    s = {name: case["scores"] for name, case in cases.items()}
    p = {name: case["weights"] for name, case in cases.items()}
    checks = []
    for function, claim in CHECKS.items():
        check = Check()
        try:
            function(check, s, p)
        except (ArithmeticError, LookupError) as error:
            check.failures.append(f"it cannot be worked out: {error!r}")
        passed = not check.failures
        checks.append({"name": function.__name__, "claim": claim, "passed": passed, **vars(check)})
    passed = all(check["passed"] for check in checks)
    return {**results, "exceptions": exceptions, "checks": checks, "passed": passed}


# Vectors from a file


def require(where: str, value: Any, *shape: int) -> None:
    """Raise a ValueError that names the place where a value is not as it should be.

    It should be a finite float or, with a shape, lists of them of these sizes, 0 for any.
    """
    kinds = {"dict": "an object", "list": "a list", "str": "a text", "float": "a number"}
    kind = kinds.get(type(value).__name__) or json.dumps(value)
    if not shape:
        if kind != "a number":
            raise ValueError(f"{where} is {kind}, should be a number")
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}, should be finite and in the range of float64")
        return
    size, *rest = shape
    if kind != "a list":
        raise ValueError(f"{where} is {kind}, should be a list of {'lists' if rest else 'numbers'}")
    if not value:
        raise ValueError(f"{where} is empty, should have length {size or 'at least 1'}")
    # Nearly all vectors are as they should be: a look at each number would take long.
    if rest or set(map(type, value)) != {float} or not all(map(math.isfinite, value)):
        for i, item in enumerate(value):
            require(f"{where}[{i}]", item, *rest)
    if size not in (0, len(value)):
        raise ValueError(f"{where} has length {len(value)}, should have {size} as queries[0] has")


def unique_fields(pairs: list[tuple[str, Any]]) -> JsonObject:
    """Return a JSON object; a ValueError names a field that is given twice."""
    fields = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"the field {name!a} is given twice")
        fields[name] = value
    return fields


def read_inputs(path: str) -> JsonObject:
    """Return the vectors in a file, all numbers float; a ValueError says what is wrong."""
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
            text = file.read().decode("utf-8-sig")
        given = json.loads(text, parse_int=float, object_pairs_hook=unique_fields)
    except RecursionError:
        raise ValueError("nested too deeply, should be lists of numbers in an object") from None
    except ValueError as error:
        raise ValueError(f"{error}; should be one JSON object in UTF-8") from None
    names = ", ".join(FIELDS)
    if not isinstance(given, dict):
        raise ValueError(f"no JSON object, should be one with the fields {names}")
    for name in {**dict.fromkeys(FIELDS), **given}:
        if name not in given:
            raise ValueError(f"the field {name} is missing, should be given: {names}")
        if name not in (*FIELDS, "description"):
            raise ValueError(f"the field {name!a} is unknown, should be among {names}, description")
    if not isinstance(given.get("description", ""), str):
        raise ValueError("description should be a text")
    try:
        d_k = len(given["queries"][0])
    except (LookupError, TypeError):
        d_k = 0  # which require explains
    for name in FIELDS:
        require(name, given[name], *((0, d_k) if name in ("queries", "keys") else (d_k,)))
    return {name: given[name] for name in ("description", *FIELDS) if name in given}


def measure(path: str) -> JsonObject:
    """Return what the JSON holds for the vectors in a file; an OSError says why it cannot."""
    done = 0

    def each(queries: Matrix) -> Iterable[Vector]:
        nonlocal done
        total = 4 * len(queries)
        for query in queries:
            if done % (total // 100 + 1) == 0:
                show_progress(f"computing, {100 * done // total}%")
            done += 1
            yield query

    show_progress("reading")
    try:
        results = compare(read_inputs(path), each)
    except (OSError, ValueError, OverflowError) as error:
        why = f"{reason(error)}; --input takes the vectors as JSON"
        raise OSError(f"cannot use {path!r}: {why}") from None
    show_progress("writing")
    return results


def show_progress(text: str) -> None:
    """Show on a terminal how far the run is, in place of what was shown before."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"\r{text:16}\r", end="", file=sys.stderr, flush=True)


# The JSON


def json_parts(value: Any, indent: str = "\n") -> Iterator[str]:
    """Yield a JSON document in parts: a vector, as any list of plain values, is on one line."""
    deeper = indent + "  "
    if isinstance(value, dict):
        opening, closing, items = "{", "}", [(f'"{key}": ', item) for key, item in value.items()]
    elif isinstance(value, list) and value and isinstance(value[0], (dict, list, str)):
        opening, closing, items = "[", "]", [("", item) for item in value]
    else:
        yield json.dumps(value)
        return
    for name, item in items:
        yield opening + deeper + name
        yield from json_parts(item, deeper)
        opening = ","
    yield indent + closing + "\n" * (indent == "\n")


# The report


def fixed(number: float) -> str:
    """Return a number to six decimals, fewer for a large one, a zero without a sign."""
    if abs(number) < 100:
        return f"{round(number, 6) + 0.0:.6f}"
    return f"{number:.3f}" if abs(number) < 10000 else f"{number:.2e}"


def vector(values: Vector) -> str:
    """Return a vector as a text, its first three numbers at the most: (2, -1)."""
    numbers = [f"{value:.3g}" for value in values[:3]] + ["..."] * (len(values) > 3)
    return f"({', '.join(numbers)})"


def table(conditions: JsonObject) -> list[str]:
    """Return the first query row as lines, the conditions of equal weights next to each other."""
    lines = ["condition           key          score  bias adds    weight"]
    unbiased = conditions["no_bias"]["scores"][0]
    for name in PAIRED:
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


def verdicts(conditions: JsonObject) -> list[str]:
    """Return what each bias did to the scores and weights of all rows."""
    lines = ["all rows            scores moved by    weights  largest weight change"]
    notes = []
    before = conditions["no_bias"]
    for name in BIASED:
        after, label = conditions[name], name.replace("_", " ")
        kept, change = after["relative_scores_kept"], after["max_weight_change"]
        moved_by = "a common shift" if kept else "a relative change"
        weights = "kept" if change <= TOLERANCE else "rounded" if kept else "changed"
        if weights == "rounded":
            largest = max(max(map(abs, row)) for row in after["scores"] + before["scores"])
            notes += [
                f"{label}: a common shift moves no weight in exact arithmetic. This is rounding:",
                f"float64 has a spacing of {math.ulp(largest):.2g} at the largest score, "
                f"{largest:.6g}.",
            ]
        place = next(
            f" at weights[{i}][{j}]"
            for i, rows in enumerate(zip(after["weights"], before["weights"]))
            for j, (p, q) in enumerate(zip(*rows))
            if not abs(p - q) < change
        )
        largest_change = f"{change:.6g}{place if change else ''}"
        lines.append(f"{label:18}  {moved_by:17}  {weights:7}  {largest_change}")
    return lines + notes


def check_lines(checks: list[JsonObject]) -> list[str]:
    """Return a line for each check, and below one that failed the first value that is off."""
    lines = ["     check                              error claim"]
    for check in checks:
        verdict = "PASS" if check["passed"] else "FAIL"
        lines.append("{} {name:34} {max_error:<5.1g} {claim}".format(verdict, **check))
        failures = check["failures"]
        lines += [f"     {failure}" for failure in failures[:1]]
        if len(failures) > 1:
            lines.append(f"     and {len(failures) - 1} more, listed in the JSON")
    return [*lines, ""]


def report(results: JsonObject, outputs: list[str]) -> str:
    """Return the report, in ASCII; it ends with the names of what was written."""
    inputs, checks = results["inputs"], results.get("checks")
    queries, keys = inputs["queries"], inputs["keys"]
    names = ["to standard output" if name == "-" else name for name in outputs]
    end = f"wrote {' and '.join(names)}" if names else "nothing written, as there is no --output"
    lines = ["Query bias and key bias in one attention head, score = q . k / sqrt(d_k)"]
    if checks:
        biases = vector(inputs["query_bias"]), vector(inputs["key_bias"])
        vectors = vector(queries[0]), ", ".join(map(vector, keys)), *biases
        lines.append("q = {}   keys = {}   b_Q = {}   b_K = {}".format(*vectors))
        passed = sum(check["passed"] for check in checks)
        end = f"{passed} of {len(checks)} checks passed at tolerance {TOLERANCE:g}, {end}"
    else:
        lines.append(f"queries: {len(queries)}, keys: {len(keys)}, d_k: {len(keys[0])}")
        if "description" in inputs:
            lines.append(ascii(inputs["description"])[:80])
    lines.append("")
    if len(keys) <= 8:
        lines += table(results["conditions"])
    lines += [*verdicts(results["conditions"]), ""]
    if checks:
        lines += check_lines(checks)
    lines += [f"Scope: {SCOPE}. A property of this formula, no advice to take a bias out.", "", end]
    return "\n".join(lines).encode("ascii", "backslashreplace").decode() + "\n"


# The chart

SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="800" height="{0}" viewBox="0 0 800 {0}"
 role="img" aria-labelledby="title desc" font-family="Helvetica, Arial, sans-serif" font-size="16">
<title id="title">Attention weights of the first query under four bias conditions</title>
<desc id="desc">A bar for each key and condition. {1}.</desc>
<style>
.page {{ fill: #ffffff; stroke: #bbbbbb }} text {{ fill: #1a1a1a }} .bold {{ font-weight: bold }}
.first {{ fill: #1f5a96 }} .second {{ fill: #f0a93c }} .key {{ text-anchor: end }}
@media (prefers-color-scheme: dark) {{
  .page {{ fill: #161b22; stroke: #444444 }} text {{ fill: #f0f0f0 }} .first {{ fill: #3f7fc4 }}
}}
</style>
<rect class="page" x="1" y="1" width="798" height="{2}" rx="6"/>
{3}
</svg>
"""
TEXT = '<text class="{}" x="{:.0f}" y="{}">{}</text>'
BAR = (
    '<text class="key" x="280" y="{0}">{1}</text>'
    '<rect class="{2}" x="290" y="{3}" width="{4:.3f}" height="18"/>'
    '<text class="weight" x="{5:.0f}" y="{0}">{6:.3f}</text>'
)


def chart(results: JsonObject) -> str:
    """Return an SVG of the weights of the first query, the conditions of equal weights in pairs.

    Of more than eight keys it shows the seven with the largest weights, and one bar for the rest.
    """
    from html import escape

    inputs, conditions = results["inputs"], results["conditions"]
    keys = inputs["keys"]
    rows = {name: conditions[name]["weights"][0] for name in PAIRED}
    order = sorted(range(len(keys)), key=lambda j: -max(row[j] for row in rows.values()))
    most = 8 if len(keys) <= 8 else 7
    shown, rest = sorted(order[:most]), order[most:]
    label = "keys[{}] = {}" if "checks" in results else "keys[{}]"
    labels = [label.format(j, vector(keys[j])) for j in shown]
    heads = [f"b_Q = {vector(inputs['query_bias'])}, b_K = {vector(inputs['key_bias'])}"]
    if "description" in inputs:
        heads.append("".join(c if c.isprintable() else " " for c in inputs["description"][:88]))
    if rest:
        labels.append(f"the other {len(rest)}")
        heads.append(
            f"The {most} keys of the largest weights, and one bar for the other {len(rest)}."
        )

    y = 38
    parts = [TEXT.format("bold", 24, y, "Attention weights of the first query")]
    for head in heads:
        y += 26
        parts.append(TEXT.format("head", 24, y, escape(head)))
    words = []
    for kind, pair in ("first", PAIRED[:2]), ("second", PAIRED[2:]):
        apart = max(map(abs, minus(rows[pair[0]], rows[pair[1]])))
        same = "the same weights" if apart <= TOLERANCE else f"weights up to {apart:.2g} apart"
        words.append(f"{', '.join(pair)}: {same}".replace("_", " "))
        y += 38
        parts.append(TEXT.format("bold", 24, y, words[-1]))
        for name in pair:
            y += 8
            parts.append(TEXT.format("condition", 24, y + 23, name.replace("_", " ")))
            weights = [rows[name][j] for j in shown]
            weights += [math.fsum(rows[name][j] for j in rest)] if rest else []
            for key, weight in zip(labels, weights):
                y += 23
                length = 400 * weight
                parts.append(BAR.format(y, key, kind, y - 14, length, 298 + length, weight))
    y += 36
    parts.append(TEXT.format("scope", 24, y, "Scope: " + SCOPE.replace("\n", " ")))
    text = SVG.format(y + 20, ". ".join(words), y + 18, "\n".join(parts))
    return text.encode("ascii", "xmlcharrefreplace").decode()


# The command line


def print_now(parts: Iterable[str], stream: TextIO | None) -> None:
    """Print a text at once; a stream that is closed, or that nobody reads on, is no error."""
    if stream is None:
        return
    try:
        stream.writelines(parts)
        stream.flush()
    except OSError as error:
        # Python flushes the stream again as it ends: what is left needs a place to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if not isinstance(error, BrokenPipeError):
            raise


def is_special(path: str) -> bool:
    """Tell whether a name is standard output, or there and neither a regular file nor a folder."""
    there = os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    return path == "-" or there


def replacement_for(path: str) -> tuple[str, str]:
    """Return the name of a new file, and that of the file it is to replace, links followed."""
    target = os.path.realpath(path)
    if not os.path.basename(path) or os.path.isdir(target) or os.path.islink(target):
        raise OSError(errno.EINVAL, "it names no file")
    if os.path.exists(target) and not os.access(target, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    return os.path.join(os.path.dirname(target), f".{os.urandom(8).hex()}.tmp"), target


def write_special(path: str, parts: Iterable[str]) -> None:
    """Write a text to standard output, or to a device or pipe."""
    if path != "-":
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(parts)
        return
    if sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed")
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(newline="\n")
    print_now(parts, sys.stdout)


def write(files: list[tuple[str, Iterable[str]]]) -> None:
    """Write each text, given in parts, under its name: all or none; an OSError says which failed.

    A regular file is replaced by a new one, which takes its mode. What is none is written to when
    all else is ready.
    """
    staged = []
    try:
        for path, parts in sorted(files, key=lambda file: (is_special(file[0]), file[0] == "-")):
            if is_special(path):
                write_special(path, parts)
                continue
            new, target = replacement_for(path)
            staged.append((path, new, target))
            with open(new, "x", encoding="utf-8", newline="\n") as file:
                if os.path.exists(target):
                    os.chmod(new, stat.S_IMODE(os.stat(target).st_mode))
                file.writelines(parts)
        for path, new, target in staged:  # noqa: B007, the path is for the error below
            os.replace(new, target)
    except (OSError, ValueError) as error:
        why = f"{reason(error)}; try another file, or - for standard output"
        raise OSError(f"cannot write {path!r}: {why}") from None
    finally:
        for _, new, _ in staged:
            if os.path.exists(new):
                os.unlink(new)


def reason(error: Exception) -> str:
    """Return why something failed, without the name of a file."""
    return getattr(error, "strerror", None) or str(error)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2 and one line on standard error."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.splitlines())}\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Exit when the message, or the help printed before, is out."""
        try:
            print_now([message or ""], sys.stderr if status else sys.stdout)
        except OSError as error:
            if not status:
                self.error(f"cannot print: {reason(error)}")
        sys.exit(status)


def same_file(one: str | int, other: str) -> bool:
    """Tell whether two names lead to one file; the first may be a file descriptor."""
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except (OSError, ValueError):
        return isinstance(one, str) and os.path.realpath(one) == os.path.realpath(other)


def command_line(argv: Sequence[str] | None) -> tuple[Parser, argparse.Namespace]:
    """Return the parser and what it found, with the names of all outputs."""
    parser = Parser(
        prog="verify_attention_bias.py",
        description="Show by arithmetic that a key bias common to all keys moves no attention "
        "weight, and that a query bias can. A FILE may be - for standard input or output.",
        epilog="example: python3 verify_attention_bias.py --output results.json",
        # A width of its own: to ask the terminal for one, argparse imports shutil and all it needs.
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=78),
    )
    for option, words in {
        "--input": "compare your own vectors, in the form of inputs in results.json",
        "--output": "where to write the JSON (default: results.json; with --input none)",
        "--chart": "where to draw the weights of the first query, as SVG",
    }.items():
        parser.add_argument(option, metavar="FILE", help=words)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    args = parser.parse_args(argv)
    if args.input is None and args.output is None:
        args.output = "results.json"
    args.outputs = [name for name in (args.output, args.chart) if name is not None]
    source = 0 if args.input == "-" else args.input
    for one, other in (source, args.output), (source, args.chart), (args.output, args.chart):
        if one is not None and other is not None and same_file(one, other):
            parser.error(f"{other!r} is named twice, should be two files")
    return parser, args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or 1 where a check failed.

    argv is sys.argv[1:] where it is left out. Bad usage, unreadable input and an output that
    cannot be written raise SystemExit(2).

    >>> from contextlib import redirect_stderr, redirect_stdout
    >>> from io import StringIO
    >>> with redirect_stdout(StringIO()) as document, redirect_stderr(StringIO()) as report:
    ...     code = main(["--output", "-"])
    >>> code, report.getvalue().count("PASS"), json.loads(document.getvalue())["passed"]
    (0, 8, True)
    """
    parser, args = command_line(argv)
    try:
        results = verify() if args.input is None else measure(args.input)
        passed = results.get("passed", True)
        files: list[tuple[str, Iterable[str]]] = []
        if args.output is not None:
            parts = json_parts(results)
            if not passed:
                # A faulty softmax may give NaN or infinity: JSON has only null for them.
                parts = json_parts(json.loads("".join(parts), parse_constant=lambda _: None))
            files.append((args.output, parts))
        if args.chart is not None:
            files.append((args.chart, [chart(results)]))
        write(files)
    except OSError as error:
        parser.error(str(error))
    if args.input is not None:
        show_progress("")
    try:
        print_now(
            [report(results, args.outputs)], sys.stderr if "-" in args.outputs else sys.stdout
        )
    except OSError as error:
        parser.error(f"cannot print the report: {reason(error)}; the files are written")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
