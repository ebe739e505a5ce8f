"""Real ``celery beat`` and ``celery worker`` processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

from tests.support.aftermath import dismiss, hear
from tests.support.nursery import ROOT, STACKS, nursery
from tests.support.waiting import eventually


class Process:
    """A process whose output goes to a file that can be searched while it runs."""

    def __init__(self, command: list[str], env: dict[str, str], *, cwd: Path = ROOT, inherit: bool = True) -> None:
        self._log = tempfile.NamedTemporaryFile(prefix="rbl-", suffix=".log", delete=False)  # noqa: SIM115 - closed in destroy()
        own = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "200"} if inherit else {}
        self._passwords = set(re.findall(r"://[^:/@\s]*:([^@\s]{6,})@", " ".join(env.values())))
        self.started = time.monotonic()
        self._process = nursery().start(command, stdout=self._log, env={**own, **env}, cwd=cwd)
        hear(self, f"output of {self.pid}: {' '.join(command)}", lambda: self.output)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.destroy()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return Path(self._log.name).read_text(errors="replace")

    def lines(self, pattern: str) -> list[str]:
        """The lines of the output so far that match."""
        return [line for line in self.output.splitlines() if re.search(pattern, line)]

    def says(self, pattern: str, *, within: float = 60.0) -> str:
        """Wait until a line of the output matches, and return it."""
        read = -1

        def found() -> list[str]:
            nonlocal read
            before, read = read, Path(self._log.name).stat().st_size
            return self.lines(pattern) if read != before else []

        try:
            return eventually(found, within=within, what=f"a line like {pattern!r}")[0]
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{self.output}") from None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it by SIGKILL, and wait for its end."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self, within: float = 60.0) -> None:
        """Stop it by SIGTERM; it has to exit with 0 in time."""
        self.terminate()
        assert self.wait(within) == 0

    def wait(self, within: float = 60.0) -> int:
        """Wait for the end and return the exit code. One that does not end says where it hangs, in its output.

        A child of a worker that is told to stop may wait for 30 s: for its parent, to read what its last task gave.
        """
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            self.signal(STACKS)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.5)  # it may take a moment to write
            raise

    def ends(self, within: float) -> bool:
        """Return whether it ends within so many seconds."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(within)
        return not self.alive

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze it for the length of the block."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def destroy(self) -> None:
        if self.alive:
            self.signal(signal.SIGCONT)
            self.kill()
        shown = {each for each in self._passwords if each in self.output or unquote(each) in self.output}
        self._log.close()
        Path(self._log.name).unlink(missing_ok=True)
        dismiss(self)
        assert not shown, "a password of its URL is in the output of this process"


def celery(app: str, *words: str, **env: Any) -> Process:
    """Start ``celery -A app words…``."""
    return Process(*celery_command(app, *words, **env))


def celery_beat(app: str, *words: str, **env: Any) -> Process:
    """Start ``celery -A app beat`` with the scheduler of the package."""
    return celery(app, "beat", "-S", "redbeat_lite.Scheduler", "-l", "INFO", *words, **env)


def celery_command(app: str, *words: str, **env: Any) -> tuple[list[str], dict[str, str]]:
    """Return the command ``celery -A app words…`` and its environment."""
    command = [sys.executable, "-m", "celery", "-A", app, *words]
    return command, {key: str(value) for key, value in env.items()}


def run_celery(app: str, *words: str, env: dict[str, str], within: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run ``celery -A app words…`` to its end."""
    return run_python("-m", "celery", "-A", app, *words, env=env, within=within)


def run_python(
    *words: str, env: dict[str, str], cwd: Path = ROOT, within: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run ``python words…`` to its end."""
    command = [sys.executable, *words]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = nursery().start(command, env=env, cwd=cwd, stdout=out, stderr=err)
        try:
            code = process.wait(within)
        finally:
            process.kill()
        texts = [each.read() for each in (out, err) if not each.seek(0)]
    return subprocess.CompletedProcess(command, code, *texts)
