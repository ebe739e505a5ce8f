"""Which suite catches which fault: ``python -m tests.mutations``.

The checkout is copied. In the copy, one mutation at a time is written into its file, and suites of tests run from the
outside to the inside: ``promises``, then ``acceptance`` (real processes, and faults in their short form), then ``room``
(the tests of the room that holds the file). The result is a line for each mutation, with all suites that catch it; with
``--first``, which is quicker, with the first one. Where only ``room`` catches one, ``tests/promises`` lacks a promise.

Tests that fail are run again, because one that fails by chance proves nothing; and once without the mutation, because
one that always fails proves nothing either.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutations import MUTATIONS
from tests.mutations.mutation import Mutation

ROOT = Path(__file__).resolve().parents[2]

#: From the outside to the inside.
SUITES = ("promises", "acceptance", "room")

#: Seconds that one suite may take. A mutation may make a beat hang, and then each of many tests waits for its end.
LONGEST = 600

PROMISES = "tests/promises"


class SuiteIsBrokenError(Exception):
    """A test fails without a mutation, or pytest cannot run at all."""


class Workshop:
    """A copy of the checkout, in which one mutation at a time is tested."""

    def __init__(self, directory: Path, processes: int) -> None:
        self.checkout = directory / "checkout"
        self._processes = processes
        #: Tests that have passed without a mutation.
        self._sound: set[str] = set()
        ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "_build")
        shutil.copytree(ROOT, self.checkout, ignore=ignored)
        self._env = {**os.environ, "PYTHONPATH": str(self.checkout)}

    def check_import(self) -> None:
        """Raise unless Python imports the copy, and not an installed package."""
        command = (sys.executable, "-c", "import redbeat_lite; print(redbeat_lite.__file__)")
        ended = subprocess.run(command, cwd=self.checkout, env=self._env, capture_output=True, text=True, check=True)
        if not Path(ended.stdout.strip()).is_relative_to(self.checkout):
            raise SuiteIsBrokenError(f"the tests would import {ended.stdout.strip()}, not the copy")

    def verdict(self, mutation: Mutation, suites: Sequence[str], *, only_first: bool = False) -> str:
        """Return which suites catch this mutation and by which tests, or that it survived."""
        mutated = mutation.mutated(self.checkout)
        path = mutation.path(self.checkout)
        original = path.read_text()
        replace(path, mutated)
        try:
            catches = self._catches(mutation, suites, only_first=only_first)
        finally:
            replace(path, original)
        if not catches:
            return f"SURVIVED {', '.join(suites)}"
        for failed in catches.values():
            self._check_sound(failed)
        return "; ".join(
            f"{suite}: {', '.join(test.rpartition('/')[2] for test in failed)}" for suite, failed in catches.items()
        )

    def _catches(self, mutation: Mutation, suites: Sequence[str], *, only_first: bool) -> dict[str, list[str]]:
        """Return suite -> the tests that failed, for each suite that catches this mutation."""
        catches: dict[str, list[str]] = {}
        for suite in suites:
            for tests in stages_of(mutation, suite):
                failed = self._failures(tests)
                # Run again what has failed: it may have failed by chance.
                failed = self._failures(failed)
                if failed:
                    catches[suite] = failed
                    break
            if catches and only_first:
                break
        return catches

    def _check_sound(self, tests: Sequence[str]) -> None:
        """Raise unless these tests pass without a mutation."""
        failed = self._failures([test for test in tests if test not in self._sound])
        if failed:
            raise SuiteIsBrokenError(f"fails without a mutation: {', '.join(failed)}")
        self._sound.update(tests)

    def _failures(self, tests: Sequence[str]) -> list[str]:
        """Run these tests until one of them fails, and return those that failed."""
        if not tests:
            return []
        several = () if all("::" in test for test in tests) else ("-n", str(self._processes))
        command = [sys.executable, "-m", "pytest", "-x", "-q", *several, *tests]
        process = subprocess.Popen(
            command,
            cwd=self.checkout,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            return [*tests]
        finally:
            if process.poll() is None:
                # The processes that the tests have started end with pytest.
                process.terminate()
                process.communicate()
        if process.returncode == 0:
            return []
        failed = failed_tests(output)
        if not failed:
            raise SuiteIsBrokenError(f"pytest ended with {process.returncode}: {output[-300:]}")
        return failed


def stages_of(mutation: Mutation, suite: str) -> list[tuple[str, ...]]:
    """Return the tests of one suite for a mutation: first the one that is expected to catch it."""
    if suite == "acceptance":
        return [mutation.acceptance]
    if suite == "room":
        return [mutation.room]
    return [(f"{PROMISES}/{mutation.promise}",), (PROMISES,)]


def failed_tests(output: str) -> list[str]:
    """Return the tests that pytest names as failed in its summary."""
    return re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)


def replace(path: Path, text: str) -> None:
    """Write a source file, and delete what Python compiled of it."""
    path.write_text(text)
    # Python takes a compiled file for current by the size of the source and the second in which it was written.
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def chosen(words: Sequence[str]) -> list[Mutation]:
    """Return the mutations whose names contain one of these texts; all where there is none."""
    unknown = [word for word in words if not any(word in mutation.name for mutation in MUTATIONS)]
    if unknown:
        raise SystemExit(f"no mutation has {unknown[0]!r} in its name; --list prints all names")
    if not words:
        return list(MUTATIONS)
    return [mutation for mutation in MUTATIONS if any(word in mutation.name for word in words)]


def suites_of(text: str) -> list[str]:
    """Read a list of suites, as the command line has it."""
    suites = text.split(",")
    unknown = [suite for suite in suites if suite not in SUITES]
    if unknown:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(SUITES)}, got {unknown[0]!r}")
    return [suite for suite in SUITES if suite in suites]


def stop(number: int, frame: object) -> None:
    """End the script so that it removes its copy and ends its tests."""
    raise SystemExit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only mutations with one of these texts in their names")
    parser.add_argument("--suites", type=suites_of, default=list(SUITES), help=",".join(SUITES))
    parser.add_argument("--first", action="store_true", help="end with the first suite that catches one")
    parser.add_argument("-n", type=int, default=4, dest="processes", help="test processes at once (4)")
    parser.add_argument("--list", action="store_true", help="print the names and test nothing")
    asked = parser.parse_args()
    mutations = chosen(asked.names)
    if asked.list:
        for mutation in mutations:
            print(mutation.name)
        return
    signal.signal(signal.SIGTERM, stop)
    with tempfile.TemporaryDirectory(prefix="mutations-") as directory:
        workshop = Workshop(Path(directory), asked.processes)
        workshop.check_import()
        for mutation in mutations:
            began = time.monotonic()
            try:
                verdict = workshop.verdict(mutation, asked.suites, only_first=asked.first)
            except SuiteIsBrokenError as exc:
                verdict = f"NOT TESTED, {exc}"
            print(f"{mutation.name}: {verdict} ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
