"""State of one beat: its role, its counts and its last sign of life."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery.utils.log import get_logger

from .._base.clock import elapsed
from .._base.json_values import dumps
from ..events import Event, LeaderGained, LeaderLost
from .announcer import Announcer
from .heartbeat import HeartbeatFile

logger = get_logger(f"celery.{__name__}")

#: Maximum number of characters of the text of a failure.
_MAX_WHY = 200


@dataclass(eq=False)
class BeatState:
    """State of one beat. The main loop writes it, and other threads read it.

    The incident watch, which is another thread, writes ``incidents`` and ``unpublished`` as well.

    Parameters:
        announcer: hands events to the hooks of the user.
        heartbeat: writer of the heartbeat file; ``None`` if no file is set.
        queue: default queue, as :func:`redbeat_lite._base.celery_app.default_queue` names it.
    """

    announcer: Announcer
    heartbeat: HeartbeatFile | None
    queue: str

    def __post_init__(self) -> None:
        # Counts since this process first led: occurrences sent, publishes that failed, and
        # occurrences that were left out.
        self.sent = 0
        self.failed = 0
        self.skipped = 0
        #: Sentence about how messages are sent, for reports.
        self.dispatch = ""
        #: Count of the stored entries at the last renewal.
        self.entries = 0
        #: Count of the due entries at the last renewal.
        self.due = 0
        #: Count of the config entries that were refused when the configuration was last read.
        self.refused = 0
        #: Whether a freeze holds, as far as this process knows.
        self.is_frozen = False
        #: Names of entries whose last publish failed. The incident watch removes the names of
        #: entries that are gone, or were published since.
        self.unpublished: set[str] = set()
        #: Kind of incident -> count of open incidents of this kind. The incident watch sets it.
        self.incidents: Mapping[str, int] = {}
        #: Whether the last attempt to write the heartbeat file has failed.
        self._heartbeat_fails = False
        #: Last sign of life of the main loop, in seconds of :func:`elapsed`.
        self._alive_at = elapsed()
        #: ``"starting"``, ``"stand-by"`` or ``"leader"``, for the heartbeat file.
        self._role = "starting"
        #: Number of the term in which this beat leads; ``None`` if it does not lead.
        self._term: int | None = None
        #: When the server or the broker began to fail, in seconds of :func:`elapsed`; ``None`` if
        #: both can be used.
        self._failing_since: float | None = None
        #: The failure in words; empty if both can be used.
        self._why = ""

    # -- written by the main loop -----------------------------------------------------------------

    def give_sign_of_life(self) -> None:
        """Show that the main loop lives, and write the heartbeat file once a second.

        The loop calls this very often, so it must be cheap.
        """
        self._alive_at = elapsed()
        if self.heartbeat is None:
            return
        try:
            # Within a second of the last attempt, write() writes nothing and returns False.
            if self.heartbeat.write(self._role, self._failing_since, self._why):
                self._heartbeat_fails = False
        except OSError as exc:
            # Of several failures in a row, log only the first.
            if not self._heartbeat_fails:
                reason = exc.strerror or exc
                logger.error(
                    "beat: cannot write the heartbeat file %s: %s", self.heartbeat.path, reason
                )
            self._heartbeat_fails = True

    def begin_standby(self) -> None:
        """Show that this process stands by."""
        self._role = "stand-by"

    def begin_term(self, term: int) -> None:
        """Show that this process leads. Announce the term, if it is a new one."""
        self._role = "leader"
        if self._term != term:
            self._term = term
            self.announce(LeaderGained(term))

    def end_term(self, reason: str) -> None:
        """Show that this process does not lead any more, and announce the end of its term.

        If this process does not lead, nothing happens.
        """
        if self._term is None:
            return
        self._role = "stand-by"
        self._term = None
        self.announce(LeaderLost(reason))

    def begin_failure(self, why: str) -> None:
        """Show that the server or the broker cannot be used, and why."""
        if self._failing_since is None:
            self._failing_since = elapsed()
        self._why = why[:_MAX_WHY]

    @property
    def failing_for(self) -> float | None:
        """Seconds for which the server or the broker has failed; ``None`` if both can be used."""
        return None if self._failing_since is None else elapsed() - self._failing_since

    def end_failure(self) -> None:
        """Show that the server and the broker can be used."""
        self._failing_since = None
        self._why = ""

    def announce(self, *events: Event) -> None:
        """Queue events for the hooks."""
        self.announcer.announce(events)

    def remove_heartbeat(self) -> None:
        """Remove the heartbeat file, if there is one. A second call does no harm."""
        if self.heartbeat is not None:
            self.heartbeat.remove()

    def close(self) -> None:
        """Announce the end of the term, if this beat leads, and wait briefly for the hooks.

        A second call does no harm.
        """
        self.end_term("the beat was stopped")
        self.announcer.close()

    # -- read by other threads --------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Whether this beat leads."""
        return self._term is not None

    @property
    def silent_ms(self) -> int:
        """Milliseconds since the last sign of life of the main loop."""
        return max(round(1000 * (elapsed() - self._alive_at)), 0)

    def report(self) -> str:
        """Return the JSON that the leader stores in its lease. :mod:`.status` decodes it."""
        report: dict[str, Any] = {
            "sent": self.sent,
            "failed": self.failed,
            "skipped": self.skipped,
            "dispatch": self.dispatch,
            "queue": self.queue,
        }
        if self._failing_since is not None:
            report["failing_for"] = self.failing_for
            report["why"] = self._why
        return dumps(report)
