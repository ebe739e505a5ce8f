"""Recovery from failed turns: a log line for each, waits that grow, and a line at the end.

A beat that cannot use Redis announces this to its hooks directly, because it cannot write an
incident to Redis.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass
from typing import NoReturn

from celery.utils.log import get_logger
from redis.exceptions import AuthenticationError, MovedError, ResponseError

from .._base.clock import elapsed, wall_ms
from .._base.errors import UnsupportedFormat
from .._base.text import text_of
from .._base.times import from_ms
from ..events import IncidentClosed, IncidentOpened
from ..runs.incident import LEADERLESS, Incident
from ..settings import Settings, key_root
from ..store.connections import FAULTS, Backend, refusal
from ..store.keys import ForeignKey
from .beat_state import BeatState
from .dispatch.publisher import BrokerDown, Publisher
from .leadership import Leadership
from .wakeup import Wakeup

logger = get_logger(f"celery.{__name__}")

#: Longest wait between two attempts, in seconds. Due entries should be sent within five seconds
#: after a recovery, and the first batch needs some of that time.
_LAST_RETRY = 3.0

#: Consecutive unexpected failures after which another beat should try.
_MOST_UNEXPECTED = 3

#: Seconds between two announcements that this beat sees no leader.
_AGAIN = 3600.0


@dataclass(eq=False)
class Outage:
    """Failures of one beat since its last successful turn."""

    backend: Backend
    settings: Settings
    leadership: Leadership
    publisher: Publisher
    wakeup: Wakeup
    state: BeatState

    def __post_init__(self) -> None:
        #: Count of consecutive failures.
        self._failures = 0
        #: Count of consecutive unexpected failures.
        self._unexpected = 0
        #: Type and place of the failures whose traceback is in the log.
        self._traced: set[str] = set()
        # Instants are in seconds of elapsed().
        #: Instant since which the broker cannot be used; ``None`` if it can.
        self._without_broker_since: float | None = None
        #: Instant since which Redis cannot be used; ``None`` if it can.
        self._cut_off: float | None = None
        #: When to tell the hooks next that Redis cannot be used.
        self._next_notice = 0.0
        #: Incident that was announced; ``None`` again as soon as Redis can be used.
        self._opened: IncidentOpened | None = None
        #: The last error about a key of another program, so that it is logged once.
        self._foreign_key = ""
        #: Whether the beat has ended because no further attempt can succeed.
        self.gave_up = False

    def handle(self, exc: Exception) -> float:
        """Recover from a failed turn. Return the seconds until the next turn: 1, 2, 3, 3 …

        Raises:
            SystemExit: no further attempt can succeed.
        """
        server = self.backend.display_url
        # Text that all keys begin with. An error text about missing rights in the ACL names it.
        root = key_root(self.settings.key_prefix)
        if isinstance(exc, UnsupportedFormat):
            self._give_up(str(exc))
        # In redis-py 5, only a cluster's client raises MovedError. Other clients raise another
        # error with the server's text.
        if isinstance(exc, MovedError) or text_of(exc).startswith("MOVED "):
            fix = "redbeat_lite_url has to begin with redis-cluster://"
            self._give_up(f"{server} is a node of a Redis Cluster; {fix}")
        if isinstance(exc, AuthenticationError):
            why = f"{server} refuses to let us in: {refusal(exc, root)}"
            # A server that has accepted the password before may accept it again. So give up only if
            # it has never done so.
            if not self.leadership.has_checked_server:
                self._give_up(why)
            return self._handle_redis(why)
        if isinstance(exc, ForeignKey):
            return self._handle_foreign_key(exc)
        if isinstance(exc, BrokerDown):
            return self._handle_broker(exc)
        # The server may be the broker, too, and may have lost its queues in a restart. A new
        # connection declares the queues again.
        self.publisher.close()
        # The server may have become a replica, which refuses writes. Only new connections lead to
        # the server that has taken its place.
        if isinstance(exc, ResponseError):
            self._start_over()
        if isinstance(exc, FAULTS):
            return self._handle_redis(f"cannot use {server}: {text_of(refusal(exc, root))}")
        return self._handle_unexpected(exc)

    def note_success(self) -> None:
        """Forget the failures, and report the end of the outage if there was one."""
        if self._failures:
            logger.warning("beat: working again after %.1f s", self.state.failing_for)
        self._foreign_key = ""
        self._failures = 0
        self._unexpected = 0
        self._without_broker_since = None
        self.state.end_failure()
        self._note_redis()

    # -- kinds of failures ------------------------------------------------------------------------

    def _give_up(self, message: str) -> NoReturn:
        """Log why no further attempt can succeed, and raise SystemExit to end the beat."""
        logger.log(logging.CRITICAL, "beat: %s", message)
        self.gave_up = True
        raise SystemExit

    def _handle_redis(self, why: str) -> float:
        """Try again later, and call the hooks if the failures last."""
        self._note_cut_off(why)
        return self._next_wait(why)

    def _handle_foreign_key(self, exc: ForeignKey) -> float:
        """Stand by until the key of another program is gone.

        The data in that key may be precious, so this beat does not remove it.
        """
        why = str(exc)
        if why != self._foreign_key:
            logger.critical("beat: standing by, because %s", why)
        self._foreign_key = why
        self.leadership.leave()
        self.leadership.foreign_key = exc.key  # It is checked before this beat leads again.
        self._failures += 1
        self._note_cut_off(why)
        self.state.begin_failure(why)
        return _LAST_RETRY

    def _handle_broker(self, exc: BrokerDown) -> float:
        """Try again later. After ``stall_timeout``, let another beat try.

        The broker may be out of reach for this beat alone.
        """
        self._note_redis()  # Redis works, because this turn has read due entries.
        if self._without_broker_since is None:
            self._without_broker_since = elapsed()
        missing_for = elapsed() - self._without_broker_since
        if missing_for >= self.settings.stall_timeout:
            # Another beat may try now. Measure again from the next failure of this beat on.
            self._without_broker_since = None
            self.leadership.yield_lease(f"no message could be sent for {missing_for:.0f} s")
            # The network may have cut old connections to Redis, too. A command over one of them
            # would wait for a timeout when this beat tries to lead again.
            self._start_over()
        return self._next_wait(f"cannot reach the broker: {text_of(exc)}")

    def _handle_unexpected(self, exc: Exception) -> float:
        """Repeat the turn over new connections. After several failures, let another beat try.

        A turn may be repeated, because each write is idempotent and names its term.
        """
        self._unexpected += 1
        raised_at = traceback.extract_tb(exc.__traceback__)[-1]
        # Log the traceback only once for errors of the same type from the same line of code.
        kind = f"{type(exc)} in {raised_at.filename}, line {raised_at.lineno}"
        if kind not in self._traced:
            self._traced.add(kind)
            logger.error("beat: a turn failed with an unexpected error", exc_info=exc)
        self._start_over()
        if self._unexpected >= _MOST_UNEXPECTED:
            self._unexpected = 0
            self.leadership.yield_lease(f"{_MOST_UNEXPECTED} turns in a row failed")
        return self._handle_redis(f"a turn failed: {type(exc).__name__}: {text_of(exc)}")

    # -- helpers ----------------------------------------------------------------------------------

    def _start_over(self) -> None:
        """Have the next turn check the whole schedule, over new connections.

        If a server was demoted to a replica, old connections still lead to it. Only new ones lead
        to its successor behind the same name or proxy.
        """
        self.leadership.start_over()
        self.wakeup.close()
        self.backend.close()

    def _next_wait(self, why: str) -> float:
        """Log a failure. Return the seconds until the next attempt, which grow up to a limit."""
        self._failures += 1
        seconds = min(float(self._failures), _LAST_RETRY)
        self.state.begin_failure(why)
        logger.error("beat: %s; trying again in %g s", why, seconds)
        return seconds

    def _note_cut_off(self, why: str) -> None:
        """Announce to the hooks that this beat sees no leader, once Redis has failed for a while.

        Parameters:
            why: the reason, without a password.
        """
        now = elapsed()
        if self._cut_off is None:
            self._cut_off = now
            # The same time without a leader passes before an incident ``no_leader`` opens.
            self._next_notice = now + self.settings.lease + LEADERLESS
        if now <= self._next_notice:
            return
        self._next_notice = now + _AGAIN
        if self._opened is None:
            # This incident is not stored. It only computes the id.
            incident = Incident("no_leader", entry=None, since=from_ms(wall_ms()), text="")
            self._opened = IncidentOpened(incident.id, incident.kind, None, incident.since, text="")
        self._opened = self._opened._replace(text=f"{why}, for {now - self._cut_off:.0f} s")
        self.state.announce(self._opened)

    def _note_redis(self) -> None:
        """Announce to the hooks that Redis can be used again, if its failure was announced."""
        opened = self._opened
        self._opened = None
        self._cut_off = None
        if opened is not None:
            # IncidentClosed has the fields of IncidentOpened, and then the end of the incident.
            self.state.announce(IncidentClosed(*opened, from_ms(wall_ms())))
