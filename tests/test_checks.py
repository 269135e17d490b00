"""Each of the eight checks: it passes, its claim holds by other means, and faults are caught."""

from __future__ import annotations

import contextlib
import io
import math
import tempfile
import unittest
from fractions import Fraction
from pathlib import Path
from typing import Any, Callable
from unittest import mock

import verify_attention_bias
from tests import CONDITIONS, Exact, exact_scores, exact_softmax, strict_json
from verify_attention_bias import KEY_BIAS, KEYS, QUERIES, QUERY_BIAS

Row = list[float]
Rows = list[list[float]]

# Faults, each to stand in for scores or softmax. They have arithmetic of their own, and know the
# built-in vectors where a bias is to go astray.

BIASED_KEYS = [[4.0, -2.0], [3.0, -1.0], [2.0, -2.0]]
BIASED_QUERIES = [[1.0, 1.0], [2.0, 0.0]]


def dots(query: Row, keys: Rows) -> Row:
    return [query[0] * key[0] + query[1] * key[1] for key in keys]


def true_scores(query: Row, keys: Rows) -> Row:
    return [dot / math.sqrt(2) for dot in dots(query, keys)]


def true_softmax(row: Row) -> Row:
    powers = [math.exp(score - max(row)) for score in row]
    return [power / math.fsum(powers) for power in powers]


def scores_without_scale(query: Row, keys: Rows) -> Row:
    return dots(query, keys)


def scores_over_d_k(query: Row, keys: Rows) -> Row:
    return [dot / 2 for dot in dots(query, keys)]


def scores_one_off(query: Row, keys: Rows) -> Row:
    first, second, third = true_scores(query, keys)
    return [first, second, third + 1e-10]


def scores_key_bias_left_out(query: Row, keys: Rows) -> Row:
    return true_scores(query, KEYS if keys == BIASED_KEYS else keys)


def scores_key_bias_on_query(query: Row, keys: Rows) -> Row:
    if keys == BIASED_KEYS:
        return true_scores([query[0] + KEY_BIAS[0], query[1] + KEY_BIAS[1]], KEYS)
    return true_scores(query, keys)


def scores_key_bias_on_one_key(query: Row, keys: Rows) -> Row:
    return true_scores(query, [KEYS[0], BIASED_KEYS[1], KEYS[2]] if keys == BIASED_KEYS else keys)


def scores_query_bias_on_keys(query: Row, keys: Rows) -> Row:
    if query in BIASED_QUERIES:
        query = QUERIES[BIASED_QUERIES.index(query)]
        keys = [[a + QUERY_BIAS[0], b + QUERY_BIAS[1]] for a, b in keys]
    return true_scores(query, keys)


def scores_query_bias_left_out(query: Row, keys: Rows) -> Row:
    if query in BIASED_QUERIES:
        query = QUERIES[BIASED_QUERIES.index(query)]
    return true_scores(query, keys)


def scores_second_query_unbiased(query: Row, keys: Rows) -> Row:
    return true_scores(query, KEYS if query[0] == 2 else keys)


def scores_per_key_bias_left_out(query: Row, keys: Rows) -> Row:
    return true_scores(query, KEYS if keys == [KEYS[0], BIASED_KEYS[1], KEYS[2]] else keys)


def scores_level_keys_raised(query: Row, keys: Rows) -> Row:
    raised = 1 if keys[0] == [1.0, 1.0] else 0
    return [score + raised for score in true_scores(query, keys)]


def scores_same_shift_for_all(query: Row, keys: Rows) -> Row:
    if keys == BIASED_KEYS:
        return [score + 3 / math.sqrt(2) for score in true_scores(query, KEYS)]
    return true_scores(query, keys)


def scores_second_row_without_scale(query: Row, keys: Rows) -> Row:
    return dots(query, keys) if query[0] == 2 else true_scores(query, keys)


def scores_zero_query_bias_moves(query: Row, keys: Rows) -> Row:
    # Of the three times that this query meets these keys, the last is the exception's.
    return true_scores([1.5, 0.0] if query == [1.0, 0.0] and keys == KEYS else query, keys)


def scores_far_too_large(query: Row, keys: Rows) -> Row:
    return [1000.0 * score for score in true_scores(query, keys)]


def softmax_too_short(row: Row) -> Row:
    return true_softmax(row)[:2]


def softmax_not_normalised(row: Row) -> Row:
    return [math.exp(score - max(row)) for score in row]


def softmax_constant(row: Row) -> Row:
    return [1 / len(row)] * len(row)


def softmax_zero(row: Row) -> Row:
    return [0.0] * len(row)


def softmax_nan(row: Row) -> Row:
    return [math.nan] * len(row)


def softmax_base_2(row: Row) -> Row:
    powers = [2 ** (score - max(row)) for score in row]
    return [power / math.fsum(powers) for power in powers]


def softmax_not_shift_invariant(row: Row) -> Row:
    squares = [1 + score * score for score in row]
    return [square / math.fsum(squares) for square in squares]


def softmax_one_off(row: Row) -> Row:
    first, second, third = true_softmax(row)
    return [first, second + 1e-9, third]


class CheckTests:
    """What is asked of each check: to pass, and to name what is off under each of its faults."""

    name: str
    faults: dict[Callable[..., Row], str]
    results: Any
    conditions: Any
    exceptions: Any

    @classmethod
    def setUpClass(cls) -> None:
        cls.results = verify_attention_bias.verify()[0]
        cls.conditions = cls.results["conditions"]
        cls.exceptions = cls.results["exceptions"]

    def check(self: Any, results: Any) -> dict[str, Any]:
        return next(check for check in results["checks"] if check["name"] == self.name)

    def test_passes(self: Any) -> None:
        check = self.check(self.results)
        self.assertIs(check["passed"], True)
        self.assertEqual(check["failures"], [])
        self.assertLess(check["max_error"], 1e-13)

    def test_catches_its_faults(self: Any) -> None:
        for fault, message in self.faults.items():
            with self.subTest(fault=fault.__name__):
                code, results, report = run_main(fault)
                check = self.check(results)
                self.assertEqual(code, 1)
                self.assertIs(results["passed"], False)
                self.assertIs(check["passed"], False)
                start = message.split(" is ")[0]
                named = [failure for failure in check["failures"] if failure.startswith(start)]
                self.assertTrue(named, check["failures"])
                if "should be" in message:
                    self.assert_same_text(named[0], message)
                lines = report.splitlines()
                at = next(i for i, line in enumerate(lines) if line.startswith(f"FAIL {self.name}"))
                self.assertEqual(lines[at + 1], f"     {check['failures'][0]}")
                self.assertLessEqual(max(map(len, lines)), 110)


def run_main(fault: Callable[..., Row]) -> tuple[int, dict[str, Any], str]:
    """Run main with a fault in place; return its exit code, the JSON and the report."""
    replaced = fault.__name__.split("_")[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "results.json")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            with mock.patch.object(verify_attention_bias, replaced, fault):
                code = verify_attention_bias.main(["--output", str(path)])
        return code, strict_json(path.read_bytes()), printed.getvalue()


class BaseScoresAndWeights(CheckTests, Exact):
    name = "base_scores_and_weights"
    faults = {
        scores_without_scale: "no_bias.scores[0][0] is 1.0, should be 0.7071067811865475",
        scores_over_d_k: "no_bias.scores[0][2] is -0.5, should be -0.7071067811865475",
        scores_one_off: "no_bias.scores[0][2] is -0.7071067810865475, "
        "should be -0.7071067811865475",
        softmax_not_normalised: "no_bias.weights[0][0] is 1.0, should be 0.575975345215362",
        softmax_constant: "no_bias.weights[0][2] is 0.3333333333333333, "
        "should be 0.14002924504337805",
        softmax_zero: "query_and_key_bias.weights[1].sum()[0] is 0.0, should be 1.0",
        softmax_nan: "per_key_bias.key_bias.weights[0].sum()[0] is nan, should be 1.0",
        softmax_too_short: "no_bias.weights[0] has 2 values, should have 3",
        softmax_base_2: "no_bias.weights[0][0] is 0.5030784492722891, should be 0.575975345215362",
        softmax_one_off: "level_keys.no_bias.weights[0].sum()[0] is 1.000000001, should be 1.0",
    }

    def test_claim(self) -> None:
        scores = exact_scores(QUERIES[0], KEYS)
        self.assert_exact(self.conditions["no_bias"]["scores"][0], scores)
        self.assert_exact(self.conditions["no_bias"]["weights"][0], exact_softmax(scores))
        cases = [case["conditions"] for case in self.exceptions.values()]
        for conditions in [self.conditions, *cases]:
            for condition in conditions.values():
                for row in condition["weights"]:
                    self.assert_exact(float(sum(map(Fraction, row))), 1)


class KeyBiasShiftsScoresEqually(CheckTests, Exact):
    name = "key_bias_shifts_scores_equally"
    faults = {
        scores_key_bias_left_out: "(key_bias - no_bias).scores[0][0] is 0.0, "
        "should be 2.1213203435596424",
        scores_key_bias_on_query: "differences of key_bias.scores[0][0] is 4.242640687119285, "
        "should be 0.7071067811865475",
        scores_key_bias_on_one_key: "(key_bias - no_bias).scores[0][2] is 0.0, "
        "should be 2.1213203435596424",
        softmax_not_shift_invariant: "key_bias.weights[0][0] is 0.5142857142857142, "
        "should be 0.575975345215362",
    }

    def test_claim(self) -> None:
        shift = exact_scores(QUERIES[0], [KEY_BIAS])[0]
        before = self.conditions["no_bias"]["scores"][0]
        after = self.conditions["key_bias"]["scores"][0]
        self.assertEqual(shift * shift * 2, 9)
        self.assert_exact([a - b for a, b in zip(after, before)], [shift] * 3)
        self.assertIs(self.conditions["key_bias"]["relative_scores_kept"], True)
        scores = exact_scores(QUERIES[0], BIASED_KEYS)
        self.assert_exact(self.conditions["key_bias"]["weights"][0], exact_softmax(scores))


class KeyBiasKeepsWeights(CheckTests, Exact):
    name = "key_bias_keeps_weights"
    faults = {
        softmax_not_shift_invariant: "key_bias.weights[0][0] is 0.5142857142857142, "
        "should be 0.375",
        scores_key_bias_on_one_key: "key_bias.weights[0][1] is 0.7679179361387025, "
        "should be 0.28399540974126003",
    }

    def test_claim(self) -> None:
        self.assertEqual(self.check(self.results)["max_error"], 0.0)
        key_bias, no_bias = self.conditions["key_bias"], self.conditions["no_bias"]
        self.assertEqual(key_bias["weights"][0], no_bias["weights"][0])
        self.assertEqual(key_bias["max_weight_change"], 0.0)


class QueryBiasChangesRelativeScores(CheckTests, Exact):
    name = "query_bias_changes_relative_scores"
    faults = {
        scores_query_bias_left_out: "changed differences of scores[1][0] is 0.0, "
        "should be -0.7071067811865475",
        scores_query_bias_on_keys: "(query_bias - no_bias).scores[0][1] is 0.0, "
        "should be 0.7071067811865475",
        softmax_constant: "query_bias.weights[0][0] is 0.3333333333333333, "
        "should be 0.4458082741076032",
        softmax_base_2: "ratios of weights[0][1] is 2.665144142690225, should be 4.113250378782927",
        softmax_too_short: "it cannot be worked out: "
        "ValueError('not enough values to unpack (expected 3, got 2)')",
        softmax_zero: "it cannot be worked out: ZeroDivisionError(",
        softmax_nan: "query_bias.weights[1][0] is nan, should be 0.7679179361387025",
    }

    def test_claim(self) -> None:
        for i, (query, biased) in enumerate(zip(QUERIES, BIASED_QUERIES)):
            scores = self.conditions["query_bias"]["scores"][i]
            self.assert_exact(scores, exact_scores(biased, KEYS))
            weights = self.conditions["query_bias"]["weights"][i]
            self.assert_exact(weights, exact_softmax(exact_scores(biased, KEYS)))
            before = exact_scores(query, KEYS)
            for a, b in (0, 1), (0, 2), (1, 2):
                between = [KEYS[a][0] - KEYS[b][0], KEYS[a][1] - KEYS[b][1]]
                change = exact_scores(QUERY_BIAS, [between])[0]
                self.assert_exact(scores[a] - scores[b], before[a] - before[b] + change)
        self.assertIs(self.conditions["query_bias"]["relative_scores_kept"], False)
        self.assertGreater(self.conditions["query_bias"]["max_weight_change"], 0.16)


class BothBiasesMatchQueryBias(CheckTests, Exact):
    name = "both_biases_match_query_bias"
    faults = {
        scores_key_bias_left_out: "query_and_key_bias.scores[0][2] is -0.7071067811865475, "
        "should be 0.0",
        scores_query_bias_left_out: "query_and_key_bias.scores[1][1] is 4.949747468305833, "
        "should be 4.242640687119285",
        scores_key_bias_on_one_key: "query_and_key_bias.weights[0][1] is 0.6199851180450061, "
        "should be 0.4458082741076032",
        softmax_not_shift_invariant: "query_and_key_bias.weights[0][0] is 0.42857142857142855, "
        "should be 0.3333333333333333",
        softmax_one_off: "query_and_key_bias.weights[1][1] is 0.18669370194750284, "
        "should be 0.18669370094750284",
    }

    def test_claim(self) -> None:
        both, alone = self.conditions["query_and_key_bias"], self.conditions["query_bias"]
        for i, query in enumerate(QUERIES):
            terms = [
                exact_scores(query, KEYS),
                exact_scores(QUERY_BIAS, KEYS),
                exact_scores(query, [KEY_BIAS] * 3),
                exact_scores(QUERY_BIAS, [KEY_BIAS] * 3),
            ]
            self.assert_exact(both["scores"][i], [sum(column) for column in zip(*terms)])
            self.assert_exact(both["weights"][i], list(map(Fraction, alone["weights"][i])))


class OtherQueryRow(CheckTests, Exact):
    name = "other_query_row"
    faults = {
        scores_second_query_unbiased: "(key_bias - no_bias).scores[1][1] is 0.0, "
        "should be 5.65685424949238",
        scores_same_shift_for_all: "(key_bias - no_bias).scores[1][0] is 2.1213203435596424, "
        "should be 5.65685424949238",
        scores_second_row_without_scale: "no_bias.scores[1][0] is 2.0, should be 1.414213562373095",
        softmax_constant: "no_bias.weights[1][1] is 0.3333333333333333, "
        "should be 0.10167547551124892",
        softmax_not_shift_invariant: "key_bias.weights[1][0] is 0.5340314136125655, "
        "should be 0.8481915308314308",
    }

    def test_claim(self) -> None:
        shift = exact_scores(QUERIES[1], [KEY_BIAS])[0]
        no_bias, key_bias = self.conditions["no_bias"], self.conditions["key_bias"]
        self.assertEqual(shift * shift * 2, 64)
        self.assert_exact(no_bias["scores"][1], exact_scores(QUERIES[1], KEYS))
        added = [a - b for a, b in zip(key_bias["scores"][1], no_bias["scores"][1])]
        self.assert_exact(added, [shift] * 3)
        weights = exact_softmax(exact_scores(QUERIES[1], KEYS))
        self.assert_exact(no_bias["weights"][1], weights)
        self.assert_exact(key_bias["weights"][1], weights)


class IneffectiveQueryBias(CheckTests, Exact):
    name = "ineffective_query_bias"
    faults = {
        scores_query_bias_left_out: "level_keys.(query_bias - no_bias).scores[0][2] is 0.0, "
        "should be 0.7071067811865475",
        scores_level_keys_raised: "level_keys.no_bias.scores[0][1] is 1.0, should be 0.0",
        scores_zero_query_bias_moves: "zero_query_bias.query_bias.scores[0][0] is "
        "1.0606601717798212, should be 0.7071067811865475",
        softmax_not_shift_invariant: "level_keys.query_bias.weights[0][2] is "
        "0.18181818181818182, should be 0.14002924504337805",
        softmax_constant: "zero_query_bias.query_bias.weights[0][0] is 0.3333333333333333, "
        "should be 0.575975345215362",
    }

    def test_claim(self) -> None:
        scores = exact_scores(QUERIES[0], KEYS)
        level = [[1, 1], [0, 1], [-1, 1]]
        for exception, name, row in (
            ("zero_query_bias", "no_bias", scores),
            ("zero_query_bias", "query_bias", scores),
            ("level_keys", "no_bias", exact_scores(QUERIES[0], level)),
            ("level_keys", "query_bias", exact_scores(BIASED_QUERIES[0], level)),
        ):
            condition = self.exceptions[exception]["conditions"][name]
            self.assert_exact(condition["scores"], [row])
            self.assert_exact(condition["weights"], [exact_softmax(scores)])
            self.assertIs(condition.get("relative_scores_kept", True), True)
            self.assertEqual(condition.get("max_weight_change", 0.0), 0.0)


class PerKeyBiasChangesWeights(CheckTests, Exact):
    name = "per_key_bias_changes_weights"
    faults = {
        scores_per_key_bias_left_out: "per_key_bias.key_bias.scores[0][1] is 0.0, "
        "should be 2.1213203435596424",
        softmax_constant: "per_key_bias.key_bias.weights[0][0] is 0.3333333333333333, "
        "should be 0.18669370094750282",
        softmax_one_off: "per_key_bias.key_bias.weights[0][1] is 0.7679179371387025, "
        "should be 0.7679179361387025",
    }

    def test_claim(self) -> None:
        scores = exact_scores(QUERIES[0], [KEYS[0], BIASED_KEYS[1], KEYS[2]])
        condition = self.exceptions["per_key_bias"]["conditions"]["key_bias"]
        self.assert_exact(condition["scores"], [scores])
        self.assert_exact(condition["weights"], [exact_softmax(scores)])
        self.assertIs(condition["relative_scores_kept"], False)
        self.assertGreater(condition["max_weight_change"], 0.3)


class AllChecks(unittest.TestCase):
    def test_each_has_a_class_here(self) -> None:
        names = [check.__name__ for check in verify_attention_bias.CHECKS]
        self.assertEqual(names, [cls.name for cls in CheckTests.__subclasses__()])

    def test_a_fault_leaves_the_checks_that_it_does_not_touch(self) -> None:
        for fault, touched in (
            (scores_per_key_bias_left_out, ["per_key_bias_changes_weights"]),
            (scores_level_keys_raised, ["ineffective_query_bias"]),
        ):
            _, results, _ = run_main(fault)
            failed = [check["name"] for check in results["checks"] if not check["passed"]]
            self.assertEqual(failed, touched)

    def test_what_is_no_number_is_null_in_the_json(self) -> None:
        _, results, _ = run_main(softmax_nan)
        self.assertIsNone(results["conditions"]["no_bias"]["weights"][0][0])
        self.assertIsNone(results["checks"][0]["max_error"])

    def test_each_row_is_held(self) -> None:
        found: list[list[str]] = []

        def note(check: Any, rows: Any) -> Any:
            found.append([name for name, *_ in check(rows)])
            return {"passed": True}

        with mock.patch.object(verify_attention_bias, "run_check", note):
            verify_attention_bias.verify()
        cases = [f"{name}.weights[{i}].sum()" for name in CONDITIONS for i in (0, 1)]
        for exception in "zero_query_bias", "level_keys", "per_key_bias":
            cases += [f"{exception}.{name}.weights[0].sum()" for name in CONDITIONS]
        both, per_key = "query_and_key_bias", "per_key_bias.key_bias"
        changes = [
            row.format(i)
            for i in (0, 1)
            for row in (
                "(query_bias - no_bias).scores[{}]",
                "changed differences of scores[{}]",
                "ratios of weights[{}]",
                "query_bias.weights[{}]",
            )
        ]
        ineffective = [
            f"{name}.{field}[0]"
            for name in (
                "zero_query_bias.no_bias",
                "zero_query_bias.query_bias",
                "level_keys.no_bias",
            )
            for field in ("scores", "weights")
        ]
        shift, weights = "(key_bias - no_bias).scores", "key_bias.weights"
        self.assertEqual(
            found,
            [
                ["no_bias.scores[0]", "no_bias.weights[0]", *cases],
                [f"{shift}[0]", "differences of key_bias.scores[0]", f"{weights}[0]"],
                [f"{weights}[0]"],
                changes,
                [f"{both}.{row}" for row in ("scores[0]", "scores[1]", *["weights[0]"] * 2)]
                + [f"{both}.weights[1]"] * 2,
                ["no_bias.scores[1]", f"{shift}[1]", "no_bias.weights[1]", *[f"{weights}[1]"] * 2],
                [
                    *ineffective,
                    "level_keys.(query_bias - no_bias).scores[0]",
                    "level_keys.query_bias.weights[0]",
                ],
                [f"{per_key}.scores[0]", f"{per_key}.weights[0]"],
            ],
        )

    def verdict(self, *rows: Any) -> Any:
        """Return what is said of a check that yields these rows."""

        def check(_: Any) -> Any:
            yield from rows

        with mock.patch.dict(verify_attention_bias.CHECKS, {check: "a claim"}):
            return verify_attention_bias.run_check(check, {"known": [0.5]})

    def test_a_row_of_another_length_is_off(self) -> None:
        verdict = self.verdict(("row", [1.0], [1.0, 2.0]))
        self.assertEqual(verdict["failures"], ["row has 1 values, should have 2"])
        self.assertIs(verdict["passed"], False)
        self.assertEqual((verdict["name"], verdict["claim"]), ("check", "a claim"))

    def test_a_row_may_be_named_or_given(self) -> None:
        self.assertEqual(self.verdict(("known", [0.75]))["max_error"], 0.25)
        self.assertEqual(self.verdict(("other", [0.5], [1.0]))["max_error"], 0.5)
        verdict = self.verdict(("unknown", [1.0]))
        self.assertEqual(verdict["failures"], ["it cannot be worked out: KeyError('unknown')"])

    def test_the_largest_error_is_kept(self) -> None:
        verdict = self.verdict(("a", [1.0, 3.0], [1.5, 1.0]), ("b", [1.0], [2.0]))
        self.assertEqual(verdict["max_error"], 2.0)
        self.assertEqual(
            verdict["failures"],
            [
                "a[0] is 1.0, should be 1.5",
                "a[1] is 3.0, should be 1.0",
                "b[0] is 1.0, should be 2.0",
            ],
        )

    def test_the_report_has_the_first_failure_and_counts_the_others(self) -> None:
        results, shown = verify_attention_bias.verify()
        for failures, lines in (
            (["one"], ["     one"]),
            (["one", "two"], ["     one", "     and 1 more, listed in the JSON"]),
        ):
            check = {"name": "n", "claim": "c", "passed": False, "max_error": 0.25}
            results["checks"] = [{**check, "failures": failures}]
            report = verify_attention_bias.report(results, shown, [], "ascii").splitlines()
            at = report.index(f"FAIL {'n':34} 0.2   c")
            self.assertEqual(report[at + 1 : at + 2 + len(lines)], [*lines, ""])
            self.assertTrue(report[-1].startswith("0 of 1 checks passed at tolerance 1e-12, "))

    def test_the_tolerance_is_1e_12_relative_and_absolute(self) -> None:
        for actual, expected, passed in (
            (1.0, 1.0 + 9e-13, True),
            (1.0, 1.0 + 1.1e-12, False),
            (0.0, 9e-13, True),
            (0.0, 1.1e-12, False),
            (1e6, 1e6 + 9e-7, True),
            (1e6, 1e6 + 1.1e-6, False),
        ):
            verdict = self.verdict(("value", [actual], [expected]))
            self.assertIs(verdict["passed"], passed, (actual, expected))
            self.assertEqual(verdict["max_error"], abs(actual - expected))

    def test_the_tolerance_can_be_replaced(self) -> None:
        with mock.patch.object(verify_attention_bias, "TOLERANCE", 1e-3):
            with mock.patch.object(verify_attention_bias, "scores", scores_one_off):
                results, _ = verify_attention_bias.verify()
        self.assertIs(results["passed"], True)
        self.assertEqual(results["tolerance"], {"relative": 1e-3, "absolute": 1e-3})
