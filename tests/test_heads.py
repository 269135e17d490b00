"""--input for real heads: masks, a bias for each row, no bias, the layer's own weights, formats."""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import verify_attention_bias
from tests import (
    CONDITIONS,
    DATA,
    FORMATS,
    Exact,
    biased_vectors,
    exact_scores,
    exact_weights,
    format_error,
    kept_exactly,
    nearest,
    strict_json,
)


class Heads(Exact):
    """A test that gives heads to the program, in this process."""

    def answer(self, inputs: Any, code: int = 0) -> tuple[Any, str]:
        """Return the JSON and the report for inputs."""
        with tempfile.TemporaryDirectory() as folder:
            given, output = Path(folder, "in.json"), Path(folder, "out.json")
            given.write_text(json.dumps(inputs), "utf-8")
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                arguments = ["--input", str(given), "--output", str(output)]
                self.assertEqual(verify_attention_bias.main(arguments), code)
            report = printed.getvalue()
            self.assertLessEqual(max(map(len, report.splitlines()[:-1])), 100)
            return strict_json(output.read_bytes()), report

    def assert_true(self, inputs: Any) -> tuple[Any, str]:
        """Work everything that is said of inputs out again, in fractions and at 50 digits."""
        results, report = self.answer(inputs)
        unbiased = exact_weights(inputs, "no_bias")
        for name in CONDITIONS:
            with self.subTest(condition=name):
                condition = results["conditions"][name]
                weights = exact_weights(inputs, name)
                queries, keys = biased_vectors(inputs, name)
                self.assert_exact(condition["scores"], [exact_scores(q, keys) for q in queries])
                self.assert_exact(condition["weights"], weights)
                for form in FORMATS:
                    expected = format_error(inputs, name, form)
                    self.assert_exact(results["formats"][form][name], expected)
                if name == "no_bias":
                    continue
                kept = kept_exactly(inputs, name)
                self.assertIs(condition["relative_scores_kept"], kept)
                pairs = [pair for rows in zip(weights, unbiased) for pair in zip(*rows)]
                change = max(abs(a - b) for a, b in pairs)
                self.assert_exact(condition["max_weight_change"], change)
                if kept:
                    self.assertEqual(condition["max_weight_change"], 0.0)
        return results, report


class Cases(Heads):
    """Ten heads with what must come out, worked out in exact fractions by other software."""

    def check(self, name: str) -> None:
        case = strict_json((DATA / "cases" / f"{name}.json").read_bytes())
        results, _ = self.answer(case["inputs"])
        self.assertEqual(results["inputs"], case["inputs"])
        for part, conditions in case["expected"].items():
            for condition, fields in conditions.items():
                for field, expected in fields.items():
                    with self.subTest(part=part, condition=condition, field=field):
                        self.assert_exact(results[part][condition][field], expected)

    def test_built_in(self) -> None:
        self.check("built-in")

    def test_a_trained_head(self) -> None:
        self.check("minilm-layer0-head0")

    def test_a_key_far_below_the_others(self) -> None:
        self.check("far-key")

    def test_a_key_bias_beside_which_float64_loses_the_keys(self) -> None:
        self.check("huge-key-bias")

    def test_a_key_bias_whose_product_cancels(self) -> None:
        self.check("cancelling-key-bias")

    def test_a_large_key_bias(self) -> None:
        self.check("large-key-bias")

    def test_a_causal_mask_with_positions(self) -> None:
        self.check("causal")

    def test_rotated(self) -> None:
        self.check("rotated")

    def test_a_sink(self) -> None:
        self.check("sink")

    def test_no_key_bias(self) -> None:
        self.check("no-key-bias")

    def test_each_file_has_a_test(self) -> None:
        self.assertEqual(len(list((DATA / "cases").iterdir())), 10)


class Layers(Heads):
    """Heads of real architectures, with the weights that the modules themselves returned."""

    def check(self, name: str) -> str:
        inputs = strict_json((DATA / "layers" / f"{name}.json").read_bytes())
        own = strict_json((DATA / "layers" / f"{name}.weights.json").read_bytes())
        inputs["layer_weights"] = own["query_and_key_bias"]
        results, report = self.answer(inputs)
        for condition in CONDITIONS:
            with self.subTest(condition=condition):
                found = results["conditions"][condition]
                columns = len(own[condition][0])
                for row, right in zip(found["weights"], own[condition]):
                    for a, b in zip(row[:columns], right):
                        self.assertLess(abs(a - b), 1e-6)
                if condition != "no_bias":
                    kept = own["relative_scores_kept"][condition]
                    self.assertIs(found["relative_scores_kept"], kept)
                    change = own["max_weight_change_float64"][condition]
                    self.assertAlmostEqual(found["max_weight_change"], change, delta=1e-9)
        computed = results["conditions"]["query_and_key_bias"]["weights"]
        pairs = [pair for rows in zip(computed, inputs["layer_weights"]) for pair in zip(*rows)]
        largest = max(abs(a - b) for a, b in pairs)
        self.assertEqual(results["layer_weights_error"], largest)
        self.assertLess(largest, 1e-6)
        self.assertEqual(list(results)[:3], ["tolerance", "inputs", "layer_weights_error"])
        self.assertEqual(results["inputs"]["layer_weights"], inputs["layer_weights"])
        first = (
            f"The layer's own weights are within {largest:.2g} of those computed with both biases."
        )
        self.assertEqual(report.splitlines()[0], first)
        self.assertNotIn("nothing has shown", report)
        return report

    def test_multihead_attention_with_masks(self) -> None:
        report = self.check("mha-masks")
        self.assertIn(" -inf ", report)
        self.assertIn("can only confirm the algebra", report)

    def test_cosine_attention_with_a_row_of_each_bias(self) -> None:
        report = self.check("swinv2-shifted")
        self.assertNotIn("can only confirm the algebra", report)

    def test_a_sink_whose_column_the_layer_drops(self) -> None:
        self.check("gpt-oss")

    def test_cross_attention_without_key_bias(self) -> None:
        report = self.check("whisper-cross")
        self.assertNotIn("can only confirm the algebra", report)
        self.assertIn("b_K none", report)

    def test_weights_of_another_head_are_said_first(self) -> None:
        inputs = strict_json((DATA / "cases" / "built-in.json").read_bytes())["inputs"]
        inputs["layer_weights"] = [[0.4, 0.4, 0.2], [0.8, 0.15, 0.05]]
        results, report = self.answer(inputs, code=1)
        self.assertTrue(report.startswith("NOT THIS LAYER: its own weights are up to 0.092 from "))
        self.assertNotIn("passed", results)
        self.assertEqual(len(results["conditions"]["no_bias"]["weights"]), 2)

    def test_the_bound_is_0_01(self) -> None:
        inputs = {"queries": [[0.0]], "keys": [[1.0], [2.0]], "key_bias": [3.0]}
        for off, code in ((0.0099, 0), (0.0101, 1), (-0.0101, 1)):
            given = {**inputs, "layer_weights": [[0.5, 0.5 + off]]}
            results, _ = self.answer(given, code)
            self.assert_exact(results["layer_weights_error"], abs(off))
        closed = {**inputs, "mask": [[0.0, None]], "layer_weights": [[1.0, 0.01]]}
        self.assertEqual(self.answer(closed)[0]["layer_weights_error"], 0.01)
        for other in ([0.9, 0.1], [0.5, 0.5]), ([0.5, 0.5], [0.9, 0.1]):
            given = {**inputs, "queries": [[0.0], [0.0]], "layer_weights": list(other)}
            results, _ = self.answer(given, 1)
            self.assert_exact(results["layer_weights_error"], 0.4)


class OtherHeads(Heads):
    """Heads of the same kinds, drawn at random, against arithmetic of the tests' own."""

    def setUp(self) -> None:
        self.random = random.Random(2302)

    def matrix(self, rows: int, columns: int, size: float = 1.0) -> list[list[float]]:
        return [[self.random.gauss(0, size) for _ in range(columns)] for _ in range(rows)]

    def head(self, n_q: int, n_k: int, d_k: int, size: float = 1.0) -> dict[str, Any]:
        return {
            "queries": self.matrix(n_q, d_k),
            "keys": self.matrix(n_k, d_k),
            "query_bias": self.matrix(1, d_k)[0],
            "key_bias": self.matrix(1, d_k, size)[0],
        }

    def test_of_many_sizes(self) -> None:
        for n_q, n_k, d_k in (1, 1, 1), (1, 9, 5), (4, 3, 33), (2, 30, 7):
            results, _ = self.assert_true(self.head(n_q, n_k, d_k))
            kept = [results["conditions"][name]["relative_scores_kept"] for name in CONDITIONS[1:]]
            self.assertEqual(kept, [n_k == 1, True, n_k == 1])

    def test_masked(self) -> None:
        for n in 2, 5:
            inputs = self.head(n, n, 3)
            slopes = [[-0.3 * (i - j) if j <= i else None for j in range(n)] for i in range(n)]
            results, _ = self.assert_true({**inputs, "mask": slopes})
            for i, row in enumerate(results["conditions"]["key_bias"]["weights"]):
                self.assertEqual(row[i + 1 :], [0.0] * (n - 1 - i))
                self.assertIsNone((slopes[i] + [None])[i + 1])
            self.assertEqual(results["inputs"]["mask"], slopes)
        padded = [[0.0, 0.0, None, None], [-0.0, 1.5, None, None]]
        self.assert_true({**self.head(2, 4, 3), "mask": padded})

    def test_a_closed_key_turns_no_verdict(self) -> None:
        for size in 1.0, 1e12, 1e30:
            inputs = {
                "queries": [[1.0, 0.5]],
                "keys": [[0.0, 1.0], [1.0, 0.0], [size, -size]],
                "query_bias": [0.0, 0.0],
                "key_bias": [[1.0, 1.0], [1.0, 1.0], [-size, 3.0]],
                "mask": [[0.0, 0.5, None]],
            }
            results, _ = self.answer(inputs)
            key_bias = results["conditions"]["key_bias"]
            self.assertIs(key_bias["relative_scores_kept"], True)
            self.assertEqual(key_bias["max_weight_change"], 0.0)

    def test_a_row_for_each(self) -> None:
        inputs = self.head(3, 4, 4)
        inputs["query_bias"], inputs["key_bias"] = self.matrix(3, 4), self.matrix(4, 4)
        results, _ = self.assert_true(inputs)
        self.assertIs(results["conditions"]["key_bias"]["relative_scores_kept"], False)
        inputs["key_bias"] = [[1.0, 2.0, 3.0, 4.0]] * 4
        results, _ = self.assert_true(inputs)
        self.assertIs(results["conditions"]["key_bias"]["relative_scores_kept"], True)

    def test_one_row_that_changed_is_enough(self) -> None:
        inputs = {
            "queries": [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]],
            "keys": [[1.0, 0.0], [2.0, 0.0]],
            "query_bias": [[0.0, 0.0], [1e-9, 0.0], [0.0, 0.0]],
        }
        results, report = self.assert_true(inputs)
        self.assertIs(results["conditions"]["query_bias"]["relative_scores_kept"], False)
        self.assertIn("\nqueries[1] ", report)
        self.assertRegex(
            report, r"\nquery bias .* a relative change  \S+e-10 at weights\[1\]\[\d\]"
        )

    def test_a_weight_may_fall_most(self) -> None:
        # Two keys of three rise by half of what the third falls.
        inputs = {
            "queries": [[1.0]],
            "keys": [[0.0], [0.0], [0.0]],
            "key_bias": [[0.0], [0.0], [-5.0]],
        }
        results, report = self.assert_true(inputs)
        self.assertGreater(results["conditions"]["key_bias"]["max_weight_change"], 0.3)
        self.assertIn(" at weights[0][2]", report)

    def test_no_bias(self) -> None:
        inputs = self.head(2, 3, 4)
        for absent in (["query_bias"], ["key_bias"], ["query_bias", "key_bias"]):
            null = {**inputs, **dict.fromkeys(absent)}
            left_out = {name: value for name, value in inputs.items() if name not in absent}
            zeros = {**inputs, **{name: [0.0] * 4 for name in absent}}
            results = [self.assert_true(given)[0] for given in (null, left_out, zeros)]
            for given, result in zip((null, left_out, zeros), results):
                self.assertEqual(result["inputs"], given)
                self.assertEqual(result["conditions"], results[0]["conditions"])
                self.assertEqual(result["formats"], results[0]["formats"])

    def test_zeros_alone(self) -> None:
        zeros = {"queries": [[0.0, 0.0]], "keys": [[0.0, -0.0]] * 3, "key_bias": [0.0, 0.0]}
        results, _ = self.assert_true(zeros)
        self.assert_exact(results["conditions"]["key_bias"]["weights"], [[Fraction(1, 3)] * 3])

    def test_numbers_at_the_ends_of_a_digit(self) -> None:
        for size in 1.0, 127.0, 128.0, 255.0, 256.0, 2.0**31, 2.0**-31, 0.75:
            for signs in (1, 1), (1, -1), (-1, -1):
                inputs = {
                    "queries": [[signs[0] * size] * 2],
                    "keys": [[signs[1] * size] * 2, [-signs[1] * size] * 2, [0.0, 0.0]],
                    "query_bias": [signs[0] * size] * 2,
                    "key_bias": [signs[1] * size] * 2,
                }
                results, _ = self.answer(inputs)
                for name in CONDITIONS[1:]:
                    kept = results["conditions"][name]["relative_scores_kept"]
                    self.assertIs(kept, kept_exactly(inputs, name))

    def test_biases_of_any_size(self) -> None:
        for size in 1e-9, 30.0, 600.0, 1e5:
            inputs = self.head(2, 4, 8, size)
            results, _ = self.answer(inputs)
            key_bias = results["conditions"]["key_bias"]
            self.assertIs(key_bias["relative_scores_kept"], True)
            self.assertEqual(key_bias["max_weight_change"], 0.0)
            for form in FORMATS:
                expected = format_error(inputs, "query_and_key_bias", form)
                self.assert_exact(results["formats"][form]["query_and_key_bias"], expected)
        inputs = {**self.head(2, 4, 3), "key_bias": [1e30, -1e30, 5e-324]}
        results, _ = self.answer(inputs)
        conditions = results["conditions"]
        self.assertEqual(conditions["key_bias"]["max_weight_change"], 0.0)
        self.assertEqual(
            conditions["query_and_key_bias"]["max_weight_change"],
            conditions["query_bias"]["max_weight_change"],
        )

    def test_a_mask_that_cancels_large_scores(self) -> None:
        for size in 1e4, 1e8, 1e12:
            keys = [[size, 0.5], [0.0, 0.5], [size, -0.5], [1.0, 1.0]]
            score = size / math.sqrt(2)
            inputs = {
                "queries": [[1.0, 0.0]],
                "keys": keys,
                "query_bias": [0.5 / size, 1.0],
                "mask": [[-score, 0.25, -score, None]],
            }
            results, _ = self.answer(inputs)
            weights = [exact_weights(inputs, name) for name in ("query_bias", "no_bias")]
            change = max(abs(a - b) for a, b in zip(weights[0][0], weights[1][0]))
            self.assert_exact(results["conditions"]["query_bias"]["max_weight_change"], change)

    def test_a_sum_of_score_and_mask_that_cancels(self) -> None:
        # The largest sum is that of the last key, and far from the largest mask.
        inputs = {
            "queries": [[1.0]],
            "keys": [[-40.0], [0.5], [3.0]],
            "query_bias": [0.25],
            "mask": [[30.0, 1.0, 0.5]],
        }
        self.assert_true(inputs)


class Formats(Heads):
    def test_rounding(self) -> None:
        generator = random.Random(9)
        for form in "float32", "bfloat16", "float16":
            bits, least, largest = FORMATS[form]
            step = 2.0**least
            top = float(largest)
            last = top - float(nearest(Fraction(top) * (1 - Fraction(1, 2**bits)), form) or 0)
            values = [0.0, -0.0, 1.0, -1.0, top, -top, top + 0.49 * last, step, 0.5 * step]
            values += [0.51 * step, 1.5 * step, 2.5 * step, 3.5 * step, 5e-324, 1e-300]
            for power in range(-3, 4):
                ulp = 2.0 ** (power - bits + 1)
                values += [2.0**power + ties * ulp for ties in (0.5, 1.5, 2.5, 0.49, 0.51, 1.0)]
                values += [2.0 ** (power + 1) - ties * ulp for ties in (0.25, 0.5, 0.75)]
            values += [generator.uniform(-4, 4) for _ in range(200)]
            normal = 2.0 ** (least + bits - 1)
            values += [generator.uniform(-2, 2) * normal for _ in range(200)]
            for value in [*values, *[-value for value in values]]:
                expected = nearest(Fraction(value), form)
                self.assertEqual(verify_attention_bias.rounded([value], form), [expected], value)
            past = top + 0.5 * last
            self.assertIsNone(nearest(Fraction(past), form))
            for value in past, -past, top * 2:
                found = verify_attention_bias.rounded([1.0, value], form)
                self.assertEqual(found, [math.inf, math.inf])
        self.assertEqual(verify_attention_bias.rounded([0.1, 1e300], "float64"), [0.1, 1e300])

    def test_overflow_is_null_where_it_happens(self) -> None:
        base = {"queries": [[1.0, 0.0], [0.0, 1.0]], "keys": [[1.0, 2.0], [3.0, -1.0]]}
        for extra, null in (
            ({"query_bias": [0.0, 70000.0]}, ["query_bias", "query_and_key_bias"]),
            ({"key_bias": [0.0, -70000.0]}, ["key_bias", "query_and_key_bias"]),
            ({"key_bias": [[0.0, 0.0], [0.0, 65504.0]]}, []),
            ({"query_bias": [[0.0, 0.0], [400.0, 0.0]], "key_bias": [400.0, 0.0]}, CONDITIONS[3:]),
            ({"query_bias": [[0.0, 0.0], [70000.0, 0.0]]}, ["query_bias", "query_and_key_bias"]),
        ):
            results, report = self.answer({**base, **extra})
            formats = results["formats"]
            found = [name for name in CONDITIONS if formats["float16"][name] is None]
            self.assertEqual(found, null)
            self.assertEqual(report.count("overflow"), len(null))
            for form in "float64", "float32", "bfloat16":
                self.assertNotIn(None, formats[form].values())

    def test_overflow_on_a_closed_pair(self) -> None:
        inputs = {
            "queries": [[1.0]],
            "keys": [[1.0], [70000.0]],
            "key_bias": [1.0],
            "mask": [[0.0, None]],
        }
        results, _ = self.answer(inputs)
        self.assertEqual(list(results["formats"]["float16"].values()), [None] * 4)
        self.assertIs(results["conditions"]["key_bias"]["relative_scores_kept"], True)

    def test_overflow_of_float32(self) -> None:
        inputs = {
            "queries": [[1e25, 0.0]],
            "keys": [[1e25, 1.0], [0.0, 1.0]],
            "query_bias": [0.0, 1.0],
        }
        results, _ = self.answer(inputs)
        for form in "float32", "bfloat16", "float16":
            self.assertEqual(list(results["formats"][form].values()), [None] * 4)
        self.assertEqual(list(results["formats"]["float64"].values()), [0.0] * 4)

    def test_infinities_of_both_signs(self) -> None:
        inputs = {
            "queries": [[1e5, -1e5]],
            "keys": [[1.0, 1.0], [-1.0, 0.0]],
            "key_bias": [1.0, 0.0],
        }
        results, _ = self.answer(inputs)
        self.assertEqual(list(results["formats"]["float16"].values()), [None] * 4)


class Shown(Heads):
    """The query that matters, and the lines of the table."""

    def table(self, report: str) -> list[str]:
        blocks = report.split("\n\n")
        at = next(i for i, block in enumerate(blocks) if block.startswith("queries["))
        return blocks[at].splitlines() + blocks[at + 1].splitlines()

    def test_the_query_whose_weights_move_most(self) -> None:
        inputs = {"queries": [[1.0], [9.0], [1.0], [9.0]], "keys": [[0.1], [0.2]]}
        for bias, shown in (
            (None, 0),
            ([0.0], 0),
            ([[0.0], [0.5], [2.0], [0.5]], 2),
            ([[0.0], [0.5], [0.5], [0.5]], 2),
            ([[1.0]] * 4, 0),
        ):
            given = {**inputs, "query_bias": bias}
            results, report = self.assert_true(given)
            weights = [results["conditions"][name]["weights"] for name in CONDITIONS]
            self.assertTrue(self.table(report)[0].startswith(f"queries[{shown}] "), (bias, report))
            first = self.table(report)[1].split()
            self.assert_same_text(first[4], f"{weights[0][shown][0]:.6f}")

    def test_more_than_eight_keys(self) -> None:
        generator = random.Random(16362)
        for n_k in 8, 9, 300:
            inputs = {
                "queries": [[generator.gauss(0, 1), generator.gauss(0, 1)]],
                "keys": [[generator.gauss(0, 2), generator.gauss(0, 2)] for _ in range(n_k)],
                "query_bias": [1.0, -1.0],
                "key_bias": [0.5, 0.5],
            }
            results, report = self.answer(inputs)
            rows = [results["conditions"][name]["weights"][0] for name in CONDITIONS]
            largest = sorted(range(n_k), key=lambda j: -max(row[j] for row in rows))
            shown = sorted(largest[:7]) if n_k > 8 else list(range(n_k))
            labels = [f"keys[{j}]" for j in shown] + [f"the other {n_k - 7}"] * (n_k > 8)
            lines = self.table(report)[1:]
            self.assertEqual(len(lines), 32)
            for i, line in enumerate(lines):
                self.assertTrue(line[20:].startswith(labels[i % 8] + " "), line)
            rest = sum(rows[0][j] for j in range(n_k) if j not in shown)
            if n_k > 8:
                self.assertIn(f"{rest:.6f}", lines[7])

    def test_what_the_bias_adds_is_exact(self) -> None:
        case = strict_json((DATA / "cases" / "far-key.json").read_bytes())
        _, report = self.answer(case["inputs"])
        lines = [line for line in self.table(report) if "keys[2]" in line]
        self.assertIn("  1.732051  ", lines[1])

    def test_numbers_as_texts(self) -> None:
        for number, text in (
            (0.70710678, "0.707107"),
            (-0.0, "0.000000"),
            (-4e-7, "0.000000"),
            (-6e-7, "-0.000001"),
            (9.9999999, "10.000000"),
            (-9.9999999, "-10.0000"),
            (-78.769026, "-78.7690"),
            (12345.678, "12345.7"),
            (-5773502691896.258, "-5.77e+12"),
            (None, ""),
        ):
            self.assertEqual(verify_attention_bias.fixed(number), text)
        for number, text in ((2.12132, "2.121"), (-0.0004, "0.000"), (1e9, "1.00e+09")):
            self.assertEqual(verify_attention_bias.fixed(number, 3), text)

    def test_vectors_as_texts(self) -> None:
        for vectors, text in (
            ([2.0, -1.0], "(2, -1)"),
            ([0.12345, -1234.5, 1e-9], "(0.123, -1.23e+03, 1e-09)"),
            ([1.0, 2.0, 3.0, 4.0], "(1, 2, 3, ...)"),
            ([[1.0, 2.0], [3.0, 4.0]], "(1, 2), (3, 4)"),
            ([[1.0, 2.0, 3.0]] * 4, "4 x 3"),
            ([[0.125] * 2] * 2 + [[1.5, 2.5]], "3 x 2"),
            ([[1111.0], [222.0], [3.0]], "(1.11e+03), (222), (3)"),
            ([[11.5]] * 4 + [[111.0]], "(11.5), (11.5), (11.5), (11.5), (111)"),
            ([[11.5]] * 4 + [[-111.0]], "(11.5), (11.5), (11.5), (11.5), (-111)"),
            ([[11.5]] * 4 + [[-11.25]], "(11.5), (11.5), (11.5), (11.5), (-11.2)"),
            ([[11.5]] * 4 + [[-1e-9]], "(11.5), (11.5), (11.5), (11.5), (-1e-09)"),
            ([[11.5]] * 4 + [[1.5e-10]], "5 x 1"),
            ([[1.0]] * 10, "10 x 1"),
            (None, "none"),
        ):
            self.assertEqual(verify_attention_bias.brief(vectors), text)

    def test_descriptions(self) -> None:
        visible = verify_attention_bias.visible
        for length in 89, 90, 91, 92, 1000:
            text = "x" * length
            shown = text if length <= 90 else "x" * 87 + "..."
            self.assertEqual(visible(text, "utf-8", 90), shown)
        self.assertEqual(visible("\u81ea" * 30, "utf-8", 90), "\u81ea" * 30)
        self.assertEqual(visible("\u81ea" * 31, "utf-8", 90), "\u81ea" * 29 + "...")
        self.assertEqual(visible("\u81ea" * 15, "ascii", 90), "\\u81ea" * 15)
        self.assertEqual(visible("\u81ea" * 16, "ascii", 90), "\\u81ea" * 14 + "...")
        self.assertEqual(visible("\xe9\n\x1b[1m\ud800", "latin-1"), "\xe9\\n\\x1b[1m\\ud800")
        for encoding, name in (("utf-8", "\u81ea"), ("ascii", "\\u81ea")):
            results, found = verify_attention_bias.verify()
            results["inputs"]["description"] = "\u81ea"
            report = verify_attention_bias.report(results, found, ["\u81ea.json", "-"], encoding)
            self.assertTrue(report.endswith(f", wrote {name}.json and to standard output\n"))
            self.assertIn(f"\nb_Q (0, 1); b_K (3, -2)\n{name}\n\n", report)

    def test_columns(self) -> None:
        inputs = {
            "queries": [[1.0]],
            "keys": [[-78.769026], [9.9999999], [-1234.5678], [123456.0], [-1e25]],
            "mask": [[0.0, None, -0.25, 0.0, 0.0]],
            "key_bias": [1.0],
        }
        _, report = self.answer(inputs)
        lines = self.table(report)
        column = lines[0].index("score") + 5
        for line in lines[1:]:
            self.assertRegex(line[20:column], r"^keys\[\d\]( -inf| -0.25)? +\S+$")
            self.assertEqual(line[column], " ")
        self.assertIn("keys[1] -inf ", report)
        self.assertIn("keys[2] -0.25 ", report)
        text = "\n".join(lines)
        for number in " -78.7690 ", " 10.000000 ", " -1234.6 ", " 123456.0 ", " -1.00e+25 ":
            self.assertIn(number, text)


class GivenBack(Heads):
    def test_a_result_stands_for_its_inputs(self) -> None:
        for path in sorted((DATA / "cases").iterdir()):
            inputs = strict_json(path.read_bytes())["inputs"]
            results, report = self.answer(inputs)
            self.assertEqual(self.answer({**results, "conditions": "not looked at"})[0], results)
            self.assertEqual(self.answer(results)[1].splitlines()[:-1], report.splitlines()[:-1])

    def test_minus_infinity_is_read_and_null_written(self) -> None:
        inputs = {"queries": [[1.0]], "keys": [[1.0], [2.0]], "mask": [[0.0, -math.inf]]}
        results, _ = self.answer(inputs)
        self.assertEqual(results["inputs"]["mask"], [[0.0, None]])
        self.assertEqual(results["conditions"]["no_bias"]["weights"], [[1.0, 0.0]])

    def test_what_is_null_stays_null(self) -> None:
        inputs = {"queries": [[1.0]], "keys": [[1.0], [2.0]]}
        names = ["query_bias", "key_bias", "mask", "layer_weights", "description"]
        results, _ = self.answer({**inputs, **dict.fromkeys(names)})
        self.assertEqual(results["inputs"], {**inputs, **dict.fromkeys(names)})
        self.assertNotIn("layer_weights_error", results)
        self.assertEqual(self.answer(inputs)[0]["inputs"], inputs)
