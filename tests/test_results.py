"""results.json: what a run writes, strictly JSON, right in every value, enough to repeat it all."""

from __future__ import annotations

import math
import unittest
from itertools import combinations
from typing import Any

from tests import DATA, PROJECT, Exact, exact_scores, exact_softmax, plus, run, strict_json

COMMITTED = (PROJECT / "results.json").read_bytes()
RESULTS = strict_json(COMMITTED)


def shape(value: Any) -> tuple[int, ...]:
    return (len(value), *shape(value[0])) if isinstance(value, list) else ()


class Bytes(unittest.TestCase):
    def test_a_run_writes_the_committed_file(self) -> None:
        self.assertEqual(run("--output", "-").stdout, COMMITTED)

    def test_the_text_is_ascii_with_unix_line_ends_and_a_vector_to_a_line(self) -> None:
        text = COMMITTED.decode("ascii")
        self.assertNotIn("\r", text)
        self.assertTrue(text.endswith("}\n"))
        self.assertIn("\n      [1.0, 0.0],\n", text)
        self.assertLess(max(map(len, text.splitlines())), 100)


class Values(Exact, unittest.TestCase):
    def test_every_value_agrees_with_the_reference(self) -> None:
        reference = strict_json((DATA / "built-in.expected.json").read_bytes())
        self.assertEqual(list(RESULTS["conditions"]), list(reference))
        for name, condition in reference.items():
            for field, expected in condition.items():
                with self.subTest(condition=name, field=field):
                    self.assert_exact(RESULTS["conditions"][name][field], expected)

    def test_every_score_and_weight_follows_from_the_vectors_in_the_file(self) -> None:
        inputs = RESULTS["inputs"]
        queries, keys = inputs["queries"], inputs["keys"]
        biased_queries = [plus(query, inputs["query_bias"]) for query in queries]
        biased_keys = [plus(key, inputs["key_bias"]) for key in keys]
        pairs = {
            "no_bias": (queries, keys),
            "query_bias": (biased_queries, keys),
            "key_bias": (queries, biased_keys),
            "query_and_key_bias": (biased_queries, biased_keys),
        }
        for name, case in RESULTS["exceptions"].items():
            pairs[name] = (
                [plus(query, case["query_bias"]) for query in case["queries"]],
                [plus(key, bias) for key, bias in zip(case["keys"], case["key_biases"])],
            )
        for name, case in {**RESULTS["conditions"], **RESULTS["exceptions"]}.items():
            with self.subTest(case=name):
                rows = [exact_scores(query, pairs[name][1]) for query in pairs[name][0]]
                self.assert_exact(case["scores"], rows)
                self.assert_exact(case["weights"], [exact_softmax(row) for row in rows])


class ChecksFromTheFile(unittest.TestCase):
    """The eight checks, repeated with nothing but the file."""

    def setUp(self) -> None:
        self.inputs = RESULTS["inputs"]
        self.no_bias, self.query_bias, self.key_bias, self.both = RESULTS["conditions"].values()

    def equal(self, actual: float, expected: float) -> None:
        same = math.isclose(actual, expected, rel_tol=1e-12, abs_tol=1e-12)
        self.assertTrue(same, f"{actual!r} is not {expected!r}")

    def equal_rows(self, actual: list[float], expected: list[float]) -> None:
        self.assertEqual(len(actual), len(expected))
        for pair in zip(actual, expected):
            self.equal(*pair)

    def moved(self, row: list[float], other: list[float]) -> None:
        self.assertGreater(max(abs(a - b) for a, b in zip(row, other)), 1e-3)

    def added(self, condition: Any, i: int) -> list[float]:
        return [b - a for a, b in zip(self.no_bias["scores"][i], condition["scores"][i])]

    def test_1_base_scores_and_weights(self) -> None:
        a = 1 / math.sqrt(2)
        total = math.exp(a) + 1 + math.exp(-a)
        self.equal_rows(self.no_bias["scores"][0], [a, 0, -a])
        self.equal_rows(
            self.no_bias["weights"][0], [math.exp(a) / total, 1 / total, math.exp(-a) / total]
        )
        for condition in RESULTS["conditions"].values():
            for row in condition["weights"]:
                self.equal(math.fsum(row), 1)

    def test_2_key_bias_shifts_scores_equally(self) -> None:
        self.equal_rows(self.added(self.key_bias, 0), [3 / math.sqrt(2)] * 3)

    def test_3_key_bias_keeps_weights(self) -> None:
        self.assertEqual(self.key_bias["weights"][0], self.no_bias["weights"][0])

    def test_4_query_bias_changes_relative_scores(self) -> None:
        keys, bias = self.inputs["keys"], self.inputs["query_bias"]
        scores, weights = self.query_bias["scores"][0], self.query_bias["weights"][0]
        added = self.added(self.query_bias, 0)
        for a, b in combinations(range(3), 2):
            change = sum(x * (y - z) for x, y, z in zip(bias, keys[a], keys[b])) / math.sqrt(2)
            self.equal(added[a] - added[b], change)
            self.equal(weights[a] / weights[b], math.exp(scores[a] - scores[b]))
        self.moved(weights, self.no_bias["weights"][0])

    def test_5_both_biases_match_query_bias(self) -> None:
        for i in 0, 1:
            together = plus(self.added(self.query_bias, i), self.added(self.key_bias, i))
            cross = -2 / math.sqrt(2)
            self.equal_rows(self.added(self.both, i), [value + cross for value in together])
            self.equal_rows(self.both["weights"][i], self.query_bias["weights"][i])

    def test_6_other_query_row(self) -> None:
        self.equal_rows(self.added(self.key_bias, 1), [8 / math.sqrt(2)] * 3)
        self.moved(self.added(self.key_bias, 1), self.added(self.key_bias, 0))
        self.equal_rows(self.key_bias["weights"][1], self.no_bias["weights"][1])

    def test_7_ineffective_query_bias(self) -> None:
        zero, level, level_biased, _ = RESULTS["exceptions"].values()
        for part in "scores", "weights":
            self.assertEqual(zero[part][0], self.no_bias[part][0])
        shifted = [score + 1 / math.sqrt(2) for score in level["scores"][0]]
        self.equal_rows(level_biased["scores"][0], shifted)
        self.equal_rows(level_biased["weights"][0], level["weights"][0])

    def test_8_per_key_bias_changes_weights(self) -> None:
        case = RESULTS["exceptions"]["per_key_bias"]
        self.equal_rows(case["scores"][0], [n / math.sqrt(2) for n in (1, 3, -1)])
        self.moved(case["weights"][0], self.no_bias["weights"][0])


class Layout(unittest.TestCase):
    def test_the_fields_and_their_order(self) -> None:
        self.assertEqual(
            list(RESULTS),
            ["tolerance", "inputs", "conditions", "exceptions", "checks", "passed"],
        )
        self.assertEqual(RESULTS["tolerance"], {"relative": 1e-12, "absolute": 1e-12})
        self.assertEqual(
            RESULTS["inputs"],
            {
                "queries": [[1, 0], [2, -1]],
                "keys": [[1, 0], [0, 1], [-1, 0]],
                "query_bias": [0, 1],
                "key_bias": [3, -2],
            },
        )
        self.assertIs(RESULTS["passed"], True)

    def test_the_conditions(self) -> None:
        names = ["no_bias", "query_bias", "key_bias", "query_and_key_bias"]
        self.assertEqual(list(RESULTS["conditions"]), names)
        for name, condition in RESULTS["conditions"].items():
            fields = ["scores", "weights", "max_weight_change", "relative_scores_kept"]
            self.assertEqual(list(condition), fields[:2] if name == "no_bias" else fields)
            self.assertEqual(shape(condition["scores"]), (2, 3))
            self.assertEqual(shape(condition["weights"]), (2, 3))
        kept = [RESULTS["conditions"][name]["relative_scores_kept"] for name in names[1:]]
        self.assertEqual(kept, [False, True, False])

    def test_the_exceptions(self) -> None:
        names = ["zero_query_bias", "level_keys", "level_keys_query_bias", "per_key_bias"]
        shapes = {
            "queries": (1, 2),
            "keys": (3, 2),
            "query_bias": (2,),
            "key_biases": (3, 2),
            "scores": (1, 3),
            "weights": (1, 3),
        }
        self.assertEqual(list(RESULTS["exceptions"]), names)
        for case in RESULTS["exceptions"].values():
            self.assertEqual({field: shape(value) for field, value in case.items()}, shapes)

    def test_the_checks(self) -> None:
        for check in RESULTS["checks"]:
            fields = ["name", "claim", "passed", "max_error", "failures"]
            self.assertEqual(list(check), fields)
            self.assertIs(check["passed"], True)
            self.assertIsInstance(check["max_error"], float)
            self.assertEqual(check["failures"], [])


if __name__ == "__main__":
    unittest.main()
