"""Real beats of one scenario: started, killed, frozen, stopped, and held to their manners."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from typing import Any

from tests.support.audit import Record
from tests.support.beats import KEYS
from tests.support.processes import Process, celery
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

#: Seconds within which a beat ends after SIGTERM. It promises two; its own tests check that.
STOP = 10.0

#: No beat may print a line like this.
BAD_WORDS = "CRITICAL|Traceback"


class Beats:
    """All beats of a scenario.

    Parameters:
        schedule: opens a client of the server that holds the schedule.
        url: of the broker, with a password, which no beat may print.
        conf: settings of their app.
    """

    def __init__(self, schedule: Callable[[], Any], url: str, conf: dict[str, Any]) -> None:
        assert "@" in url, "a URL without a password cannot show that no beat prints it"
        self.url = url
        self.conf = conf
        self.running: list[Process] = []
        self.ended: list[Process] = []
        #: Seconds for which the machine kept the beats and the suite from running.
        self.watch = Stopwatch(often=0.05)
        self._schedule = schedule

    def start(
        self,
        *,
        url: str | None = None,
        conf: dict[str, Any] | None = None,
        **env: Any,
    ) -> Process:
        """Start one more beat.

        Parameters:
            url: of its broker, if it is another way to the same one.
            conf: settings that only this beat has.
            env: more of its environment.
        """
        conf = {**self.conf, **(conf or {})}
        words = ("beat", "-S", "redbeat_lite.Scheduler", "-l", "INFO")
        env = {"PROJ_URL": url or self.url, "PROJ_CONF": json.dumps(conf), "PROJ_QUIET": 1, **env}
        beat = celery("tests.acceptance.proj", *words, **env)
        self.running.append(beat)
        self.watch.add(beat)
        return beat

    def leader(self) -> Process:
        """Wait until one of these beats holds the lease, and return it."""
        leader = eventually(self._leader, within=20, what="a leader among the beats")
        assert leader is not None
        return leader

    def _leader(self) -> Process | None:
        try:
            with self._schedule() as client:
                pid = client.hget(KEYS.leader, "pid")
        except Exception:
            return None
        return next((beat for beat in self.running if pid and beat.pid == int(pid)), None)

    def followers(self) -> list[Process]:
        """Return the beats that do not lead."""
        leader = self.leader()
        return [beat for beat in self.running if beat is not leader]

    def kill(self, beat: Process) -> None:
        """Kill a beat by SIGKILL."""
        assert beat.alive, beat.output
        beat.kill()
        code = beat.wait()
        assert code == -signal.SIGKILL, f"exit code {code}\n{beat.output}"
        self._leave(beat)

    def stop(self, beat: Process) -> None:
        """Stop a beat by SIGTERM; it has to exit with 0 in time."""
        # A signal that comes earlier may find Python without a handler.
        beat.says("beat: (leading|standing by)")
        beat.terminate()
        with suppress(subprocess.TimeoutExpired):
            beat.wait(STOP)
        assert not beat.alive, f"it has not ended within {STOP:g} s\n{beat.output}"
        code = beat.wait()
        assert code == 0, f"exit code {code}\n{beat.output}"
        self._leave(beat)

    @contextmanager
    def frozen(self, beat: Process) -> Iterator[None]:
        """Freeze a beat for the duration of the block."""
        beat.signal(signal.SIGSTOP)
        yield
        beat.signal(signal.SIGCONT)

    def dismiss(self) -> None:
        """Stop all beats. None of them may have ended by itself or printed bad words."""
        # The leader is the last one, so that no other beat leads for a moment before it stops too.
        for beat in [*self.followers(), self.leader()]:
            assert beat.alive, beat.output
            self.stop(beat)
        for beat in self.ended:
            assert not beat.lines(BAD_WORDS), beat.output

    def terms(self) -> list[Record]:
        """Return a record of each term, by the clocks of the beats that have ended."""
        terms: list[Record] = []
        for beat in self.ended:
            for line in beat.lines("beat: leading"):
                [text] = re.findall(r"^\[([-0-9]+ [:0-9]+,[0-9]+)", line)
                began = round(1000 * datetime.fromisoformat(text).timestamp())
                terms.append({"kind": "term", "began": began, "sender": beat.pid})
        return terms

    def close(self) -> None:
        """End all beats; none of them may have printed a password."""
        self.watch.stop()
        with ExitStack() as stack:
            for beat in (*self.running, *self.ended):
                stack.callback(beat.destroy)

    def _leave(self, beat: Process) -> None:
        self.running.remove(beat)
        self.ended.append(beat)
