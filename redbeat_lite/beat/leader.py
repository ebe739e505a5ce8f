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
from collections.abc import Sequence
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
    """One beat's part in the election: its lease, its term, and what it reads with the lease.

    It connects and starts a thread at :meth:`acquire`. Other threads may ask whether it leads.
    """

    backend: Backend
    keys: Keys
    settings: Settings
    state: BeatState
    stop: Stop

    def __post_init__(self) -> None:
        #: Text in the lease by which Redis knows this beat. It is empty before the first try to
        #: lead, and after :meth:`resign`.
        self._token = ""
        #: The present term, and the thread that renews its lease; ``None`` if there is no term.
        self._renewal: _Renewal | None = None
        #: Clock by which this beat plans.
        self.clock = ServerClock()

        # Each renewal reads these values from Redis, for the main loop.
        #: Whether an entry or a backfill is due. The main loop resets this before it looks for due
        #: work.
        self.has_due_work = False
        #: Whether a part of the schedule is gone. The dispatcher may set this, too. The main loop
        #: resets it when it has restored the schedule.
        self.needs_repair = False
        #: Stamp of the last pause or resumption. Redis gets a new stamp whenever an entry is paused
        #: or resumed.
        self.pause_stamp = b""
        #: Mark in Redis that the server's clock was set back; empty if it was not, or all entries
        #: have been rescheduled since.
        self.clock_set_back = b""
        #: Time zone by which an earlier leader planned. Not a renewal but :meth:`acquire` reads it
        #: from Redis.
        self.previous_zone = b""

        # By these values, a renewal finds out whether a part of the schedule is gone. The main loop
        # sets them when it has stored the configuration.
        #: Smallest number of entries that Redis must hold.
        self.min_entries = 0
        #: Stamp of the last sync of the configuration. If Redis has another text, writes of the
        #: sync may be gone.
        self.sync_stamp = ""

    def acquire(self) -> float:
        """Try to acquire the lease. If this succeeds, begin a term.

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
        # The order is the one in which leader/acquire.lua returns them.
        is_leader, server_ms, left_ms, term, zone, set_back = self._request_lease(token)
        self.clock.adjust(server_ms, sent)
        if not is_leader:
            return left_ms / 1000  # type: ignore[no-any-return]
        self.previous_zone = zone
        self.clock_set_back = set_back
        # During the request, another thread may have called resign(), which empties the token. Set
        # it again, so that the next resign() releases the lease that this beat has got.
        self._token = token
        self._renewal = _Renewal(self, Term(token, term), sent)
        # The thread that renews the lease is also the watchdog. Set its deadline before it starts.
        self.progress("starting to lead")
        self._renewal.thread.start()
        return 0.0

    def _request_lease(self, token: str) -> Sequence[Any]:
        """Ask Redis for the lease, and return the reply.

        Raises:
            UnsupportedFormat: the schedule has the format of another version.
        """
        host = socket.gethostname()
        pid = os.getpid()
        actor = Who(f"beat of {host}"[:MAX_ACTOR], "beat")
        reply: Any = self.backend.scripts.run(
            "leader/acquire",
            self.keys,
            token=token,
            lease_ms=round(self.settings.lease * 1000),
            host=host,
            pid=pid,
            format=FORMAT,
            # If this beat gets the lease, the script adds this to the record of changes.
            change=line_of(actor, "term begun", f"pid {pid}").change,
        )
        if reply[0] == -1:  # The schedule has another format.
            raise wrong_format("the schedule in Redis", reply[1])
        return reply  # type: ignore[no-any-return]

    def incumbent(self) -> Beat | None:
        """Return the other beat that leads; ``None`` if none does, or its token cannot be read.

        This beat does not count, although its lease may outlive its term.
        """
        client: Any = self.backend.client
        token = client.hget(self.keys.leader, "token") or b""
        return None if token == self._token.encode() else beat_of(token)

    @property
    def holds_lease(self) -> bool:
        """Whether this beat certainly holds the lease now, so that it may act as leader."""
        # Read the attribute once, because another thread may set it to None in between.
        renewal = self._renewal
        return renewal is not None and renewal.is_trusted

    @property
    def has_term(self) -> bool:
        """Whether a term was begun and not ended by :meth:`step_down` or :meth:`resign`.

        The lease of this term may be lost. :attr:`holds_lease` says whether this beat still has it.
        """
        return self._renewal is not None

    @property
    def term(self) -> Term:
        """The current term; raises Lost if there is none, or its lease is not certain any more."""
        renewal = self._renewal
        if renewal is None or not renewal.is_trusted:
            raise Lost
        return renewal.term

    def progress(self, doing: object, within: float = 0.0) -> None:
        """Report to the watchdog that the main loop is alive.

        Parameters:
            doing: present work of the loop. It is made a text only if it is logged.
            within: seconds until the loop will report again. The stall timeout is added to them.
        """
        self.state.give_sign_of_life()
        renewal = self._renewal
        if renewal is not None:
            renewal.doing = doing
            renewal.deadline = elapsed() + within + self.settings.stall_timeout

    def checkpoint(self, doing: object) -> None:
        """Report progress between two steps; raise SystemExit if the beat is to stop."""
        self.stop.check()
        self.progress(doing)

    def step_down(self) -> str:
        """End the term in this process, and return why it ended. This sends no command to Redis."""
        renewal = self._renewal
        self._renewal = None
        if renewal is None:
            return "not leading"
        if renewal.is_trusted:
            # By the clock of this machine, the lease has not run out. So the server has said that
            # the term is over: a command has raised Lost.
            reason = _GONE
        else:
            # ``failure`` is empty if the last renewal succeeded, but too long ago.
            reason = renewal.failure or "the lease could not be renewed in time"
        renewal.stop()
        return reason

    def resign(self) -> None:
        """Release the lease, so that a stand-by takes over at once.

        A second call is safe, and so is a call from another thread than the main loop's.
        """
        # Release the lease even if there is no term. If the reply to the request for the lease was
        # lost, this beat may hold the lease without knowing it.
        token = self._token
        if not token:
            return
        renewal = self._renewal
        if renewal is not None:
            renewal.stop()
        # Open a separate client, because the main loop may hang in a command on the shared one.
        client = self.backend.open(timeout=_RESIGN_TIMEOUT)
        # Ignore errors, because the lease expires by itself if the release fails. A user's
        # credential provider may raise any exception.
        with suppress(Exception):
            Scripts(client).run("leader/resign", self.keys, token=token)
        client.close()
        # The main loop may have acquired the lease again meanwhile, with the same token. If so,
        # keep the token and the new term, so that a later call can release the lease.
        if self._renewal is renewal:
            self._renewal = None
            self._token = ""
        if renewal is not None:
            renewal.thread.join(_JOIN_TIMEOUT)


class _Renewal:
    """One term: the thread that renews its lease, and its trust window.

    While the trust window is open, this beat may act as leader. The window closes before the lease
    expires in Redis, and each renewal extends both.

    The thread is a watchdog, too: if the main loop hangs, it does not renew the lease any more.

    Parameters:
        sent: when the lease was requested, in seconds of :func:`elapsed`.
    """

    def __init__(self, leader: Leader, term: Term, sent: float) -> None:
        self.term = term
        #: Why the lease was not renewed the last time; empty if it was.
        self.failure = ""
        self._leader = leader
        #: When the last successful request for the lease was sent, in seconds of :func:`elapsed`.
        self._sent = sent
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
        self._stopped.set()

    @property
    def is_trusted(self) -> bool:
        """Whether the trust window is open."""
        trusted_until = self._sent + self._leader.settings.lease * (1 - _MARGIN)
        # A renewal in flight may set _sent after stop(). So the time alone does not show that the
        # window was closed.
        return elapsed() < trusted_until and not self._stopped.is_set()

    def _run(self) -> None:
        """Renew the lease until it is lost, the term is stopped, or the main loop hangs."""
        part_of_lease = self._leader.settings.lease / RENEWALS_PER_LEASE
        pause = min(part_of_lease, _LONGEST_PAUSE)
        # The client has a short timeout: if a renewal gets no reply, the next one must still come
        # before the lease expires.
        client = self._leader.backend.open(timeout=part_of_lease)
        scripts = Scripts(client)
        try:
            while not self._stopped.wait(pause):
                late = elapsed() - self.deadline
                if late >= 0:  # The main loop hangs.
                    self._log_stall(late)
                    return
                if not self._renew(scripts):
                    return
        finally:
            client.close()

    def _log_stall(self, late: float) -> None:
        """Log the stack of the main loop, which has not reported to the watchdog in time.

        Parameters:
            late: seconds by which the report is overdue.
        """
        frame = sys._current_frames().get(self._main)
        stack = "".join(traceback.format_stack(frame)) if frame else ""
        logger.error(
            "beat: no progress while %s (%.1f s overdue); not renewing the lease, "
            "so that a stand-by can lead\n%s",
            self.doing,
            late,
            stack,
        )
        self.failure = f"no progress while {self.doing}"

    def _renew(self, scripts: Scripts) -> bool:
        """Renew once. Return ``False`` if the term was stopped, or the lease is lost."""
        sent = elapsed()
        leader = self._leader
        try:
            # The script also checks two things. A part of the schedule is lost if the server has
            # fewer entries than ``least``, or if the stamp of the last sync is not ``synced``. And
            # the server's clock was set back if it is more than a second behind ``planned_by``,
            # which is its last reading and the time that has passed here since.
            is_renewed, *values = scripts.run(
                "leader/renew",
                leader.keys,
                self.term,
                backfills_due=leader.keys.of_backfills.due,
                lease_ms=round(leader.settings.lease * 1000),
                least=leader.min_entries,
                synced=leader.sync_stamp,
                silent_ms=leader.state.silent_ms,
                report=leader.state.report(),
                planned_by=leader.clock.now_ms(),
            )
        except Exception as exc:  # noqa: BLE001 - a provider of passwords may raise anything
            self.failure = f"the lease could not be renewed: {text_of(exc)}"
            return True  # Try again. If all renewals fail, the trust window closes by itself.
        if self._stopped.is_set():
            return False  # The term has ended meanwhile, so the reply is of no use.
        if not is_renewed:  # The lease has expired, or another term has it.
            self.failure = _GONE
            self.stop()
            return False
        self.failure = ""
        self._store_values(values, sent)
        self._sent = sent
        return True

    def _store_values(self, values: Sequence[Any], sent: float) -> None:
        """Store the values of a renewal's reply, where the main loop reads them."""
        leader = self._leader
        # The order is the one in which leader/renew.lua returns them.
        is_whole, entries, due_entries, pause_stamp, due_backfills, server_ms, set_back = values
        leader.clock.adjust(server_ms, sent)
        # Never reset needs_repair here, because this would undo a request of the dispatcher.
        if not is_whole:
            leader.needs_repair = True
        leader.pause_stamp = pause_stamp
        leader.clock_set_back = set_back
        leader.state.entries = entries
        leader.state.due = due_entries
        if due_entries or due_backfills:
            leader.has_due_work = True
