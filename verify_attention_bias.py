#!/usr/bin/env python3
"""Why attention may leave out the key bias, and not the query bias: shown by arithmetic.

Attention compares a query with each key. Softmax turns the scores of this comparison into
attention weights that sum to 1, and the output is the values mixed by these weights: the same
weights give the same output.

The claim, term by term. A query q scores the key k_j by their dot product over sqrt(d_k). A
Linear layer adds one vector b_Q to every query and one b_K to every key: the product becomes

    (q + b_Q) . (k_j + b_K)  =  q.k_j + b_Q.k_j + q.b_K + b_Q.b_K

The two terms with b_K are the same for all keys j: they shift all scores of this query's row by
one amount c, another for each query. Softmax cancels it, as exp(c) is a factor above and below:
exp(s + c) / sum exp(s + c) = exp(s) / sum exp(s). So b_K moves the scores, and no attention
weight. The term b_Q.k_j differs from key to key, so b_Q can move the weights. All this is exact
for real numbers; floats follow up to rounding.

The words:

    query, queries   q_i   (d_k,), (n_q, d_k)   before the bias
    key, keys        k_j   (d_k,), (n_k, d_k)   before the bias
    query_bias       b_Q   (d_k,) or (n_q, d_k) what a Linear layer adds to every query
    key_bias         b_K   (d_k,) or (n_k, d_k) and to every key; or a row for each of them
    mask             m_ij  (n_q, n_k)           what the model adds to the scores besides: -inf, or
                                                null in JSON, where q_i may not attend to k_j
    scores           s_ij  (n_q, n_k)           q_i . k_j / sqrt(d_k), each with its bias or not
    weights          p_ij  (n_q, n_k)           softmax of row i of s + m

The scope: one head, q and k of the same size, the same b_K on every key, softmax over a row,
whatever mask or term is added to the scores. Not with RoPE, QK-norm or attention sinks: there the
bias differs from key to key, which a row for each key can express. It is a property of this
formula, and no advice to take a bias out of a model. Nothing is said of dropout, quantization,
GPU kernels, or training beyond this: no weight depends on b_K, so its gradient is zero.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from itertools import chain, combinations, cycle, repeat
from operator import add, mul, sub

TYPE_CHECKING = False  # typing is slow to import, and only a type checker needs it
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, NoReturn, TextIO

    Vector = list[Any]  # of floats, or of integers in exact arithmetic
    Matrix = list[Vector]
    Tuples = Iterator[tuple[Any, ...]]
    JsonObject = dict[Any, Any]
    Compared = tuple[JsonObject, JsonObject]

__version__ = "2.0.0"

PROGRAM = "verify_attention_bias.py"
TOLERANCE = 1e-12  # relative and absolute, in every check
CLOSED = -math.inf  # in a mask, where a query may not attend to a key

QUERIES = [[1.0, 0.0], [2.0, -1.0]]
KEYS = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]
QUERY_BIAS = [0.0, 1.0]
KEY_BIAS = [3.0, -2.0]


# The arithmetic


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    """Return a . b, its products summed by math.fsum: the same last digit in every Python."""
    return math.fsum(map(mul, a, b))


def scores(query: Sequence[float], keys: Sequence[Sequence[float]]) -> Vector:
    """Return q . k_j / sqrt(d_k) for each key: one row of scores.

    query has shape (d_k,), keys (n_k, d_k), the result (n_k,). A ValueError is raised where a
    key is not of the query's size. The formula is "Attention Is All You Need" (Vaswani et al.
    2017), section 3.2.1, equation 1, before softmax.

    >>> scores([1, 0], [[1, 0], [0, 1], [-1, 0]])
    [0.7071067811865475, 0.0, -0.7071067811865475]
    """
    for j, size in enumerate(map(len, keys)):
        if size != len(query):
            raise ValueError(f"keys[{j}] has {size} values, the query has {len(query)}")
    root = math.sqrt(len(query))
    return [product / root for product in map(dot, repeat(query), keys)]


def softmax(row: Sequence[float]) -> Vector:
    """Return exp(s_j) / sum exp(s) for each score of a row: weights that sum to 1.

    row and the result have shape (n_k,). The largest score is subtracted first, so that exp
    cannot overflow ("Deep Learning", Goodfellow et al. 2016, section 4.1): this too is a common
    shift, and cancels. A ValueError is raised where the row is empty or its weights are undefined
    (a NaN, an infinite largest).

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

CONDITIONS = "no_bias", "query_bias", "key_bias", "query_and_key_bias"


def plus(a: Vector, b: Vector) -> Vector:
    """Return a + b, as a Linear layer adds its bias to a vector."""
    return list(map(add, a, b))


def minus(a: Vector, b: Vector) -> Vector:
    """Return a - b, value by value."""
    return list(map(sub, a, b))


def four(query: Vector, query_bias: Vector, keys: Any, biased_keys: Any) -> JsonObject:
    """Return the four conditions: the query and the keys that meet in each."""
    biased_query = plus(query, query_bias)
    return {
        "no_bias": (query, keys),
        "query_bias": (biased_query, keys),
        "key_bias": (query, biased_keys),
        "query_and_key_bias": (biased_query, biased_keys),
    }


def rows_of(inputs: JsonObject, name: str) -> Matrix:
    """Return a bias or mask as rows for cycle: a matrix, one vector for all, or one of zeros."""
    given, keys = inputs.get(name), inputs["keys"]
    if given is None:
        given = [0.0] * len(keys if name == "mask" else keys[0])
    return given if isinstance(given[0], list) else [given]


def attend(query: Vector, keys: Matrix, mask: Vector, form: str) -> Any:
    """Return a query's scores in a format, which its keys are in, and weights; None past range."""
    try:
        row = rounded(scores(rounded(query, form), keys), form)
    except ValueError:  # infinities of both signs have no sum
        return None
    return (row, softmax(plus(row, mask))) if all(map(math.isfinite, row)) else None


def farthest(a: Vector, b: Vector) -> tuple[float, int]:
    """Return the largest |a_j - b_j|, and the first j that has it."""
    distances = list(map(abs, minus(a, b)))
    largest = max(distances)
    return largest, distances.index(largest)


def compare_query(case: Any, exact: Exact, stored_keys: JsonObject) -> Compared:
    """Return its rows, scores or exact products, with weights; and what bias and format move."""
    (query, bias, mask), rows, moved = case, {}, {}
    whole_conditions = four(exact.whole(query), exact.whole(bias), *exact.keys)
    for name, (vector, columns) in whole_conditions.items():
        products, weights = rows["exact", name] = exact.weigh(vector, columns, mask)
        unbiased, unmoved = rows["exact", "no_bias"]
        added = [b - a for a, b, term in zip(unbiased, products, mask) if term > CLOSED]
        moved["spread", name] = max(added) - min(added), 0  # a common shift has none
        moved["exact", name] = farthest(weights, unmoved)
    for form, both in stored_keys.items():
        for name, (vector, keys) in four(query, bias, *both).items():
            right, found = rows["exact", name][1], attend(vector, keys, mask, form)
            moved[form, name] = farthest(found[1], right) if found else (math.inf, 0)
            rows[form, name] = found
    return rows, moved


def compare(inputs: JsonObject, keep: bool = True) -> Compared:
    """Return what the JSON says of inputs, with all scores and weights if keep, and what to show.

    inputs has queries (n_q, d_k) and keys (n_k, d_k), and perhaps query_bias, key_bias, mask and
    layer_weights. Shown is the query whose weights move most, with the largest movements of all.
    """
    exact, own = Exact(inputs), inputs.get("layer_weights")
    biased_keys = map(plus, inputs["keys"], cycle(rows_of(inputs, "key_bias")))
    both = inputs["keys"], list(biased_keys)
    stored = {form: [[rounded(key, form) for key in keys] for keys in both] for form in FORMATS}
    biases, masks = cycle(rows_of(inputs, "query_bias")), cycle(rows_of(inputs, "mask"))
    conditions: JsonObject = {name: {"scores": [], "weights": []} for name in CONDITIONS}
    largest: JsonObject = {}
    shown: JsonObject = {}
    for i, case in enumerate(zip(watched(inputs["queries"]), biases, masks)):
        rows, moved = compare_query(case, exact, stored)
        for what, (distance, j) in moved.items():
            if i == 0 or distance > largest[what][0]:
                largest[what] = distance, i, j
        change = max(moved["exact", name][0] for name in CONDITIONS)
        if i == 0 or change > shown["change"]:
            shown = {"change": change, "query": i, "mask": case[2], "moved": moved, **rows}
        for name, condition in conditions.items() if keep or own else ():
            for values, row in zip(condition.values(), rows["float64", name]):
                values.append(row)
    for name in CONDITIONS[1:]:
        conditions[name]["max_weight_change"] = largest["exact", name][0]
        conditions[name]["relative_scores_kept"] = largest["spread", name][0] == 0
    results: JsonObject = {
        "tolerance": {"relative": TOLERANCE, "absolute": TOLERANCE},
        "inputs": inputs,
    }
    if own:
        computed = conditions["query_and_key_bias"]["weights"]
        results["layer_weights_error"] = max(map(farthest, own, computed))[0]
    formats = {form: {name: largest[form, name][0] for name in CONDITIONS} for form in FORMATS}
    results.update(conditions=conditions, formats=formats)
    for name in CONDITIONS:
        added = minus(shown["exact", name][0], shown["exact", "no_bias"][0])
        shown["added", name] = exact.scaled(added)
    return results, {**shown, "largest": largest}


# The eight checks. A check yields a name in rows, with the values themselves where they are worked
# out from rows, and what they should be: a closed form without scores and softmax, or another row.


def scores_for(*numerators: int) -> Vector:
    """Return the closed form of scores: numerator / sqrt(d_k), which is sqrt(2)."""
    return [numerator / math.sqrt(2) for numerator in numerators]


def weights_for(*numerators: int) -> Vector:
    """Return the weights for these scores as softmax is defined, with nothing subtracted."""
    powers = [math.exp(score) for score in scores_for(*numerators)]
    total = math.fsum(powers)
    return [power / total for power in powers]


def differences(row: Vector) -> Vector:
    """Return the differences between each two of three scores."""
    a, b, c = row
    return [a - b, a - c, b - c]


def ratios(row: Vector) -> Vector:
    """Return the ratios of each two of three weights."""
    a, b, c = row
    return [a / b, a / c, b / c]


def base_scores_and_weights(rows: JsonObject) -> Tuples:
    """Without bias the first row is that of the formula; each row of weights sums to 1."""
    yield "no_bias.scores[0]", scores_for(1, 0, -1)
    yield "no_bias.weights[0]", weights_for(1, 0, -1)
    for name, row in rows.items():
        if ".weights" in name:
            yield f"{name}.sum()", [math.fsum(row)], [1.0]


def key_bias_shifts_scores_equally(rows: JsonObject) -> Tuples:
    """b_K adds q.b_K / sqrt(d_k) to each score of the first row: every difference stays."""
    before, after = rows["no_bias.scores[0]"], rows["key_bias.scores[0]"]
    yield "(key_bias - no_bias).scores[0]", minus(after, before), scores_for(3, 3, 3)
    yield "differences of key_bias.scores[0]", differences(after), differences(before)
    yield "key_bias.weights[0]", weights_for(4, 3, 2)


def key_bias_keeps_weights(rows: JsonObject) -> Tuples:
    """The weights of the first row with b_K are those without."""
    yield "key_bias.weights[0]", rows["no_bias.weights[0]"]


def query_bias_changes_relative_scores(rows: JsonObject) -> Tuples:
    """b_Q changes a difference by b_Q.(k_a - k_b) / sqrt(d_k); p_a / p_b = exp(s_a - s_b) moves."""
    for i, numerators in enumerate([(1, 1, -1), (2, 0, -2)]):
        before, after = rows[f"no_bias.scores[{i}]"], rows[f"query_bias.scores[{i}]"]
        changes = minus(differences(after), differences(before))
        yield f"(query_bias - no_bias).scores[{i}]", minus(after, before), scores_for(0, 1, 0)
        yield f"changed differences of scores[{i}]", changes, scores_for(-1, 0, 1)
        powers = list(map(math.exp, differences(scores_for(*numerators))))
        yield f"ratios of weights[{i}]", ratios(rows[f"query_bias.weights[{i}]"]), powers
        yield f"query_bias.weights[{i}]", weights_for(*numerators)


def both_biases_match_query_bias(rows: JsonObject) -> Tuples:
    """With both a score is the sum q.k + b_Q.k + q.b_K + b_Q.b_K; the weights are those of b_Q."""
    first = scores_for(1 + 0 + 3 - 2, 0 + 1 + 3 - 2, -1 + 0 + 3 - 2)
    second = scores_for(2 + 0 + 8 - 2, -1 + 1 + 8 - 2, -2 + 0 + 8 - 2)
    yield "query_and_key_bias.scores[0]", first
    yield "query_and_key_bias.scores[1]", second
    yield "query_and_key_bias.weights[0]", rows["query_bias.weights[0]"]
    yield "query_and_key_bias.weights[0]", weights_for(2, 2, 0)
    yield "query_and_key_bias.weights[1]", rows["query_bias.weights[1]"]
    yield "query_and_key_bias.weights[1]", weights_for(8, 6, 4)


def other_query_row(rows: JsonObject) -> Tuples:
    """Another query's row is shifted by another amount, 8 for 3, and its weights stay the same."""
    added = minus(rows["key_bias.scores[1]"], rows["no_bias.scores[1]"])
    yield "no_bias.scores[1]", scores_for(2, -1, -2)
    yield "(key_bias - no_bias).scores[1]", added, scores_for(8, 8, 8)
    yield "no_bias.weights[1]", weights_for(2, -1, -2)
    yield "key_bias.weights[1]", weights_for(10, 7, 6)
    yield "key_bias.weights[1]", rows["no_bias.weights[1]"]


def ineffective_query_bias(rows: JsonObject) -> Tuples:
    """A b_Q moves no weight where it is zero, or where b_Q.k_j is the same for all keys."""
    for case in "zero_query_bias.no_bias", "zero_query_bias.query_bias", "level_keys.no_bias":
        yield f"{case}.scores[0]", scores_for(1, 0, -1)
        yield f"{case}.weights[0]", weights_for(1, 0, -1)
    before, after = rows["level_keys.no_bias.scores[0]"], rows["level_keys.query_bias.scores[0]"]
    yield "level_keys.(query_bias - no_bias).scores[0]", minus(after, before), scores_for(1, 1, 1)
    yield "level_keys.query_bias.weights[0]", weights_for(2, 1, 0)


def per_key_bias_changes_weights(rows: JsonObject) -> Tuples:
    """b_K on the second key alone is no common shift: the weights move."""
    yield "per_key_bias.key_bias.scores[0]", scores_for(1, 3, -1)
    yield "per_key_bias.key_bias.weights[0]", weights_for(1, 3, -1)


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


def run_check(check: Any, rows: JsonObject) -> JsonObject:
    """Return what a check finds: the largest error, and a line for each value that is off."""
    max_error, failures = 0.0, []
    try:
        for name, *derived, expected in check(rows):
            actual = derived[0] if derived else rows[name]
            if len(actual) != len(expected):
                failures.append(f"{name} has {len(actual)} values, should have {len(expected)}")
            for index, (value, right) in enumerate(zip(actual, expected)):
                max_error = max(abs(value - right), max_error)
                if not math.isclose(value, right, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
                    failures.append(f"{name}[{index}] is {value!r}, should be {right!r}")
    except (ArithmeticError, LookupError, ValueError) as error:
        failures.append(f"it cannot be worked out: {error!r}")
    verdict = {"passed": not failures, "max_error": max_error, "failures": failures}
    return {"name": check.__name__, "claim": CHECKS[check], **verdict}


def verify() -> Compared:
    """Return what results.json holds, and what to show of the built-in vectors."""
    level, none = [[1.0, 1.0], [0.0, 1.0], [-1.0, 1.0]], [0.0, 0.0]
    inputs = {"queries": QUERIES, "keys": KEYS, "query_bias": QUERY_BIAS, "key_bias": KEY_BIAS}
    first = {**inputs, "queries": QUERIES[:1]}
    cases = {
        "zero_query_bias": {**first, "query_bias": none},
        "level_keys": {**first, "keys": level},
        "per_key_bias": {**first, "key_bias": [none, KEY_BIAS, none]},
    }
    results, shown = compare(inputs)
    conditions, results["exceptions"] = dict(results["conditions"]), {}
    for exception, case in cases.items():
        compared = compare(case)[0]["conditions"]
        results["exceptions"][exception] = {"inputs": case, "conditions": compared}
        conditions.update({f"{exception}.{name}": compared[name] for name in CONDITIONS})
    rows = {}
    for name, condition in conditions.items():
        for field in "scores", "weights":
            rows.update({f"{name}.{field}[{i}]": row for i, row in enumerate(condition[field])})
    results["checks"] = [run_check(check, rows) for check in CHECKS]
    results["passed"] = all(check["passed"] for check in results["checks"])
    return results, shown


# Exact arithmetic: a float is an integer times a power of two, and integers know no rounding


class Exact:
    """The keys of inputs, without and with their bias, and exact arithmetic for queries with them.

    Each column of the keys becomes one integer, its digits the values, so that one product with
    q_t serves all keys: Kronecker substitution (von zur Gathen and Gerhard, "Modern Computer
    Algebra", section 8.4). half is added to a digit while it is bytes, which have no sign.
    """

    def __init__(self, inputs: JsonObject) -> None:
        """Find a power of two that makes all numbers whole, a size for the digits, the columns."""
        keys, key_biases = inputs["keys"], rows_of(inputs, "key_bias")
        rows = [*inputs["queries"], *rows_of(inputs, "query_bias"), *keys, *key_biases]
        self.power = max(value.as_integer_ratio()[1] for row in rows for value in row)
        sum_of_two = 2 * self.power * math.ceil(max(max(map(abs, row)) for row in rows))
        self.root = math.sqrt(len(keys[0]))
        self.size = (len(keys[0]) * sum_of_two**2).bit_length() // 8 + 1
        self.half = 1 << 8 * self.size - 1
        self.halves = int.from_bytes(self.half.to_bytes(self.size, "little") * len(keys), "little")
        whole_keys = list(map(self.whole, keys))
        biased_keys = list(map(plus, whole_keys, cycle(map(self.whole, key_biases))))
        self.keys = self.columns(whole_keys), self.columns(biased_keys)

    def whole(self, vector: Vector) -> Vector:
        """Return the integers that a vector is times the power of two."""
        return [n * (self.power // d) for n, d in map(float.as_integer_ratio, vector)]

    def columns(self, keys: Matrix) -> Vector:
        """Return the columns of whole keys, each as the digits of one integer."""
        columns = []
        for column in zip(*keys):
            digits = [(value + self.half).to_bytes(self.size, "little") for value in column]
            columns.append(int.from_bytes(b"".join(digits), "little") - self.halves)
        return columns

    def scaled(self, products: Vector) -> Vector:
        """Return the scores, or differences of scores, that products of whole vectors stand for."""
        unit = self.power**2
        return [product / unit / self.root for product in products]

    def weigh(self, query: Vector, columns: Vector, mask: Vector) -> tuple[Vector, Vector]:
        """Return the dot products of a whole query with the keys, and the weights."""
        size, half, total = self.size, self.half, sum(map(mul, query, columns)) + self.halves
        raw = total.to_bytes(size * len(mask), "little")
        dots = [
            int.from_bytes(raw[i : i + size], "little") - half for i in range(0, len(raw), size)
        ]
        sums = dots
        if any(mask):
            from fractions import Fraction

            # sqrt(d_k) with 256 binary places makes a mask commensurable with the products.
            unit = self.power**2 * Fraction(math.isqrt(len(query) << 512), 1 << 256)
            sums = [p + unit * Fraction(t) if CLOSED < t != 0 else p for p, t in zip(dots, mask)]
        peak = max(value for value, term in zip(sums, mask) if term > CLOSED)
        # Only differences are rounded: a common shift changes nothing, and no key costs a digit.
        row = self.scaled([value - peak for value in sums])
        return dots, softmax([s if t > CLOSED else t for s, t in zip(row, mask)])


# Number formats: significant bits, least step, largest number; float64 needs no rounding

FORMATS: JsonObject = {
    "float64": None,
    "float32": (24, 2.0**-149, 3.4028234663852886e38),
    "bfloat16": (8, 2.0**-133, 3.3895313892515355e38),
    "float16": (11, 2.0**-24, 65504.0),
}


def rounded(row: Vector, form: str) -> Vector:
    """Return a row in a format: to nearest, ties to even; all infinite if one is past its range."""
    if not FORMATS[form]:
        return row
    bits, least, largest = FORMATS[form]
    # Beside 1.5 * 2**52 steps of the format float64 has whole steps only, and rounds to them.
    many, fewest = 1.5 * 2.0 ** (105 - bits), 1.5 * 2.0**52 * least
    steps = [n if (n := many * math.ulp(value)) > fewest else fewest for value in row]
    near = [value + n - n for value, n in zip(row, steps)]
    return near if max(map(abs, near)) <= largest else [math.inf] * len(row)


# Vectors from a file

LARGEST = 1e30  # of a number in a file: nothing that is computed from it leaves float64's range
FIELDS = "description", "queries", "keys", "query_bias", "key_bias", "mask", "layer_weights"


def require(holds: object, what: str, value: Any, should: str) -> None:
    """Raise a ValueError that shows a value and says what it should be, unless that holds."""
    if not holds:
        text = json.dumps(value)
        raise ValueError(f"{what} is {text[:40]}{'...' * (len(text) > 40)}, should be {should}")


def shape_of(where: str, value: Any) -> list[int]:
    """Return the shape of a number, a vector or a matrix; a ValueError says where it is none."""
    if not isinstance(value, list):
        in_mask = where.startswith("mask")
        number = isinstance(value, float) and abs(value) <= LARGEST
        should = f"a number of at most {LARGEST:g} in size" + ", or null to close it" * in_mask
        require(number or (in_mask and value in (None, CLOSED)), where, value, should)
        return []
    require(value, where, value, "a list with something in it")
    # Nearly all vectors are as they should be: a look at each number would take long.
    sizes = list(map(abs, value)) if set(map(type, value)) == {float} else [math.inf]
    if max(sizes) <= LARGEST and not math.isnan(sum(sizes)):
        return [len(value)]
    shapes = [shape_of(f"{where}[{i}]", item) for i, item in enumerate(value)]
    for i, shape in enumerate(shapes):
        should = f"{shapes[0]} as that of {where}[0]"
        require(shape == shapes[0], f"the shape of {where}[{i}]", shape, should)
    return [len(value), *shapes[0]]


def unique(pairs: list[Any]) -> JsonObject:
    """Return a JSON object; a ValueError names a field that is given twice."""
    fields = {}
    for name, value in pairs:
        require(name not in fields, "a field", name, "given once")
        fields[name] = value
    return fields


def read_inputs(path: str) -> JsonObject:
    """Return the inputs in a file, with CLOSED in the mask; a ValueError says what is off."""
    show_progress("reading")
    with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
        text = file.read()
    try:
        given = json.loads(text.decode("utf-8-sig"), parse_int=float, object_pairs_hook=unique)
    except ValueError as error:
        raise ValueError(f"{error}; should be one JSON object in UTF-8") from None
    given = given["inputs"] if isinstance(given, dict) and "inputs" in given else given
    fields, shapes = ", ".join(FIELDS), {}
    require(isinstance(given, dict), "it", given, f"an object with the fields {fields}")
    for name, value in given.items():
        require(name in FIELDS, "a field", name, f"among {fields}")
        kind, words = (str, "a text") if name == "description" else (list, "lists of numbers")
        require(value is None or isinstance(value, kind), name, value, words)
        if isinstance(value, list):
            shapes[name] = shape_of(name, value)
    for name in "queries", "keys":
        require(len(shapes.get(name, "")) == 2, name, given.get(name), "a list of vectors")
    (n_q, d_k), (n_k, _) = shapes["queries"], shapes["keys"]
    for name, *allowed in (
        ("keys", [n_k, d_k]),
        ("query_bias", [d_k], [n_q, d_k]),
        ("key_bias", [d_k], [n_k, d_k]),
        ("mask", [n_q, n_k]),
        ("layer_weights", [n_q, min(n_k, shapes.get("layer_weights", [n_k])[-1])]),
    ):
        shape = shapes.get(name, allowed[0])
        require(shape in allowed, f"the shape of {name}", shape, " or ".join(map(str, allowed)))
    for i, row in enumerate(given.get("mask") or []):
        given["mask"][i] = [CLOSED if term is None else term for term in row]
        should = f"left out with queries[{i}], or open somewhere"
        require(max(given["mask"][i]) > CLOSED, f"mask[{i}]", "closed to all keys", should)
    return {name: given[name] for name in FIELDS if name in given}


# The JSON


def json_text(value: Any, indent: str = "\n") -> str:
    """Return a value as JSON: a vector, as any list of plain values, is on one line."""
    deeper = indent + "  "
    if isinstance(value, dict):
        brackets = "{}"
        items = [f'"{name}": {json_text(item, deeper)}' for name, item in value.items()]
    elif isinstance(value, list) and value and isinstance(value[0], (dict, list, str)):
        brackets, items = "[]", [json_text(item, deeper) for item in value]
    elif isinstance(value, str):
        return json.dumps(value)
    else:
        # JSON has only null for a closed pair, an overflow, and what a fault has made a NaN.
        text = json.dumps(value).replace("NaN", "null").replace("-Inf", "Inf")
        return text.replace("Infinity", "null")
    return brackets[0] + deeper + f",{deeper}".join(items) + indent + brackets[1]


# The report. Its conditions, and the picture's, stand in pairs that a common key bias leaves equal.

PAIRED = "no_bias", "key_bias", "query_bias", "query_and_key_bias"
LABELS = {name: name.replace("_", " ") for name in PAIRED}
LAYER_TOLERANCE = 0.01  # a float32 layer is within about 1e-6 of what is computed for it
TITLE = "Query bias and key bias in one attention head, score = q . k / sqrt(d_k)"
THE_LAYER = "The layer's own weights are within {:.2g} of those computed with both biases."
NOT_THE_LAYER = """NOT THIS LAYER: its own weights are up to {:.2g} from those with both biases.
What follows is about another head: look at how vectors, biases and mask are given."""
NO_LAYER = "No layer_weights are given: nothing has shown that these vectors are the layer's."
READING = """The first table is the formula. The second is rounding: what a bias adds to the
row without it is what that bias costs in the format."""
ONE_KEY_BIAS = """With one key bias for all keys this can only confirm the algebra: RoPE, QK-norm
and attention sinks need a bias for each row."""
SCOPE = """Scope: one head, q and k of the same size, the same b_K on every key, softmax
over a row, whatever mask or term is added to the scores. Not with RoPE, QK-norm
or attention sinks. A property of this formula, no advice to remove a bias."""


def fixed(number: float | None, decimals: int = 6) -> str:
    """Return a number in nine characters at most, a zero without a sign, nothing for None."""
    if number is None:
        return ""
    number = round(number, decimals) + 0.0
    texts = [f"{number:{kind}}" for kind in (f".{decimals}f", ".4f", ".1f", ".2e")]
    return next(text for text in texts if len(text) <= 9)


def brief(vectors: Any) -> str:
    """Return a vector as a text, its first three numbers: (2, -1). Of a large matrix, the shape."""
    if not vectors:
        return "none"
    if isinstance(vectors[0], list):
        text = ", ".join(map(brief, vectors[:9]))
        return text if len(text) <= 40 else f"{len(vectors)} x {len(vectors[0])}"
    numbers = [f"{value:.3g}" for value in vectors[:3]] + ["..."] * (len(vectors) > 3)
    return f"({', '.join(numbers)})"


def visible(text: str, encoding: str, columns: int = 10000) -> str:
    """Return a text as a stream of this encoding can show it, cut at a character to its columns."""
    shown, end = "", 0
    for c in text[: columns + 1]:
        shown += c if c.isprintable() and c.encode(encoding, "ignore") else ascii(c)[1:-1]
        # No character fills more columns than it has bytes in UTF-8.
        if len(shown.encode()) <= columns - 3:
            end = len(shown)
    return shown if len(shown.encode()) <= columns else shown[:end] + "..."


def header(inputs: JsonObject, encoding: str) -> list[str]:
    """Return lines that tell what the inputs are."""
    vectors = [brief(inputs.get(name)) for name in FIELDS[1:5]]
    text = visible(inputs.get("description") or "", encoding, 90)
    return "queries {}; keys {}\nb_Q {}; b_K {}\n{}".format(*vectors, text).splitlines()


def entries(shown: JsonObject, name: str) -> Tuples:
    """Yield the label, score, amount added and weight of eight keys, or of seven and all others."""
    (row, weights), added = shown["float64", name], shown["added", name]
    largest = list(map(max, zip(*[shown["float64", other][1] for other in CONDITIONS])))
    order = sorted(range(len(largest)), key=largest.__getitem__, reverse=True)
    most = 8 if len(order) <= 8 else 7
    for j in sorted(order[:most]):
        mask = f" {shown['mask'][j]:+.3g}" * (shown["mask"][j] != 0)
        yield f"keys[{j}]{mask}", row[j], None if name == "no_bias" else added[j], weights[j]
    if order[most:]:
        rest = math.fsum(weights[j] for j in order[most:])
        yield f"the other {len(order) - most}", None, None, rest


def table(shown: JsonObject) -> str:
    """Return the shown query line by line: each key's score, what the bias added, its weight."""
    wide = max(len(label) for label, *_ in entries(shown, "no_bias"))
    query = f"queries[{shown['query']}]"
    lines = [f"{query:18}  {'key':{wide}}      score  bias adds    weight"]
    for name, label in LABELS.items():
        for k, (key, score, added, weight) in enumerate(entries(shown, name)):
            bar = "#" * round(22 * min(1, weight))
            figures = f"{fixed(score):>9}  {fixed(added):>9}  {fixed(weight):>8}  {bar}"
            lines.append(f"{'' if k else label:18}  {key:{wide}}  {figures}".rstrip())
        lines += [""] * (name == "key_bias")
    return "\n".join(lines)


def tables(largest: JsonObject) -> list[str]:
    """Return what the biases move in exact arithmetic, and how far rounding moves the weights."""
    exact = ["in exact arithmetic  scores moved by    largest change of a weight"]
    rounding = ["rounding moves a weight by" + "".join(f"{form:>10}" for form in FORMATS)]
    for name, label in LABELS.items():
        errors = [f"{largest[form, name][0]:.2g}".replace("inf", "overflow") for form in FORMATS]
        rounding.append(f"{label:26}" + "".join(f"{error:>10}" for error in errors))
        change, i, j = largest["exact", name]
        moved_by = "a relative change" if largest["spread", name][0] else "a common shift"
        place = f"{change:.6g} at weights[{i}][{j}]" if change else "0"
        exact += [f"{label:19}  {moved_by:17}  {place}"] * (name != "no_bias")
    return ["\n".join(exact), "\n".join([*rounding, READING])]


def report(results: JsonObject, shown: JsonObject, outputs: list[str], encoding: str) -> str:
    """Return the report, in ASCII but for the user's own words; it ends with what was written."""
    inputs, checks = results["inputs"], results.get("checks", [])
    layer, key_bias = results.get("layer_weights_error"), inputs.get("key_bias")
    names = ["to standard output" if name == "-" else visible(name, encoding) for name in outputs]
    end = f"wrote {' and '.join(names)}" if names else "nothing written, as there is no --output"
    title = "\n".join([TITLE, *header(inputs, encoding)])
    blocks = [title, table(shown), *tables(shown["largest"])]
    lines = ["     check                              error claim"]
    for check in checks:
        verdict, failures = "PASS" if check["passed"] else "FAIL", check["failures"]
        lines.append("{} {name:34} {max_error:<5.1g} {claim}".format(verdict, **check))
        lines += [f"     {failure}" for failure in failures[:1]]
        if len(failures) > 1:
            lines.append(f"     and {len(failures) - 1} more, listed in the JSON")
    if checks:
        blocks.append("\n".join(lines))
        passed = sum(check["passed"] for check in checks)
        end = f"{passed} of {len(checks)} checks passed at tolerance {TOLERANCE:g}, {end}"
    elif key_bias and not isinstance(key_bias[0], list):
        blocks.append(ONE_KEY_BIAS)
    if layer is not None:
        blocks.insert(0, (THE_LAYER if layer <= LAYER_TOLERANCE else NOT_THE_LAYER).format(layer))
    elif not checks:
        blocks.append(NO_LAYER)
    return "\n\n".join([*blocks, SCOPE, end]) + "\n"


# The picture

SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="780" viewBox="0 0 520 {0}"
 role="img" aria-labelledby="title desc" font-family="Helvetica, Arial, sans-serif" font-size="16">
<title id="title">{2}</title>
<desc id="desc">{3}</desc>
<style>.page {{ fill: #ffffff; stroke: #bbbbbb }} text {{ fill: #1a1a1a }}
.of_no_bias {{ fill: #1f5a96 }} .of_query_bias {{ fill: #c77700 }}
.number {{ text-anchor: end }} .bold {{ font-weight: bold }}
@media (prefers-color-scheme: dark) {{
.page {{ fill: #161b22; stroke: #444444 }} text {{ fill: #f0f0f0 }} .of_no_bias {{ fill: #3f7fc4 }}
}}</style><rect class="page" x="1" y="1" width="518" height="{1}" rx="6"/>
{4}
</svg>
"""
LINE = '<text class="{1}" x="20" y="{0}">{2}</text>'
ROW = """<text x="20" y="{0}">{1}</text><text class="number" x="212" y="{0}">{2}</text>
<text class="number" x="302" y="{0}">{3}</text><text x="{5:.0f}" y="{0}">{4}</text>
<rect class="{6}" x="318" y="{7}" width="{8:.3f}" height="17"/>"""


def sentence(shown: JsonObject, name: str) -> str:
    """Return what a bias did to the shown query, in exact arithmetic."""
    terms = enumerate(zip(shown["added", name], shown["mask"]))
    added = [(amount, f"keys[{j}]") for j, (amount, term) in terms if term > CLOSED]
    moved = [pair for pair in added if pair[0]]
    ends = min(added), max(added), *moved
    least, most, *others = (f"{'-' if a < 0 else '+'} {fixed(abs(a), 3)}" for a, _ in ends)
    what = f"scores {least} to {most}:"
    if not shown["moved"]["spread", name][0]:
        what = f"every score {least},"
    elif len(moved) == 1:
        what = f"{moved[0][1]} {others[0]}, the others 0:"
    end = "weights" if shown["moved"]["exact", name][0] else "no weight"
    return f"{LABELS[name].capitalize()}: {what} {end} moved"


def chart(inputs: JsonObject, shown: JsonObject) -> str:
    """Return an SVG of the shown query: each key's score, what the bias added, and its weight."""
    from html import escape
    from textwrap import wrap

    title = f"Attention weights of queries[{shown['query']}]"
    lines = [f"q = {brief(inputs['queries'][shown['query']])}", *header(inputs, "utf-8")]
    heads = {"no_bias": sentence(shown, "key_bias"), "query_bias": sentence(shown, "query_bias")}
    y, parts = 32, [LINE.format(32, "bold", title)]
    for line in chain(*[wrap(line, 62) for line in lines]):
        y += 21
        parts.append(LINE.format(y, "head", escape(line)))
    for name, label in LABELS.items():
        if name in heads:
            y, pair = y + 38, f"of_{name}"
            parts.append(LINE.format(y, "bold", heads[name]))
        y += 26
        parts.append(ROW.format(y, label, "score", "bias adds", "weight", 318, pair, y, 0))
        for key, score, added, weight in entries(shown, name):
            y, bar = y + 22, 140 * weight
            texts = key, fixed(score, 3), fixed(added, 3), fixed(weight, 3)
            parts.append(ROW.format(y, *texts, 324 + bar, pair, y - 13, bar))
    y += 20
    for line in wrap(SCOPE, 62):
        y += 20
        parts.append(LINE.format(y, "scope", line))
    text = SVG.format(y + 20, y + 18, title, ". ".join(heads.values()), "\n".join(parts))
    return text.encode("ascii", "xmlcharrefreplace").decode()


# The command line


def show_progress(text: str) -> None:
    """Show on a terminal how far the run is, in place of what was shown before."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"\r{text:16}\r", end="", file=sys.stderr, flush=True)


def watched(queries: Matrix) -> Iterator[Vector]:
    """Yield the queries, and show on a terminal how far the loop over them is."""
    for i, query in enumerate(queries):
        if i % (len(queries) // 100 + 1) == 0:
            show_progress(f"computing, {100 * i // len(queries)}%")
        yield query


def fail(what: str, error: Exception, hint: str) -> NoReturn:
    """Exit with 2 and one line on standard error: what failed, why, and what to try."""
    why = getattr(error, "strerror", None) or error
    say(f"{PROGRAM}: error: {what}: {why}; {hint}\n", sys.stderr, hint)
    sys.exit(2)


def say(text: str, stream: TextIO | None, hint: str) -> None:
    """Print a text at once; a stream that is closed, or that nobody reads on, is no error."""
    if stream is None:
        return
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        # Python flushes the stream again as it ends: what is left needs a place to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if stream is not sys.stderr and not isinstance(error, BrokenPipeError):
            fail("cannot print", error, hint)


def write(path: str, text: str) -> None:
    """Write a text; a regular file is replaced whole, its mode kept, or not at all."""
    if path == "-":
        if not sys.stdout:
            raise ValueError("it is closed")
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(newline="\n")
        say(text, sys.stdout, "try a file")
    elif os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    elif not os.path.basename(path):
        raise ValueError("it names no file")
    else:
        target, mode = os.path.realpath(path), None
        new = os.path.join(os.path.dirname(target), f".{os.urandom(8).hex()}.tmp")
        try:
            with open(path, "r+b") as old:  # asks the system whether it may be replaced
                mode = os.stat(old.fileno()).st_mode & 0o7777
        except FileNotFoundError:
            pass
        try:
            with open(new, "x", encoding="utf-8", newline="\n") as file:
                file.write(text)
            if mode is not None:
                os.chmod(new, mode)
            os.replace(new, target)
        finally:
            if os.path.exists(new):
                os.unlink(new)


def same_file(one: Any, other: str) -> bool:
    """Tell whether two names lead to one file; the first may be a file descriptor."""
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return os.path.realpath(one or "") == os.path.realpath(other)


def command_line(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return what the command line asks for, with the names of all outputs."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Show by arithmetic that a key bias common to all keys moves no attention "
        "weight, and that a query bias can. A FILE may be - for standard input or output.",
        epilog="example: python3 verify_attention_bias.py --output results.json",
        # A width of its own: to ask the terminal for one, argparse imports shutil and all it needs.
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=78),
    )
    parser.add_argument("--input", metavar="FILE", help="your own inputs, as those in results.json")
    parser.add_argument("--output", metavar="FILE", help="the JSON (results.json without --input)")
    parser.add_argument("--chart", metavar="FILE", help="a picture of the report's table, as SVG")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    args = parser.parse_args(argv)
    if args.input is None and args.output is None:
        args.output = "results.json"
    args.outputs = [name for name in (args.output, args.chart) if name is not None]
    source = {None: [], "-": [0]}.get(args.input, [args.input])
    for one, other in combinations(source + args.outputs, 2):
        if same_file(one, other):
            parser.error(f"{other!r} is named twice, should be two files")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or 1 where a check failed or layer_weights are far off.

    argv is sys.argv[1:] where it is left out. Bad usage, unreadable input and an output that
    cannot be written raise SystemExit(2).

    >>> from contextlib import redirect_stderr, redirect_stdout
    >>> from io import StringIO
    >>> with redirect_stdout(StringIO()) as document, redirect_stderr(StringIO()) as report:
    ...     code = main(["--output", "-"])
    >>> code, report.getvalue().count("PASS"), json.loads(document.getvalue())["passed"]
    (0, 8, True)
    """
    args = command_line(argv)
    try:
        inputs = None if args.input is None else read_inputs(args.input)
    except (OSError, ValueError, RecursionError) as error:
        fail(f"cannot use {args.input!r}", error, "--input takes the vectors as JSON")
    results, shown = compare(inputs, bool(args.output)) if inputs else verify()
    show_progress("writing")
    for path in args.outputs:
        drawn = path == args.chart
        try:
            write(path, chart(results["inputs"], shown) if drawn else json_text(results) + "\n")
        except (OSError, ValueError) as error:
            fail(f"cannot write {path!r}", error, "try another file, or - for standard output")
    show_progress("")
    stream = sys.stderr if "-" in args.outputs else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    say(report(results, shown, args.outputs, encoding), stream, "any file asked for is written")
    return int(not results.get("passed", results.get("layer_weights_error", 0) <= LAYER_TOLERANCE))


if __name__ == "__main__":
    sys.exit(main())
