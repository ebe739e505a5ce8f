"""What a run of the tests says when one fails, and what it leaves behind, however it ends."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.process_table import descendants, is_running
from tests.support.processes import ROOT
from tests.support.waiting import eventually

FILE = "tests/acceptance/failing.py"


def command(name: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", name, *words, FILE]


def test_a_test_that_fails_tells_what_its_processes_said_and_what_its_server_holds() -> None:
    done = subprocess.run(command("fails"), cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1
    assert "on purpose" in done.stdout
    assert "output of " in done.stdout
    assert "processes of this run" in done.stdout
    assert "beat: leading (term 1)" in done.stdout
    assert "state of the server on port" in done.stdout
    assert "{redbeat-lite}:leader" in done.stdout
    assert f"one of them alone: make test ARGS='{FILE}::test_fails'" in done.stdout


class Grumbler:
    """A thread that logs when it is asked to."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._asked.wait(60)
        logging.getLogger(__name__).warning("a minute is over")

    def ask(self) -> None:
        self._asked.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def grumbler() -> Grumbler:
    """One that was there before the test."""
    return Grumbler()


def test_what_the_threads_of_others_log_is_not_in_the_log_of_a_test(
    caplog: pytest.LogCaptureFixture, grumbler: Grumbler
) -> None:
    grumbler.ask()
    assert caplog.messages == []
    Grumbler().ask()
    assert caplog.messages == ["a minute is over"]


def test_a_file_that_is_left_in_the_checkout_fails_the_run(pytestconfig: pytest.Config) -> None:
    plugin = "tests.support.litter"
    assert pytestconfig.pluginmanager.has_plugin(plugin)
    alone = command("leaves_a_file", "--noconftest", "-p", plugin)  # which starts no nursery
    litter = ROOT / f"litter of {os.getpid()}"
    env = {**os.environ, "LITTER": litter.name}
    try:
        done = subprocess.run(alone, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    finally:
        litter.unlink(missing_ok=True)
    assert "1 passed" in done.stdout
    assert f"left in the checkout: {litter.name}" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("number", "words"),
    [
        pytest.param(signal.SIGKILL, ("-n", "1"), id="killed, by xdist"),
        pytest.param(signal.SIGINT, ("-n", "1"), id="broken off, by xdist", marks=pytest.mark.soak),
        *(
            pytest.param(number, words, marks=pytest.mark.soak, id=f"{number.name}, {' '.join(words)}")
            for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
            for words in ((), ("-n", "2"))
        ),
    ],
)
def test_nothing_is_left_of_a_run_that_is_broken_off(tmp_path: Path, number: int, words: tuple[str, ...]) -> None:
    told = tmp_path / "told"
    env = {**os.environ, "TOLD": str(told)}
    run = subprocess.Popen(command("never_ends", *words), cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
    try:
        directory = Path(eventually(lambda: told.exists() and told.read_text(), what="processes"))
        started = descendants(run.pid)
        assert len(started) >= 6, "a nursery, a server, two beats, a worker and its children"
        assert directory.is_dir()
        run.send_signal(number)
        run.wait(40)
        eventually(lambda: not any(map(is_running, started)), what="the end of all processes")
        eventually(lambda: not directory.exists(), what="the end of all files")
    finally:
        run.kill()
        run.wait()
