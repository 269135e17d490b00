"""softmax and scores by themselves, against 50-digit arithmetic."""

from __future__ import annotations

import math
import random
import unittest
from decimal import Decimal
from fractions import Fraction
from unittest import mock

from tests import close, exact_scores, exact_softmax
from verify_attention_bias import scores, softmax


def seeded_rows(spread: float = 20.0) -> list[list[float]]:
    """Return rows of 1 to 40 scores between -spread and spread, the same in every run."""
    generator = random.Random(2302)
    return [[generator.uniform(-spread, spread) for _ in range(n)] for n in range(1, 41)]


class Softmax(unittest.TestCase):
    def test_weights_are_right_to_the_last_places(self) -> None:
        for row in seeded_rows():
            exact = exact_softmax([Decimal(score) for score in row])
            for score, actual, expected in zip(row, softmax(row), exact):
                # s - peak is off by half its last place, and exp passes that on as a relative
                # error; exp may be off by two units for a term and its total, which with the
                # division add two more.
                allowed = 6 + math.ulp(score - max(row)) / 2 * 2**53
                error = abs(Fraction(actual) - Fraction(expected))
                units = float(error / Fraction(math.ulp(float(expected))))
                self.assertLessEqual(units, allowed, f"{actual!r} is not {expected}, row {row}")

    def test_weights_sum_to_1(self) -> None:
        for row in seeded_rows():
            self.assertTrue(close(float(sum(map(Fraction, softmax(row)))), Fraction(1), 1e-15))

    def test_a_common_shift_that_is_exact_changes_no_bit(self) -> None:
        for row in seeded_rows():
            whole = [float(round(score)) for score in row]
            for shift in (1.0, -3.0, 1024.0, 2.0**40):
                self.assertEqual(softmax([score + shift for score in whole]), softmax(whole))

    def test_order_is_kept(self) -> None:
        for row in seeded_rows():
            weights = softmax(row)
            by_score = sorted(range(len(row)), key=row.__getitem__)
            self.assertEqual(by_score, sorted(range(len(row)), key=weights.__getitem__))

    def test_large_scores_do_not_overflow(self) -> None:
        for large in (1e4, 1e308):
            self.assertEqual(softmax([large, -large]), [1.0, 0.0])
            self.assertEqual(softmax([-large, large, large]), [0.0, 0.5, 0.5])
            self.assertEqual(softmax([-large, -large]), [0.5, 0.5])

    def test_one_key_has_all_the_weight(self) -> None:
        for score in (0.0, -0.0, 7.5, -1e308, 5e-324):
            self.assertEqual(softmax([score]), [1.0])

    def test_equal_keys_have_equal_weights(self) -> None:
        for n in (2, 3, 10, 49):
            for weight in softmax([0.3] * n):
                self.assertTrue(close(weight, Fraction(1, n), 1e-15))

    def test_a_masked_key_has_no_weight(self) -> None:
        self.assertEqual(softmax([0.0, -math.inf]), [1.0, 0.0])

    def test_a_row_costs_in_step_with_its_length(self) -> None:
        operations = []

        class Counted(float):
            def __sub__(self, other: float) -> float:
                operations.append("-")
                return float(self) - other

            def __gt__(self, other: float) -> bool:
                operations.append(">")
                return float(self) > other

        counts = []
        for n in (1000, 4000):
            operations.clear()
            with mock.patch.object(math, "exp", side_effect=math.exp) as exp:
                with mock.patch.object(math, "fsum", side_effect=math.fsum) as fsum:
                    softmax([Counted(j / n) for j in range(n)])
            self.assertEqual((exp.call_count, fsum.call_count), (n, 1))
            counts.append(len(operations))
        self.assertEqual(counts, [1999, 7999])

    def test_what_is_no_row_of_scores_is_refused(self) -> None:
        for row, message in (
            ([], "a row of scores needs at least one score"),
            ([math.nan, 1.0], "scores must be numbers, the largest of them finite"),
            ([1.0, math.nan], "scores must be numbers, the largest of them finite"),
            ([math.inf, 1.0], "scores must be numbers, the largest of them finite"),
            ([-math.inf, -math.inf], "scores must be numbers, the largest of them finite"),
        ):
            with self.subTest(row=row), self.assertRaises(ValueError) as caught:
                softmax(row)
            self.assertEqual(str(caught.exception), message)


class Scores(unittest.TestCase):
    def test_scores_are_right_to_the_last_places(self) -> None:
        generator = random.Random(510)
        for d_k in (1, 2, 3, 64):
            query, *keys = [[generator.gauss(0, 1) for _ in range(d_k)] for _ in range(20)]
            for actual, expected, key in zip(scores(query, keys), exact_scores(query, keys), keys):
                # Each product is rounded by half a unit; fsum, sqrt and the division add one each.
                size = math.fsum(abs(a * b) for a, b in zip(query, key)) / math.sqrt(d_k)
                error = abs(Fraction(actual) - Fraction(expected))
                self.assertLessEqual(error, Fraction(size) * 4 / 2**53, (query, key))

    def test_the_sum_does_not_lose_small_terms(self) -> None:
        self.assertEqual(scores([1e16, 1.0, -1e16, 0.0], [[1.0] * 4]), [0.5])

    def test_a_key_of_another_size_is_refused(self) -> None:
        for key, message in (
            ([1.0], "keys[1] has 1 values, the query has 2"),
            ([1.0, 2.0, 3.0], "keys[1] has 3 values, the query has 2"),
        ):
            with self.assertRaises(ValueError) as caught:
                scores([1.0, 2.0], [[0.0, 0.0], key])
            self.assertEqual(str(caught.exception), message)
