"""Recovery from failed turns: a log line for each, waits that grow, and a line at the end.

A beat that cannot use Redis tells the hooks itself, because it cannot write an incident to Redis.
"""

from __future__ import annotations

import logging
import traceback

from celery.utils.log import get_logger
from redis.exceptions import AuthenticationError, MovedError, ResponseError

from .._base.clock import elapsed, wall_ms
from .._base.errors import UnsupportedFormat
from .._base.text import text_of
from .._base.times import from_ms
from ..events import IncidentClosed, IncidentOpened
from ..runs.incident import LEADERLESS, Case
from ..settings import Settings
from ..store.connections import FAULTS, Backend, refusal
from ..store.keys import ForeignKey, Keys
from .beat_state import BeatState
from .dispatch.publisher import BrokerDown, Publisher
from .leadership import Leadership
from .wakeup import Wakeup

logger = get_logger(f"celery.{__name__}")

#: Longest wait in seconds between two tries. Due entries should be sent within five seconds after a
#: recovery, and the first batch needs some of that time.
_LAST_RETRY = 3.0

#: Unexpected failures in a row after which another beat should try.
_MOST_UNEXPECTED = 3

#: Seconds between two notices that, as far as this beat can see, no beat leads.
_AGAIN = 3600.0


class Outage:
    """Failures of one beat since its last turn that succeeded."""

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        leadership: Leadership,
        publisher: Publisher,
        wakeup: Wakeup,
        state: BeatState,
    ) -> None:
        self._backend = backend
        self._root = Keys.of(settings.key_prefix).prefix
        self._leadership = leadership
        self._publisher = publisher
        self._wakeup = wakeup
        self._state = state
        self._patience = settings.lease + LEADERLESS
        self._stall_timeout = settings.stall_timeout
        self._failures = 0
        self._since = 0.0
        self._without_broker_since: float | None = None
        self._unexpected = 0
        #: Failures whose traceback is in the log: type, file and line.
        self._traced: set[tuple[type, str, int | None]] = set()
        #: Instant since which Redis cannot be used, in seconds of :func:`elapsed`.
        self._cut_off: float | None = None
        #: Instant of the next event for the hooks, in seconds of :func:`elapsed`.
        self._next_notice = 0.0
        self._opened: IncidentOpened | None = None
        #: The last error that named a key of another program, so that it is logged once.
        self._foreign_key = ""
        #: Whether the beat ended because another try would be in vain.
        self.gave_up = False

    def handle(self, exc: Exception) -> float:
        """Recover from a failed turn; return the seconds until the next turn: 1, 2, 3, 3 …

        Raises:
            SystemExit: another try would be in vain.
        """
        server = self._backend.display_url
        if isinstance(exc, UnsupportedFormat):
            self._give_up(str(exc))
        # redis-py 5 raises a plain ResponseError.
        if isinstance(exc, MovedError) or text_of(exc).startswith("MOVED "):
            fix = "redbeat_lite_url has to begin with redis-cluster://"
            self._give_up(f"{server} is a node of a Redis Cluster; {fix}")
        if isinstance(exc, AuthenticationError):
            return self._handle_login(f"{server} refuses to let us in", refusal(exc, self._root))
        if isinstance(exc, ForeignKey):
            return self._handle_foreign_key(exc)
        if isinstance(exc, BrokerDown):
            return self._handle_broker(exc)
        self._publisher.close()  # A restarted server has lost what kombu declared.
        if isinstance(exc, ResponseError):
            self._start_over()
        if isinstance(exc, FAULTS):
            return self._handle_redis(f"cannot use {server}: {text_of(refusal(exc, self._root))}")
        return self._handle_unexpected(exc)

    def is_over(self) -> None:
        """Log the end of an outage, if there was one."""
        if self._failures:
            logger.warning("beat: working again after %.1f s", elapsed() - self._since)
        self._foreign_key = ""
        self._failures = 0
        self._unexpected = 0
        self._without_broker_since = None
        self._state.end_failure()
        self._note_redis()

    # -- kinds of failures ------------------------------------------------------------------------

    def _give_up(self, message: str) -> None:
        logger.log(logging.CRITICAL, "beat: %s", message)
        self.gave_up = True
        raise SystemExit

    def _handle_login(self, what: str, exc: Exception) -> float:
        if not self._leadership.introduced:
            self._give_up(f"{what}: {exc}")
        return self._handle_redis(f"{what}: {exc}")

    def _handle_redis(self, why: str) -> float:
        self._note_cut_off(why)
        return self._next_wait(why)

    def _handle_foreign_key(self, exc: ForeignKey) -> float:
        """Stand by until the other program's key is gone; its data may be precious."""
        why = str(exc)
        if why != self._foreign_key:
            logger.critical("beat: standing by, because %s", why)
        self._foreign_key = why
        self._leadership.leave()
        self._leadership.foreign_key = exc.key
        if not self._failures:
            self._since = elapsed()
        self._failures += 1
        self._note_cut_off(why)
        self._state.begin_failure(why)
        return _LAST_RETRY

    def _handle_broker(self, exc: BrokerDown) -> float:
        """Let another beat try after ``stall_timeout``, because only this beat may be cut off."""
        self._note_redis()  # Redis works, because the due entries were read.
        if self._without_broker_since is None:
            self._without_broker_since = elapsed()
        missing_for = elapsed() - self._without_broker_since
        if missing_for >= self._stall_timeout:
            self._without_broker_since = None
            self._leadership.yield_lease(f"no message could be sent for {missing_for:.0f} s")
        return self._next_wait(f"cannot reach the broker: {text_of(exc)}")

    def _handle_unexpected(self, exc: Exception) -> float:
        """Start over. Each write names its term and is idempotent, so a turn may be repeated."""
        self._unexpected += 1
        if self._is_new(exc):
            logger.error("beat: a turn failed with an unexpected error", exc_info=exc)
        self._start_over()
        if self._unexpected >= _MOST_UNEXPECTED:
            self._unexpected = 0
            self._leadership.yield_lease(f"{_MOST_UNEXPECTED} turns in a row failed")
        return self._handle_redis(f"a turn failed: {type(exc).__name__}: {text_of(exc)}")

    def _is_new(self, exc: Exception) -> bool:
        """Whether the log holds no traceback of this failure yet."""
        raised_at = traceback.extract_tb(exc.__traceback__)[-1]
        kind = (type(exc), raised_at.filename, raised_at.lineno)
        is_new = kind not in self._traced
        self._traced.add(kind)
        return is_new

    # -- helpers ----------------------------------------------------------------------------------

    def _start_over(self) -> None:
        """Check the whole schedule in the next turn, over new connections.

        A server that was demoted to a replica keeps its connections, and only new ones lead to its
        successor behind a name or a proxy.
        """
        self._leadership.start_over()
        self._wakeup.close()
        self._backend.close()

    def _next_wait(self, why: str) -> float:
        """Log a failure and return the seconds until the next try, which double up to a limit."""
        if not self._failures:
            self._since = elapsed()
        # The exponent is bounded, because 2.0 ** 1024 overflows after some days.
        seconds = min(2.0 ** min(self._failures, 10), _LAST_RETRY)
        self._failures += 1
        self._state.begin_failure(why)
        logger.error("beat: %s; trying again in %g s", why, seconds)
        return seconds

    def _note_cut_off(self, why: str) -> None:
        """Announce to the hooks, after a while, that this beat sees no leader.

        The reason contains no password.
        """
        now = elapsed()
        if self._cut_off is None:
            self._cut_off = now
            self._next_notice = now + self._patience
        if now <= self._next_notice:
            return
        self._next_notice = now + _AGAIN
        if self._opened is None:
            case = Case("no_leader", "", wall_ms(), "")
            self._opened = IncidentOpened(case.id, case.kind, None, from_ms(case.since), "")
        self._opened = self._opened._replace(text=f"{why}, for {now - self._cut_off:.0f} s")
        self._state.announce(self._opened)

    def _note_redis(self) -> None:
        """Announce to the hooks that Redis can be used again, by this beat or by another leader."""
        opened = self._opened
        self._opened = None
        self._cut_off = None
        if opened is not None:
            self._state.announce(IncidentClosed(*opened, from_ms(wall_ms())))
