"""Signs of life of one beat: what its main loop notes, and what the renewal, the hooks and a heartbeat file pass on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery.utils.log import get_logger

from ..clock import elapsed
from ..entries.freezes import Freezes
from ..events import Event, LeaderGained, LeaderLost
from ..storage.json_values import dumps
from .announcer import Announcer
from .heartbeat import HeartbeatFile

logger = get_logger(f"celery.{__name__}")

#: Longest text of what is wrong that goes into a report.
_MAX_WHY = 200


class Vitals:
    """How one beat fares. Written by the main loop, read by the renewal thread and by whoever collects metrics."""

    def __init__(self, announcer: Announcer, heartbeat: HeartbeatFile | None = None) -> None:
        self.announcer = announcer
        self.sent = self.failed = self.skipped = 0  #: occurrences since this process first led
        self.dispatch = ""  #: how messages go out, in words
        self.queue = ""  #: the default queue, as :func:`redbeat_lite.broker.default_queue` names it
        self.entries = self.due = 0  #: stored, and due by now, as the last renewal saw it
        self.backfill_left = 0  #: occurrences of backfills that run
        self.refused = 0  #: config entries that were, when the configuration was read last
        self.freezes: Callable[[], Freezes] = Freezes  #: those that this process knows
        self.unpublished: set[str] = set()  #: entries of which a publish has failed lately
        self.incidents: Mapping[str, int] = {}  #: how many are open of each kind, as the last look saw it
        self._heartbeat = heartbeat
        self._unwritable = False
        self._alive = elapsed()
        self._role = "starting"
        self._term: int | None = None
        self._failing_since: float | None = None
        self._why = ""

    # -- the main loop ------------------------------------------------------------------------------------------------

    def alive(self) -> None:
        """The main loop is not stuck. Called very often, so it costs next to nothing."""
        self._alive = elapsed()
        if self._heartbeat is None:
            return
        try:
            if self._heartbeat.write(self._role, self._failing_since, self._why):
                self._unwritable = False
        except OSError as exc:
            if not self._unwritable:
                self._unwritable = True
                logger.error("beat: cannot write the heartbeat file %s: %s", self._heartbeat.path, exc.strerror or exc)

    def standing_by(self) -> None:
        self._role = "stand-by"

    def leading(self, term: int) -> None:
        self._role = "leader"
        if self._term != term:
            self._term = term
            self.tell(LeaderGained(term))

    def lost(self, reason: str) -> None:
        """This process leads no more."""
        if self._term is not None:
            self._role, self._term = "stand-by", None
            self.tell(LeaderLost(reason))

    def failing(self, why: str) -> None:
        """The server or the broker cannot be used."""
        if self._failing_since is None:
            self._failing_since = elapsed()
        self._why = why[:_MAX_WHY]

    def recovered(self) -> None:
        """Everything can be used again."""
        self._failing_since, self._why = None, ""

    def tell(self, *events: Event) -> None:
        self.announcer.tell(events)

    def remove_heartbeat(self) -> None:
        """Remove the heartbeat file, if there is one. May be called twice."""
        if self._heartbeat is not None:
            self._heartbeat.remove()

    def close(self) -> None:
        """Tell the hooks that the beat ends. May be called twice."""
        self.lost("the beat was stopped")
        self.announcer.close()

    # -- the others ---------------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return self._term is not None

    def report(self) -> tuple[int, str]:
        """Milliseconds since the main loop gave a sign of life, and what renewals leave for :mod:`.status`, as JSON."""
        silence, since = max(round(1000 * (elapsed() - self._alive)), 0), self._failing_since
        report: dict[str, Any] = {"sent": self.sent, "failed": self.failed, "skipped": self.skipped}
        report |= {"dispatch": self.dispatch, "backfill_left": self.backfill_left, "queue": self.queue}
        if since is not None:
            report |= {"failing_ms": round(1000 * (elapsed() - since)), "why": self._why}
        return silence, dumps(report)
