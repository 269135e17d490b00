"""results.json: strictly JSON, right in every value, enough to repeat it all.

Each check has a test here that works from the file alone: run one by its name, such as
python3 -m unittest tests.test_results.ChecksFromTheFile.test_3_key_bias_keeps_weights
"""

from __future__ import annotations

import math
import unittest
from itertools import combinations
from typing import Any

import verify_attention_bias
from tests import (
    CONDITIONS,
    DATA,
    FORMATS,
    PROJECT,
    Exact,
    biased_vectors,
    exact_scores,
    exact_weights,
    format_error,
    kept_exactly,
    strict_json,
)

COMMITTED = (PROJECT / "results.json").read_bytes()
RESULTS = strict_json(COMMITTED)
EXCEPTIONS = RESULTS["exceptions"]


def shape(value: Any) -> tuple[int, ...]:
    return (len(value), *shape(value[0])) if isinstance(value, list) else ()


class Text(Exact):
    def test_a_run_gives_the_committed_file(self) -> None:
        text = verify_attention_bias.json_text(verify_attention_bias.verify()[0])
        self.assert_same_json(strict_json(text), RESULTS)

    def test_the_committed_file_is_written_as_a_run_writes_it(self) -> None:
        self.assertEqual(verify_attention_bias.json_text(RESULTS) + "\n", COMMITTED.decode())

    def test_the_text_is_ascii_with_unix_line_ends_and_a_vector_to_a_line(self) -> None:
        text = COMMITTED.decode("ascii")
        self.assertNotIn("\r", text)
        self.assertTrue(text.endswith("}\n"))
        self.assertIn("\n      [1.0, 0.0],\n", text)
        self.assertLess(max(map(len, text.splitlines())), 100)
        self.assertLess(len(text.splitlines()), 340)


class Values(Exact):
    def test_every_value_agrees_with_the_reference(self) -> None:
        reference = strict_json((DATA / "built-in.expected.json").read_bytes())
        self.assertEqual(list(RESULTS["conditions"]), list(reference))
        for name, condition in reference.items():
            for field, expected in condition.items():
                with self.subTest(condition=name, field=field):
                    self.assert_exact(RESULTS["conditions"][name][field], expected)

    def test_every_value_follows_from_the_inputs_in_the_file(self) -> None:
        for case in [RESULTS, *EXCEPTIONS.values()]:
            inputs, conditions = case["inputs"], case["conditions"]
            unbiased = exact_weights(inputs, "no_bias")
            for name in CONDITIONS:
                with self.subTest(inputs=inputs, condition=name):
                    queries, keys = biased_vectors(inputs, name)
                    rows = [exact_scores(query, keys) for query in queries]
                    weights = exact_weights(inputs, name)
                    self.assert_exact(conditions[name]["scores"], rows)
                    self.assert_exact(conditions[name]["weights"], weights)
                    if name == "no_bias":
                        continue
                    kept = kept_exactly(inputs, name)
                    self.assertIs(conditions[name]["relative_scores_kept"], kept)
                    pairs = [pair for rows in zip(weights, unbiased) for pair in zip(*rows)]
                    change = max(abs(a - b) for a, b in pairs)
                    self.assert_exact(conditions[name]["max_weight_change"], change)
                    self.assertIs(conditions[name]["max_weight_change"] == 0, kept)

    def test_the_formats(self) -> None:
        for form in FORMATS:
            for name in CONDITIONS:
                with self.subTest(format=form, condition=name):
                    expected = format_error(RESULTS["inputs"], name, form)
                    self.assert_exact(RESULTS["formats"][form][name], expected)


class ChecksFromTheFile(Exact):
    """The eight checks, repeated with nothing but the file."""

    def setUp(self) -> None:
        self.inputs = RESULTS["inputs"]
        self.no_bias, self.query_bias, self.key_bias, self.both = RESULTS["conditions"].values()

    def scores_for(self, *numerators: int) -> list[float]:
        return [numerator / math.sqrt(2) for numerator in numerators]

    def weights_for(self, *numerators: int) -> list[float]:
        powers = [math.exp(score) for score in self.scores_for(*numerators)]
        return [power / math.fsum(powers) for power in powers]

    def added(self, condition: Any, i: int, before: Any = None) -> list[float]:
        return [
            b - a for a, b in zip((before or self.no_bias)["scores"][i], condition["scores"][i])
        ]

    def assert_moved(self, row: list[float], other: list[float]) -> None:
        self.assertGreater(max(abs(a - b) for a, b in zip(row, other)), 1e-3)

    def test_1_base_scores_and_weights(self) -> None:
        a = 1 / math.sqrt(2)
        total = math.exp(a) + 1 + math.exp(-a)
        self.assert_exact(self.no_bias["scores"][0], [a, 0.0, -a])
        weights = [math.exp(a) / total, 1 / total, math.exp(-a) / total]
        self.assert_exact(self.no_bias["weights"][0], weights)
        cases = [case["conditions"] for case in EXCEPTIONS.values()]
        for conditions in [RESULTS["conditions"], *cases]:
            for condition in conditions.values():
                for row in condition["weights"]:
                    self.assert_exact(math.fsum(row), 1.0)

    def test_2_key_bias_shifts_scores_equally(self) -> None:
        self.assert_exact(self.added(self.key_bias, 0), self.scores_for(3, 3, 3))
        before, after = self.no_bias["scores"][0], self.key_bias["scores"][0]
        for a, b in combinations(range(3), 2):
            self.assert_exact(after[a] - after[b], before[a] - before[b])
        self.assert_exact(self.key_bias["weights"][0], self.weights_for(4, 3, 2))

    def test_3_key_bias_keeps_weights(self) -> None:
        self.assertEqual(self.key_bias["weights"][0], self.no_bias["weights"][0])
        self.assertEqual(RESULTS["checks"][2]["max_error"], 0.0)

    def test_4_query_bias_changes_relative_scores(self) -> None:
        keys, bias = self.inputs["keys"], self.inputs["query_bias"]
        for i, numerators in enumerate([(1, 1, -1), (2, 0, -2)]):
            scores, weights = self.query_bias["scores"][i], self.query_bias["weights"][i]
            added = self.added(self.query_bias, i)
            self.assert_exact(added, self.scores_for(0, 1, 0))
            for a, b in combinations(range(3), 2):
                change = sum(x * (y - z) for x, y, z in zip(bias, keys[a], keys[b])) / math.sqrt(2)
                self.assert_exact(added[a] - added[b], change)
                self.assert_exact(weights[a] / weights[b], math.exp(scores[a] - scores[b]))
            self.assert_exact(weights, self.weights_for(*numerators))
            self.assert_moved(weights, self.no_bias["weights"][i])

    def test_5_both_biases_match_query_bias(self) -> None:
        for i, products in enumerate([(1, 0, -1), (2, -1, -2)]):
            query_key, key_bias = (3, 8)[i], -2
            terms = [p + b + query_key + key_bias for p, b in zip(products, (0, 1, 0))]
            self.assert_exact(self.both["scores"][i], self.scores_for(*terms))
            self.assert_exact(self.both["weights"][i], self.query_bias["weights"][i])
            self.assert_exact(self.both["weights"][i], self.weights_for(*[(2, 2, 0), (8, 6, 4)][i]))

    def test_6_other_query_row(self) -> None:
        self.assert_exact(self.no_bias["scores"][1], self.scores_for(2, -1, -2))
        self.assert_exact(self.added(self.key_bias, 1), self.scores_for(8, 8, 8))
        self.assert_moved(self.added(self.key_bias, 1), self.added(self.key_bias, 0))
        self.assert_exact(self.no_bias["weights"][1], self.weights_for(2, -1, -2))
        self.assert_exact(self.key_bias["weights"][1], self.no_bias["weights"][1])
        self.assert_exact(self.key_bias["weights"][1], self.weights_for(10, 7, 6))

    def test_7_ineffective_query_bias(self) -> None:
        zero, level = (EXCEPTIONS[name]["conditions"] for name in ("zero_query_bias", "level_keys"))
        for part in "scores", "weights":
            self.assertEqual(zero["query_bias"][part], zero["no_bias"][part])
            self.assertEqual(zero["no_bias"][part][0], self.no_bias[part][0])
            self.assert_exact(level["no_bias"][part][0], self.no_bias[part][0])
        added = self.added(level["query_bias"], 0, level["no_bias"])
        self.assert_exact(added, self.scores_for(1, 1, 1))
        self.assert_exact(level["query_bias"]["weights"], level["no_bias"]["weights"])
        self.assert_exact(level["query_bias"]["weights"][0], self.weights_for(2, 1, 0))

    def test_8_per_key_bias_changes_weights(self) -> None:
        condition = EXCEPTIONS["per_key_bias"]["conditions"]["key_bias"]
        self.assert_exact(condition["scores"][0], self.scores_for(1, 3, -1))
        self.assert_exact(condition["weights"][0], self.weights_for(1, 3, -1))
        self.assert_moved(condition["weights"][0], self.no_bias["weights"][0])

    def test_each_check_has_its_test(self) -> None:
        for i, check in enumerate(RESULTS["checks"]):
            self.assertTrue(hasattr(self, f"test_{i + 1}_{check['name']}"))


class Layout(unittest.TestCase):
    def test_the_fields_and_their_order(self) -> None:
        fields = ["tolerance", "inputs", "conditions", "formats", "exceptions", "checks", "passed"]
        self.assertEqual(list(RESULTS), fields)
        self.assertEqual(RESULTS["tolerance"], {"relative": 1e-12, "absolute": 1e-12})
        inputs = {
            "queries": [[1, 0], [2, -1]],
            "keys": [[1, 0], [0, 1], [-1, 0]],
            "query_bias": [0, 1],
            "key_bias": [3, -2],
        }
        self.assertEqual(RESULTS["inputs"], inputs)
        self.assertIs(RESULTS["passed"], True)

    def test_the_conditions(self) -> None:
        cases = [(RESULTS, 2), *[(case, 1) for case in EXCEPTIONS.values()]]
        for case, n_q in cases:
            self.assertEqual(list(case["conditions"]), CONDITIONS)
            for name, condition in case["conditions"].items():
                fields = ["scores", "weights", "max_weight_change", "relative_scores_kept"]
                self.assertEqual(list(condition), fields[:2] if name == "no_bias" else fields)
                self.assertEqual(shape(condition["scores"]), (n_q, 3))
                self.assertEqual(shape(condition["weights"]), (n_q, 3))
        kept = [RESULTS["conditions"][name]["relative_scores_kept"] for name in CONDITIONS[1:]]
        self.assertEqual(kept, [False, True, False])

    def test_the_formats(self) -> None:
        self.assertEqual(list(RESULTS["formats"]), list(FORMATS))
        for errors in RESULTS["formats"].values():
            self.assertEqual(list(errors), CONDITIONS)

    def test_the_exceptions(self) -> None:
        first = {**RESULTS["inputs"], "queries": [[1, 0]]}
        expected = {
            "zero_query_bias": {**first, "query_bias": [0, 0]},
            "level_keys": {**first, "keys": [[1, 1], [0, 1], [-1, 1]]},
            "per_key_bias": {**first, "key_bias": [[0, 0], [3, -2], [0, 0]]},
        }
        self.assertEqual(list(EXCEPTIONS), list(expected))
        for name, case in EXCEPTIONS.items():
            self.assertEqual(list(case), ["inputs", "conditions"])
            self.assertEqual(case["inputs"], expected[name])

    def test_the_checks(self) -> None:
        for check in RESULTS["checks"]:
            fields = ["name", "claim", "passed", "max_error", "failures"]
            self.assertEqual(list(check), fields)
            self.assertIs(check["passed"], True)
            self.assertIsInstance(check["max_error"], float)
            self.assertEqual(check["failures"], [])
