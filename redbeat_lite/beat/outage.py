"""Recovery of a beat from failed turns.

Each failed turn is logged, and so is the end of the outage. The waits between the attempts grow up
to a limit.

If a beat cannot use Redis, it cannot store an incident there. So it announces the incident directly
to its hooks.
"""

from __future__ import annotations

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
from ..settings import Settings
from ..store.connections import FAULTS, Backend, with_advice
from ..store.keys import ForeignKey
from .beat_state import BeatState
from .dispatch.publisher import BrokerDown, Publisher
from .leadership import Leadership
from .wakeup import Wakeup

logger = get_logger(f"celery.{__name__}")

#: Longest wait between two attempts, in seconds. Due entries should be sent within five seconds
#: after Redis can be used again, and the first batch needs some of that time.
_LAST_RETRY = 3.0

#: Number of consecutive unexpected failures after which this beat leaves the lease to other beats.
_YIELD_AFTER = 3

#: Seconds between two announcements that this beat still cannot use Redis.
_ANNOUNCEMENT_INTERVAL = 3600.0


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
        self._unexpected_failures = 0
        #: Type and line of code of the errors whose traceback was logged already.
        self._logged_tracebacks: set[str] = set()
        # Instants are in seconds of elapsed().
        #: Instant since which all turns have failed although this beat holds the lease; ``None`` if
        #: there is none.
        self._failing_since: float | None = None
        #: Instant since which Redis cannot be used; ``None`` if it can.
        self._without_redis_since: float | None = None
        #: Time of the next announcement to the hooks that Redis is down, in seconds of
        #: :func:`elapsed`.
        self._next_announcement = 0.0
        #: Incident that was announced because Redis cannot be used; ``None`` if there is none.
        self._announced: IncidentOpened | None = None
        #: The last error about a key of another program, which is not logged again; empty if a turn
        #: has succeeded since.
        self._foreign_key_error = ""
        #: Whether the beat has ended because no further attempt can succeed.
        self.gave_up = False

    def handle(self, exc: Exception) -> float:
        """Recover from a failed turn. Return the seconds to wait before the next turn: 1, 2, 3, 3 …

        Raises:
            SystemExit: no further attempt can succeed.
        """
        if isinstance(exc, UnsupportedFormat):
            # Another version has stored the schedule, and the next turn would find the same.
            self._give_up(str(exc))
        server = self.backend.display_url
        # In redis-py 5, only a cluster's client raises MovedError. Other clients raise another
        # error with the server's text.
        if isinstance(exc, MovedError) or text_of(exc).startswith("MOVED "):
            self._give_up(
                f"{server} is a node of a Redis Cluster; "
                "redbeat_lite_url has to begin with redis-cluster://"
            )
        if isinstance(exc, FAULTS):
            # The same error, with advice if a password or a permission is missing.
            exc = with_advice(exc, self.settings.key_prefix)
        if isinstance(exc, AuthenticationError):
            why = f"{server} refuses to let us in: {exc}"
            # If the server has accepted the password before, it may do so again. So give up only if
            # it has never accepted it.
            if not self.leadership.has_checked_server:
                self._give_up(why)
            return self._retry_redis(why)
        if isinstance(exc, ForeignKey):  # Another program uses a key of ours.
            return self._handle_foreign_key(exc)
        if isinstance(exc, BrokerDown):
            return self._handle_broker(exc)
        # The Redis server may be the broker, too, and may have lost the queues in a restart. So
        # close the connection to the broker, because a new one declares the queues again.
        self.publisher.close()
        # The server may refuse writes because it has become a replica. Only new connections lead to
        # the server that has taken its place.
        if isinstance(exc, ResponseError):
            self._start_over()
        if isinstance(exc, FAULTS):
            return self._retry_redis(f"cannot use {server}: {text_of(exc)}")
        return self._handle_unexpected(exc)

    def handle_success(self) -> None:
        """Forget the failures, and report the end of the outage if there was one."""
        if self._failures:
            logger.warning("beat: working again after %.1f s", self.state.failing_for)
        self._foreign_key_error = ""
        self._failures = 0
        self._unexpected_failures = 0
        self._failing_since = None
        self.state.end_failure()
        self._end_redis_outage()

    # -- kinds of failures ------------------------------------------------------------------------

    def _give_up(self, message: str) -> NoReturn:
        """Log why no further attempt can succeed, and raise SystemExit to end the beat."""
        logger.critical("beat: %s", message)
        self.gave_up = True
        raise SystemExit

    def _retry_redis(self, why: str) -> float:
        """Try again later. If Redis cannot be used for long, announce this to the hooks.

        Another beat may be able to use Redis, even if this one can only renew its lease. If the
        lease is not renewed either, Redis is probably out of reach for all beats. So keep the lease
        for at least as long as it lasts without a renewal.
        """
        self._announce_long_outage(why)
        return self._retry_later(why, at_least=self.settings.lease)

    def _handle_foreign_key(self, exc: ForeignKey) -> float:
        """End the term. This beat does not lead before the key of another program is gone.

        The other program may need the data in the key, so this beat does not remove it.

        Returns:
            seconds to wait before the next turn.
        """
        why = str(exc)
        if why != self._foreign_key_error:
            logger.critical("beat: standing by, because %s", why)
        self._foreign_key_error = why
        # Say why the term ends. Otherwise leave() would announce that the lease is gone.
        self.state.end_term(why)
        self.leadership.leave()
        # This beat checks whether another program still uses the key, before it leads again.
        self.leadership.foreign_keys = [exc.key]
        # Do not call _retry_redis(), because it would log the failure after each attempt.
        self._failing_since = None
        self._failures += 1
        self._announce_long_outage(why)
        self.state.begin_failure(why)
        return _LAST_RETRY

    def _handle_broker(self, exc: BrokerDown) -> float:
        """Try again later. After ``stall_timeout``, leave the lease to other beats.

        Another beat may be able to reach the broker, even if this one cannot.
        """
        self._end_redis_outage()  # Redis works, because this turn has read due entries.
        return self._retry_later(f"cannot reach the broker: {text_of(exc)}")

    def _handle_unexpected(self, exc: Exception) -> float:
        """Repeat the turn over new connections. After several failures, leave the lease to others.

        It is safe to repeat a turn, because each write is idempotent and names its term.
        """
        self._unexpected_failures += 1
        raised_at = traceback.extract_tb(exc.__traceback__)[-1]
        # Log the traceback only once for errors of the same type from the same line of code.
        kind = f"{type(exc)} in {raised_at.filename}, line {raised_at.lineno}"
        if kind not in self._logged_tracebacks:
            self._logged_tracebacks.add(kind)
            logger.error("beat: a turn failed with an unexpected error", exc_info=exc)
        self._start_over()
        if self._unexpected_failures >= _YIELD_AFTER:
            self._unexpected_failures = 0
            self.leadership.yield_lease(f"{_YIELD_AFTER} turns in a row failed")
        return self._retry_redis(f"a turn failed: {type(exc).__name__}: {text_of(exc)}")

    # -- helpers ----------------------------------------------------------------------------------

    def _start_over(self) -> None:
        """Close the connections to Redis, and have the next turn check the whole schedule.

        If the server was demoted to a replica, old connections still lead to it. Only new ones lead
        to the new master behind the same name or proxy.
        """
        self.leadership.must_begin = True
        self.wakeup.close()
        self.backend.close()

    def _retry_later(self, why: str, at_least: float = 0.0) -> float:
        """Count and log a failure. Return the seconds to wait before the next attempt.

        If this beat holds the lease, and all turns have failed for ``stall_timeout``, leave the
        lease to other beats.

        Parameters:
            at_least: seconds to keep the lease, even if ``stall_timeout`` is shorter.
        """
        self._failures += 1
        seconds = min(float(self._failures), _LAST_RETRY)
        self.state.begin_failure(why)
        logger.error("beat: %s; trying again in %g s", why, seconds)
        if not self.leadership.leader.holds_lease:
            self._failing_since = None
            return seconds
        self._failing_since = self._failing_since or elapsed()
        failing_for = elapsed() - self._failing_since
        if failing_for >= max(self.settings.stall_timeout, at_least):
            # The network may have cut the old connections, too. When this beat tries to lead again,
            # a command over such a connection would hang until its timeout. Close them before the
            # lease is released, because this beat may have no room for another connection.
            self._start_over()
            self._failing_since = None
            self.leadership.yield_lease(f"no message could be sent for {failing_for:.0f} s")
        return seconds

    def _announce_long_outage(self, why: str) -> None:
        """Remember that Redis cannot be used. If this lasts, announce an incident to the hooks.

        The incident is of the kind ``no_leader``, and is announced again at long intervals.

        Parameters:
            why: the reason as a text, which contains no password.
        """
        now = elapsed()
        if self._without_redis_since is None:
            self._without_redis_since = now
            # Workers that can use Redis wait as long. After this time without a leader, one of them
            # stores an incident of the same kind. So the hooks hear of it at the same time.
            self._next_announcement = now + self.settings.lease + LEADERLESS
        if now <= self._next_announcement:
            return
        self._next_announcement = now + _ANNOUNCEMENT_INTERVAL
        text = f"{why}, for {now - self._without_redis_since:.0f} s"
        if self._announced is None:
            # This object is not stored. It only computes the id of the incident.
            incident = Incident("no_leader", entry=None, since=from_ms(wall_ms()), text=text)
            self._announced = IncidentOpened(incident.id, incident.kind, None, incident.since, text)
        # Later announcements are about the same incident, with a new text.
        self._announced = self._announced._replace(text=text)
        self.state.announce(self._announced)

    def _end_redis_outage(self) -> None:
        """Remember that Redis can be used. If an outage was announced, announce its end."""
        announced = self._announced
        self._announced = None
        self._without_redis_since = None
        if announced is not None:
            # IncidentClosed has all fields of IncidentOpened, followed by the end of the incident.
            self.state.announce(IncidentClosed(*announced, from_ms(wall_ms())))
