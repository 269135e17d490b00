"""What the README and the docstrings show is what a run gives."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import tempfile
import unittest
from typing import Any

import verify_attention_bias
from tests import DATA, PROJECT, SCRIPT

README = (PROJECT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    """Return the code blocks of the README in that language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def load_tests(loader: Any, tests: unittest.TestSuite, pattern: Any) -> unittest.TestSuite:
    """Add the examples of the docstrings and of the README."""
    there = os.getcwd()
    tests.addTests(doctest.DocTestSuite(verify_attention_bias))
    tests.addTests(
        doctest.DocFileSuite(
            str(PROJECT / "README.md"),
            module_relative=False,
            encoding="utf-8",
            setUp=lambda _: os.chdir(PROJECT),
            tearDown=lambda _: os.chdir(there),
        )
    )
    return tests


class Documents(unittest.TestCase):
    def test_the_sample_reports_are_the_real_ones(self) -> None:
        built_in, head = blocks("text")
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(SCRIPT)]
            report = subprocess.check_output(command, cwd=folder, text=True)
            command += ["--input", str(DATA / "minilm-layer0-head0.json")]
            head_report = subprocess.check_output(command, cwd=folder, text=True)
        self.assertEqual(built_in, report)
        self.assertIn(f"\n\n{head}\n", head_report)

    def test_the_two_commands_are_those_of_the_build(self) -> None:
        commands = blocks("sh")[0].splitlines()
        self.assertEqual(len(commands), 2)
        for path in (".ci/run", ".github/workflows/tests.yml"):
            lines = [line.strip(" -") for line in (PROJECT / path).read_text().splitlines()]
            for command in commands:
                self.assertTrue(any(line.endswith(command) for line in lines), (path, command))

    def test_the_readme_names_every_check_and_every_field(self) -> None:
        results = verify_attention_bias.verify()
        case = next(iter(results["exceptions"].values()))
        names = {check["name"] for check in results["checks"]}
        fields = {*results, *results["tolerance"], *results["inputs"], *results["conditions"]}
        fields |= {
            *results["conditions"]["key_bias"],
            *results["exceptions"],
            *case,
            *results["checks"][0],
        }
        for name in names | fields:
            self.assertIn(f"`{name}`", README)

    def test_public_functions_have_an_example(self) -> None:
        for name in "scores", "softmax", "main":
            self.assertIn(">>> ", getattr(verify_attention_bias, name).__doc__)

    def test_links_within_the_project_lead_somewhere(self) -> None:
        for target in re.findall(r"\]\(([^)#:]+)\)", README):
            self.assertTrue((PROJECT / target).exists(), target)


if __name__ == "__main__":
    unittest.main()
