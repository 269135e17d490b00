"""The command, as people use and misuse it: the real script in a process of its own."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import verify_attention_bias
from tests import PROJECT, SCRIPT, WINDOWS, Exact, run, strict_json

COMMITTED = (PROJECT / "results.json").read_bytes()
OLD = b"what was there before"

# Root may write anywhere, so the process gives that right up, with all it imports at hand.
UNPRIVILEGED = """
import __future__, argparse, errno, gettext, json, locale, math, operator, os, shutil, stat, sys
code = compile(open(sys.argv[1], encoding="utf-8").read(), sys.argv[1], "exec")
del sys.argv[0]
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
exec(code, {"__name__": "__main__"})
"""


class InAFolder(Exact):
    """A test that has a folder for itself, and looks at what is left in it."""

    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.output = self.folder / "results.json"

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def assert_results(self, text: bytes) -> None:
        """Hold that a text is results.json, but for last digits of another platform's exp."""
        self.assert_same_json(strict_json(text), strict_json(COMMITTED))
        self.assertNotIn(b"\r", text)

    def assert_written(self, done: Any, stderr: bytes = b"") -> None:
        self.assertEqual((done.returncode, done.stderr), (0, stderr))
        self.assert_results(self.output.read_bytes())
        self.assertEqual(self.names(), ["results.json"])

    def assert_usage(self, done: Any, *words: str) -> None:
        """Exit 2 with argparse's usage and one line on stderr that has these words."""
        usage, line = done.stderr.decode().split("verify_attention_bias.py: error: ")
        self.assertTrue(usage.startswith("usage: verify_attention_bias.py "), usage)
        self.assertEqual((done.returncode, line.count("\n")), (2, 1), line)
        for word in words:
            self.assertIn(word, line)
        self.assertFalse(done.stdout)

    def assert_error(self, done: Any, *words: str) -> None:
        """Exit 2 with one line on stderr that has these words, and nothing on stdout."""
        error = done.stderr.decode()
        self.assertEqual(done.returncode, 2, error)
        self.assertTrue(error.startswith("verify_attention_bias.py: error: "), error)
        self.assertEqual(error.count("\n"), 1, error)
        self.assertTrue(error.endswith("\n"))
        for word in words:
            self.assertIn(word, error)
        self.assertFalse(done.stdout)


class Usage(InAFolder):
    def test_results_json_in_the_current_folder_is_the_default(self) -> None:
        self.assert_written(run(cwd=self.folder))

    def test_the_folder_of_the_script_is_left_alone(self) -> None:
        before = sorted(PROJECT.iterdir())
        self.assert_written(run("--output", str(self.output), cwd=self.folder))
        self.assertEqual(sorted(PROJECT.iterdir()), before)

    def test_a_dash_is_standard_output_and_the_report_goes_to_stderr(self) -> None:
        printed = run("--output", str(self.output)).stdout
        done = run("--output", "-", cwd=self.folder)
        self.assertEqual(done.returncode, 0)
        self.assert_results(done.stdout)
        self.assertEqual(done.stderr.splitlines()[:-1], printed.splitlines()[:-1])
        self.assertTrue(done.stderr.rstrip().endswith(b", wrote to standard output"))
        self.assertEqual(self.names(), ["results.json"])

    def test_standard_output_may_be_replaced(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as stdout:
            with contextlib.redirect_stderr(io.StringIO()) as stderr:
                self.assertEqual(verify_attention_bias.main(["--output", "-"]), 0)
        self.assert_results(stdout.getvalue().encode())
        self.assertEqual(stderr.getvalue().count("\nPASS "), 8)

    def test_lines_end_alike_on_every_platform(self) -> None:
        stdout = io.TextIOWrapper(io.BytesIO(), newline="\r\n")
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(io.StringIO()):
            verify_attention_bias.main(["--output", "-"])
        stdout.seek(0)
        self.assert_results(stdout.detach().read())

    def test_the_report_is_ascii_and_fits_a_terminal(self) -> None:
        report = run("--output", "-").stderr.decode("ascii")
        self.assertLessEqual(max(map(len, report.splitlines())), 80)
        self.assertLessEqual(len(report.splitlines()), 48)
        self.assertEqual(report.count("\nPASS "), 8)
        self.assertNotIn("FAIL", report)
        self.assertNotIn("-0.000000", report)

    def test_version_and_help(self) -> None:
        for argument, words in (
            ("--version", ["verify_attention_bias.py 2."]),
            (
                "--help",
                ["--output FILE", "--version ", "verify_attention_bias.py --output results.json"],
            ),
        ):
            done = run(argument, cwd=self.folder)
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            for word in words:
                self.assertIn(word, done.stdout.decode())
        self.assertEqual(self.names(), [])

    def test_bad_usage(self) -> None:
        for arguments, word in (
            (["--outptu", "x"], "unrecognized arguments: --outptu x"),
            (["--output"], "--output: expected one argument"),
            (["extra.json"], "unrecognized arguments: extra.json"),
        ):
            with self.subTest(arguments=arguments):
                self.assert_usage(run(*arguments, cwd=self.folder), word)
        self.assertEqual(self.names(), [])

    def test_the_interpreter_s_flags_change_nothing(self) -> None:
        for flags in ("-O", "-OO", "-I", "-S", "-bb", "-B -u", "-W error -X dev"):
            with self.subTest(flags=flags):
                done = run("--output", str(self.output), python=flags.split())
                self.assert_written(done)
                self.assertEqual(done.stdout.count(b"\nPASS "), 8)

    def test_importing_does_nothing(self) -> None:
        code = f"import sys; sys.path.insert(0, {str(PROJECT)!r}); import verify_attention_bias"
        command = [sys.executable, "-B", "-c", code]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, b"", b""))
        self.assertEqual(self.names(), [])

    def test_a_failing_check_exits_with_1_and_the_json_is_written(self) -> None:
        for flags in ([], ["-O"]):
            code = (
                f"import sys; sys.path.insert(0, {str(PROJECT)!r})\n"
                "import verify_attention_bias as program\n"
                "program.softmax = lambda row: [1 / len(row) for score in row]\n"
                f"sys.exit(program.main(['--output', {str(self.output)!r}]))"
            )
            command = [sys.executable, "-B", *flags, "-c", code]
            done = subprocess.run(command, capture_output=True, check=False)
            self.assertEqual((done.returncode, done.stderr), (1, b""))
            report = done.stdout.decode("ascii").replace(os.linesep, "\n")
            self.assertIn("\nFAIL query_bias_changes_relative_scores", report)
            self.assertIn(
                "\n     no_bias.weights[0][0] is 0.3333333333333333, should be 0.57", report
            )
            self.assertIn("\n     and 2 more, listed in the JSON\n", report)
            self.assertIn("\n1 of 8 checks passed at tolerance 1e-12, wrote ", report)
            self.assertIs(strict_json(self.output.read_bytes())["passed"], False)


class OutputThatCannotBeWritten(InAFolder):
    def test_a_folder_that_is_missing(self) -> None:
        path = self.folder / "missing" / "results.json"
        self.assert_error(run("--output", str(path)), repr(str(path)), "try another file")
        self.assertEqual(self.names(), [])

    def test_a_folder(self) -> None:
        self.assert_error(run("--output", str(self.folder)), repr(str(self.folder)))
        self.assert_error(
            run("--output", str(self.folder) + os.sep), repr(str(self.folder) + os.sep)
        )
        self.assertEqual(self.names(), [])

    def test_an_empty_name(self) -> None:
        self.assert_error(run("--output", "", cwd=self.folder), "''", "it names no file")
        self.assert_error(run("--output", "new/", cwd=self.folder), "'new/'", "it names no file")
        self.assertEqual(self.names(), [])

    def test_a_name_that_is_too_long(self) -> None:
        self.assert_error(run("--output", "x" * 5000, cwd=self.folder))
        self.assertEqual(self.names(), [])

    @unittest.skipIf(WINDOWS, "Windows has no /dev/full")
    def test_a_full_device(self) -> None:
        self.assert_error(run("--output", "/dev/full"), "'/dev/full'")

    @unittest.skipIf(WINDOWS, "Windows has no such modes")
    def test_a_file_that_may_not_be_written(self) -> None:
        self.output.write_bytes(OLD)
        self.output.chmod(0o444)
        self.folder.chmod(0o777)
        self.assert_error(self.run_unprivileged(), "Permission denied")
        self.assertEqual(self.output.read_bytes(), OLD)
        self.assertEqual(self.names(), ["results.json"])

    @unittest.skipIf(WINDOWS, "Windows has no such modes")
    def test_a_folder_that_may_not_be_written(self) -> None:
        self.output.write_bytes(OLD)
        self.output.chmod(0o666)
        self.folder.chmod(0o555)
        self.assert_error(self.run_unprivileged(), "Permission denied")
        self.assertEqual(self.output.read_bytes(), OLD)
        self.assertEqual(self.names(), ["results.json"])

    def run_unprivileged(self) -> Any:
        arguments = [str(SCRIPT), "--output", str(self.output)]
        command = [sys.executable, "-B", "-c", UNPRIVILEGED, *arguments]
        return subprocess.run(command, cwd=self.folder, capture_output=True, check=False)

    @unittest.skipIf(WINDOWS, "Windows has no RLIMIT_FSIZE")
    def test_a_write_that_fails_half_way(self) -> None:
        self.output.write_bytes(OLD)
        done = run("--output", str(self.output), preexec_fn=limit_file_size(1000))
        self.assert_error(done, "File too large")
        self.assertEqual(self.output.read_bytes(), OLD)
        self.assertEqual(self.names(), ["results.json"])

    @unittest.skipIf(WINDOWS, "Windows has links for few users only")
    def test_a_link_that_leads_to_itself(self) -> None:
        self.output.symlink_to("results.json")
        self.assert_error(run("--output", str(self.output)))
        self.assertTrue(self.output.is_symlink())
        self.assertEqual(self.names(), ["results.json"])


class OutputThatIsThere(InAFolder):
    def test_an_old_file_is_replaced(self) -> None:
        self.output.write_bytes(OLD * 10000)
        self.assert_written(run("--output", str(self.output)))

    @unittest.skipIf(WINDOWS, "Windows has no such devices")
    def test_a_device_stays_a_device(self) -> None:
        done = run("--output", "/dev/null")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertNotIn(b"{", done.stdout)
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))

    @unittest.skipIf(WINDOWS, "Windows has no named pipes in folders")
    def test_a_pipe_is_written_to(self) -> None:
        os.mkfifo(self.output)
        reader = os.open(self.output, os.O_RDONLY | os.O_NONBLOCK)
        try:
            done = run("--output", str(self.output))
            self.assert_results(os.read(reader, 2 * len(COMMITTED)))
        finally:
            os.close(reader)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertTrue(self.output.is_fifo())

    @unittest.skipIf(WINDOWS, "Windows has links for few users only")
    def test_a_link_is_followed(self) -> None:
        link = self.folder / "link.json"
        for target in (Path("results.json"), self.output):
            for old in (OLD, None):
                with self.subTest(target=target, old=old):
                    link.symlink_to(target)
                    if old is not None:
                        self.output.write_bytes(old)
                    done = run("--output", str(link))
                    self.assertEqual(os.readlink(link), str(target))
                    link.unlink()
                    self.assert_written(done)
                    self.output.unlink()

    @unittest.skipIf(WINDOWS, "Windows has no such modes")
    def test_modes(self) -> None:
        for mode in (0o600, 0o640, 0o755):
            self.output.write_bytes(OLD)
            self.output.chmod(mode)
            self.assert_written(run("--output", str(self.output)))
            self.assertEqual(stat.S_IMODE(self.output.stat().st_mode), mode)
        for umask in (0o022, 0o077):
            self.output.unlink()
            done = run("--output", str(self.output), preexec_fn=lambda mask=umask: os.umask(mask))
            self.assert_written(done)
            self.assertEqual(stat.S_IMODE(self.output.stat().st_mode), 0o666 & ~umask)


class StandardOutputInTrouble(InAFolder):
    @unittest.skipIf(WINDOWS, "Windows has no EPIPE")
    def test_nobody_reads_it(self) -> None:
        for flags in ([], ["-u"]):
            reader, writer = os.pipe()
            os.close(reader)
            with os.fdopen(writer, "wb") as stdout:
                done = run("--output", str(self.output), python=flags, stdout=stdout)
            self.assert_written(done)

    @unittest.skipIf(WINDOWS, "Windows has no EPIPE")
    def test_nobody_reads_the_json(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as stdout:
            done = run("--output", "-", stdout=stdout)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stderr.count(b"\nPASS "), 8)
        self.assertNotIn(b"Broken", done.stderr)

    @unittest.skipIf(WINDOWS, "Windows has no preexec_fn")
    def test_it_is_closed(self) -> None:
        self.assert_written(run("--output", str(self.output), preexec_fn=lambda: os.close(1)))
        done = run("--output", "-", preexec_fn=lambda: os.close(1))
        self.assert_error(done, "cannot write '-': it is closed")

    @unittest.skipIf(WINDOWS, "Windows has no preexec_fn")
    def test_stderr_is_closed(self) -> None:
        done = run("--output", "-", preexec_fn=lambda: os.close(2))
        self.assertEqual(done.returncode, 0)
        self.assert_results(done.stdout)

    @unittest.skipIf(WINDOWS, "Windows has no RLIMIT_FSIZE")
    def test_it_is_full(self) -> None:
        full = self.folder / "report.txt"
        full.write_bytes(b"x" * 20000)
        with full.open("ab") as stdout:
            done = run(
                "--output", str(self.output), stdout=stdout, preexec_fn=limit_file_size(20000)
            )
            self.assert_error(done, "cannot print: ", "; any file asked for is written\n")
            self.assert_results(self.output.read_bytes())
            done = run("--output", "-", stdout=stdout, preexec_fn=limit_file_size(20000))
            self.assert_error(done, "cannot print: ")
        self.assertEqual(full.stat().st_size, 20000)

    def test_it_is_ascii_only(self) -> None:
        output = self.folder / "r\xe9sultats.json"
        environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
        done = run("--output", str(output), env=environment)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assert_results(output.read_bytes())
        self.assertIn(b"r\\xe9sultats.json", done.stdout)
        done = run("--output", str(output / "below"), env=environment)
        self.assert_error(done, "sultats.json")


def limit_file_size(size: int) -> Any:
    """Return what a new process calls to limit the files that it writes."""
    import resource

    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
