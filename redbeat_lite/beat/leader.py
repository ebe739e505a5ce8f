"""The lease of the leader: acquired by a beat, renewed by a thread, and released.

Redis decides which beat leads. The leader acts only during a trust window. The window opens when a
renewal is *sent*, and lasts for the lease minus a margin. So it closes before the key in Redis can
expire, and the local clock can only end a term early.

Terms, and stepping down in doubt, follow River's leadership package.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from celery.utils.log import get_logger

from .._base.actors import MAX_ACTOR, Who
from .._base.clock import elapsed
from .._base.text import text_of
from ..entries.changes import FORMAT, line_of, wrong_format
from ..settings import RENEWALS_PER_LEASE, Settings
from ..store.connections import Backend
from ..store.keys import Keys
from ..store.records import Lost, Term
from ..store.scripts import Scripts
from .beat_state import BeatState
from .server_clock import ServerClock
from .status import Beat, beat_of, token_of
from .stop import Stop

logger = get_logger(f"celery.{__name__}")

#: Share of the lease by which the trust window is shorter than the lease, because clocks run at
#: different rates and replies may be slow.
_MARGIN = 1 / 8

_GONE = "the lease is gone from Redis, or another beat holds it"

#: Maximum number of seconds between two renewals. A renewal also counts due entries, so the leader
#: notices them soon even if no message comes on the wake channel.
_LONGEST_PAUSE = 1.0

#: Timeout in seconds of the command that releases the lease.
_RESIGN_TIMEOUT = 1.0

#: Seconds that a beat waits for a renewal in flight, after it has released the lease.
_JOIN_TIMEOUT = 0.3


@dataclass(eq=False)
class Leader:
    """One beat's part in the election. It connects and starts a thread at :meth:`acquire`."""

    backend: Backend
    keys: Keys
    settings: Settings
    state: BeatState
    stop: Stop

    def __post_init__(self) -> None:
        #: Text in the lease by which Redis knows this beat. It is empty before the first try to
        #: lead, and after :meth:`resign`.
        self._token = ""
        #: The present term with the thread that renews its lease; ``None``: this beat is not in
        #: office.
        self._renewal: _Renewal | None = None
        #: Whether a renewal has counted due entries or backfills. The main loop resets this before
        #: it looks for due work.
        self.overdue = False
        #: Whether a part of the schedule is gone, as a renewal or a tick has noticed.
        self.damaged = False
        #: Smallest number of entries that must be stored. With fewer, a part of the schedule is
        #: gone.
        self.least = 0
        #: Stamp of the last sync of the configuration. If Redis has another text, writes of the
        #: sync may be gone.
        self.synced = ""
        #: Stamp of the last pause or resumption, as the last renewal has read it. Redis gets a new
        #: stamp whenever an entry is paused or resumed.
        self.pauses = b""
        #: Clock by which this beat plans.
        self.clock = ServerClock()
        #: Mark in Redis that the server's clock was set back; empty if it was not, or all entries
        #: have been rescheduled since.
        self.set_back = b""
        #: Time zone by which an earlier leader planned, as :mod:`.repair` noted it.
        self.last_zones = b""

    def acquire(self) -> float:
        """Try to acquire the lease.

        Returns:
            0.0 if this beat leads; otherwise the seconds until the lease of the leader expires.

        Raises:
            UnsupportedFormat: another version of redbeat_lite uses this prefix.
        """
        # Make the token at the first try, and not in the constructor. Otherwise a process that is
        # forked in between would share the token of its parent.
        token = self._token or token_of(self.settings.owner)
        self._token = token
        # Take the time before the request, so that this beat never trusts the lease for longer than
        # Redis keeps it.
        sent = elapsed()
        result, server_ms, *rest = self._request_lease(token)
        self.clock.read(server_ms, sent)
        if result == 0:  # Another beat leads.
            # The rest of the reply depends on the result. For this result, it is one number.
            [lease_left_ms] = rest
            # Never return 0, because that would mean that this beat leads.
            return max(float(lease_left_ms) / 1000, 0.001)
        number, self.last_zones, self.set_back = rest
        # During the request, another thread may have called resign(), which empties the token. Set
        # it again, so that the next resign() releases the lease that this beat has got.
        self._token = token
        self._renewal = _Renewal(self, Term(token, int(number)), sent)
        # The thread that renews the lease is also the watchdog. Set its deadline before it starts.
        self.progress("starting to lead")
        self._renewal.thread.start()
        return 0.0

    def _request_lease(self, token: str) -> Any:
        """Ask for the lease and return the reply of ``leader/acquire.lua``."""
        host = socket.gethostname()
        pid = os.getpid()
        actor = Who(f"beat of {host}"[:MAX_ACTOR], "beat")
        # If this beat gets the lease, the script adds this line to the record of changes.
        line = line_of(actor, "term begun", f"pid {pid}")
        reply = self.backend.scripts.run(
            "leader/acquire",
            self.keys,
            token=token,
            lease_ms=round(self.settings.lease * 1000),
            host=host,
            pid=pid,
            format=FORMAT,
            change=line.change,
        )
        if reply[0] == -1:  # The schedule has another format.
            raise wrong_format("the schedule in Redis", reply[1])
        return reply

    def incumbent(self) -> Beat | None:
        """Return the beat that leads; ``None`` if none does, or its token cannot be read."""
        client: Any = self.backend.client
        token = client.hget(self.keys.leader, "token")
        return None if token is None else beat_of(token)

    @property
    def leading(self) -> bool:
        """Whether this process may act as leader right now."""
        # Read the attribute once, because another thread may set it to None in between.
        renewal = self._renewal
        return renewal is not None and renewal.trusted

    @property
    def in_office(self) -> bool:
        """Whether a term was begun and not ended by :meth:`step_down` or :meth:`resign`.

        The trust window of this term may have closed. :attr:`leading` says whether it is open.
        """
        return self._renewal is not None

    @property
    def term(self) -> Term:
        """The current term; raises Lost if there is none, or it is not trusted any more."""
        renewal = self._renewal
        if renewal is None or not renewal.trusted:
            raise Lost
        return renewal.term

    def progress(self, doing: object, within: float = 0.0) -> None:
        """Report to the watchdog that the main loop is alive.

        Parameters:
            doing: present work of the loop. It is made a text only if it is logged.
            within: seconds until the loop will report again. The stall timeout is added to them.
        """
        self.state.alive()
        renewal = self._renewal
        if renewal is not None:
            renewal.doing = doing
            renewal.deadline = elapsed() + within + self.settings.stall_timeout

    def checkpoint(self, doing: object) -> None:
        """Report progress between two steps; raise SystemExit if the beat is to stop."""
        self.stop.check()
        self.progress(doing)

    def step_down(self) -> str:
        """End the term in this process, without a command to Redis. Return why it ended."""
        renewal = self._renewal
        self._renewal = None
        if renewal is None:
            return "not leading"
        # If the trust window is still open, the server has refused a write of this term. So the
        # lease is gone.
        why = _GONE if renewal.trusted else renewal.why
        renewal.stop()
        return why or "the lease could not be renewed in time"

    def resign(self) -> None:
        """Release the lease, so that a stand-by takes over at once.

        A second call is safe, and so is a call from another thread than the main loop's.
        """
        token = self._token
        if not token:
            return
        renewal = self._renewal
        if renewal is not None:
            renewal.stop()
        # Open a separate client, because the main loop may hang in a command on the shared one.
        client = self.backend.open(timeout=_RESIGN_TIMEOUT)
        # Release the lease even if no term has begun. If the reply to the request for the lease was
        # lost, this beat may hold the lease without knowing it.
        # Ignore errors, because the lease expires by itself if the release fails. A user's
        # credential provider may raise any exception.
        with suppress(Exception):
            Scripts(client).run("leader/resign", self.keys, token=token)
        client.close()
        self._renewal = None
        self._token = ""
        if renewal is not None:
            renewal.thread.join(_JOIN_TIMEOUT)


class _Renewal:
    """One term: the thread that renews its lease, and the window in which it is trusted."""

    def __init__(self, leader: Leader, term: Term, sent: float) -> None:
        self.term = term
        #: Why the last renewal failed; empty if it did not.
        self.why = ""
        self._leader = leader
        #: End of the trust window, in seconds of :func:`elapsed`. Until then this beat may act as
        #: leader.
        self._trusted_until = 0.0
        self._trust_from(sent)
        #: Present work of the main loop, as its last report to the watchdog says.
        self.doing: object = ""
        #: Time by which the main loop must report again, in seconds of :func:`elapsed`; infinite
        #: before the first report.
        self.deadline = float("inf")
        #: Id of the main loop's thread. The stack of this thread is logged if the loop hangs.
        self._main = threading.get_ident()
        self._stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name="redbeat-lite-lease", daemon=True)

    def stop(self) -> None:
        """Close the trust window, and end the thread after its present renewal."""
        self._trusted_until = 0.0
        self._stopped.set()

    @property
    def trusted(self) -> bool:
        """Whether the trust window is open, in which this beat may act as leader."""
        return elapsed() < self._trusted_until

    def _trust_from(self, sent: float) -> None:
        """Open the trust window from the time at which the request for the lease was sent."""
        self._trusted_until = sent + self._leader.settings.lease * (1 - _MARGIN)

    def _run(self) -> None:
        """Renew the lease until it is lost, the term is stopped, or the main loop hangs."""
        longest = self._leader.settings.lease / RENEWALS_PER_LEASE
        pause = min(longest, _LONGEST_PAUSE)
        # The client has a short timeout: if a renewal gets no reply, the next one must still come
        # before the lease expires.
        client = self._leader.backend.open(timeout=longest)
        scripts = Scripts(client)
        try:
            while not self._stopped.wait(pause):
                if self._log_stall() or not self._renew(scripts):
                    return
        finally:
            client.close()

    def _renew(self, scripts: Scripts) -> bool:
        """Renew once. Return ``False`` if the term was stopped, or the lease is lost."""
        sent = elapsed()
        leader = self._leader
        silent_ms, report = leader.state.report()
        try:
            # To find lost entries, the server compares ``least`` with the number of entries and
            # ``synced`` with the stored stamp. To find out whether its clock was set back, it
            # compares ``planned_by`` with its clock.
            reply = scripts.run(
                "leader/renew",
                leader.keys,
                self.term,
                backfills_due=leader.keys.of_backfills.due,
                lease_ms=round(leader.settings.lease * 1000),
                least=leader.least,
                synced=leader.synced,
                silent_ms=silent_ms,
                report=report,
                planned_by=leader.clock.now_ms(),
            )
        except Exception as exc:  # noqa: BLE001 - a provider of passwords may raise anything
            self.why = f"the lease could not be renewed: {text_of(exc)}"
            return True  # Try again. If all renewals fail, the trust window closes by itself.
        if self._stopped.is_set():
            # Another thread has ended the term meanwhile, so do not open the trust window again.
            return False
        if not reply[0]:  # The lease has expired, or another term has it.
            self.why = _GONE
            self._trusted_until = 0.0
            return False
        self.why = ""
        self._take_news(reply, sent)
        self._trust_from(sent)
        return True

    def _take_news(self, reply: Any, sent: float) -> None:
        """Store what the server has reported in the reply, where the main loop reads it."""
        leader = self._leader
        result, entries, due, pauses, backfills, server_ms, set_back = reply
        leader.clock.read(server_ms, sent)
        # The result is 1 if the schedule is whole, and 2 if a part of it is gone.
        leader.damaged = result == 2
        leader.pauses = pauses
        leader.set_back = set_back
        leader.state.entries = entries
        leader.state.due = due
        if due or backfills:
            leader.overdue = True

    def _log_stall(self) -> bool:
        """Log the stack of the main loop if the loop hangs. Return whether it hangs."""
        late = elapsed() - self.deadline
        if late < 0:
            return False
        frame = sys._current_frames().get(self._main)
        stack = "".join(traceback.format_stack(frame)) if frame else ""
        logger.error(
            "beat: no progress while %s (%.1f s overdue); not renewing the lease, "
            "so that a stand-by can lead\n%s",
            self.doing,
            late,
            stack,
        )
        self.why = f"no progress while {self.doing}"
        return True
