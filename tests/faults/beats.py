"""Real beats of one scenario: started, killed, stopped, and checked for what they print."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from typing import Any, Generic, TypeVar

from tests.support.audit import Record
from tests.support.beats import leader_pid
from tests.support.processes import Process, celery_beat
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

#: No beat may print a line like this.
BAD_WORDS = "CRITICAL|Traceback"

P = TypeVar("P", bound=Process)


class Herd(Generic[P]):
    """The processes of one kind in a scenario. The output of those that ended is kept."""

    def __init__(self) -> None:
        self.running: list[P] = []
        self.ended: list[P] = []

    def leaves(self, process: P) -> None:
        """Count a process among those that ended."""
        self.running.remove(process)
        self.ended.append(process)

    def close(self) -> None:
        """End all processes; none of them may have printed a password."""
        with ExitStack() as stack:
            for process in (*self.running, *self.ended):
                stack.callback(process.destroy)


class Beats(Herd[Process]):
    """All beats of a scenario. None may print the password of its ``url``.

    ``schedule`` opens a client of the server that holds the schedule.
    """

    def __init__(self, schedule: Callable[[], Any], url: str, conf: dict[str, Any]) -> None:
        assert "@" in url, "a URL without a password cannot show that no beat prints it"
        super().__init__()
        self.url = url
        self.conf = conf
        #: Measures for how long the machine keeps the beats and the suite from running.
        self.watch = Stopwatch(often=0.05)
        self._schedule = schedule

    def start(
        self,
        *,
        url: str | None = None,
        conf: dict[str, Any] | None = None,
        **env: Any,
    ) -> Process:
        """Start one more beat; ``url`` leads to its broker, ``conf`` and ``env`` are its own."""
        conf = {**self.conf, **(conf or {})}
        env = {"PROJ_URL": url or self.url, "PROJ_CONF": json.dumps(conf), "PROJ_QUIET": 1, **env}
        beat = celery_beat("tests.acceptance.proj", **env)
        self.running.append(beat)
        self.watch.add(beat)
        return beat

    def leader(self) -> Process:
        """Wait until one of these beats holds the lease, and return it."""
        leader = eventually(self._leader, what="a leader among the beats")
        assert leader is not None
        return leader

    def _leader(self) -> Process | None:
        try:
            with self._schedule() as client:
                pid = leader_pid(client)
        except Exception:
            return None
        return next((beat for beat in self.running if beat.pid == pid), None)

    def followers(self) -> list[Process]:
        """Return the beats that do not lead."""
        leader = self.leader()
        return [beat for beat in self.running if beat is not leader]

    def kill(self, beat: Process) -> None:
        """Kill a beat by SIGKILL."""
        assert beat.alive
        beat.kill()
        assert beat.wait() == -signal.SIGKILL
        self.leaves(beat)

    def stop(self, beat: Process) -> None:
        """Stop a beat by SIGTERM; it has to exit with 0."""
        # A signal that comes earlier may find Python without a handler.
        beat.says("beat: (leading|standing by)")
        # A beat promises to end within two seconds, which its own tests check. Here it may get no
        # processor for longer.
        beat.stop()
        self.leaves(beat)

    def stop_all(self) -> None:
        """Stop all beats. None of them may have ended by itself or printed bad words."""
        # The leader is the last one, so that no other beat leads for a moment before it stops too.
        for beat in [*self.followers(), self.leader()]:
            assert beat.alive
            self.stop(beat)
        for beat in self.ended:
            assert not beat.lines(BAD_WORDS), beat.output

    def terms(self) -> list[Record]:
        """Return a record of each term of the beats that have ended, by the times of their logs."""
        terms: list[Record] = []
        for beat in self.ended:
            for line in beat.lines("beat: leading"):
                [text] = re.findall(r"^\[([-0-9]+ [:0-9]+,[0-9]+)", line)
                began = round(1000 * datetime.fromisoformat(text).timestamp())
                terms.append({"kind": "term", "began": began, "sender": beat.pid})
        return terms

    def close(self) -> None:
        """End the watch and all beats."""
        self.watch.stop()
        super().close()
