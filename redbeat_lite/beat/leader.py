"""Leadership: a lease in Redis, asked for, renewed by a thread, given back; trusted for as long as it surely runs.

Redis is the authority on who leads. Local time serves for one thing, to stop leading early: the trust window opens
when a renewal is *sent* and closes ``lease`` minus a margin later, so it ends before the key in Redis can.
The shape of this, a term-scoped lease and stepping down on doubt, is that of River's leadership package.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import traceback
from contextlib import suppress
from typing import Any

from celery.utils.log import get_logger

from ..actors import MAX_ACTOR, Who
from ..clock import elapsed
from ..errors import UnsupportedFormat, text_of
from ..settings import RENEWALS_PER_LEASE, Settings
from ..storage.changes import line_of
from ..storage.connections import Backend
from ..storage.keys import UNDERSTOOD, Keys
from ..storage.scripts import Scripts
from ..storage.stored import Lost, Term
from .stop import Stop
from .tokens import Beat, beat_of, token_of
from .vitals import Vitals

logger = get_logger(f"celery.{__name__}")

#: The share of a lease by which the trust window is shorter: clocks that run at different rates, a slow reply.
_MARGIN = 1 / 8

_GONE = "the lease is gone from Redis, or another beat holds it"

#: Seconds after which a command that gives the lease back is given up.
_RESIGN_TIMEOUT = 1.0

#: Seconds to wait after that for a renewal in flight.
_JOIN_TIMEOUT = 0.3

#: A beat that has yielded does not ask again for so many leases, so that every stand-by can try.
_YIELDED_LEASES = 2

#: Longest of these pauses in seconds: a long lease must not silence a beat without a stand-by.
_LONGEST_YIELD = 60.0


class Leader:
    """One process's part in the election. Opens no connection and starts no thread before :meth:`acquire`."""

    def __init__(self, backend: Backend, keys: Keys, settings: Settings, vitals: Vitals, stop: Stop) -> None:
        self.stop = stop
        self._backend = backend
        self._keys = keys
        self._lease = settings.lease
        self._stall_timeout = settings.stall_timeout
        self._owner = settings.owner
        self._vitals = vitals
        self._token = ""
        #: Whether the reply to the last request for the lease is missing; this beat may hold it then.
        self._unanswered = False
        self._not_before = 0.0
        self._renewal: _Renewal | None = None
        #: Whether a renewal has counted due entries or backfills since the loop last looked for them.
        self.overdue = False
        #: Whether a part of the schedule is gone, as a renewal or a tick has found.
        self.damaged = False
        #: Stamp of the last pause or resumption of an entry.
        self.pauses = b""
        #: With fewer entries than these, one is.
        self.least = 0
        self.last_clock = 0  #: the latest wall clock in ms by which a leader before us planned; 0 if there was none
        self.last_zones = ""  #: the time zones by which it did, as :mod:`redbeat_lite.beat.replanning` noted them

    def acquire(self) -> float:
        """Try to become leader; returns 0.0 when leading, else the seconds after which it is worth another try.

        Raises:
            UnsupportedFormat: a newer redbeat_lite uses this prefix.
        """
        # Drawn here and not earlier: a process that was forked must not share its parent's token.
        self._token = self._token or token_of(self._owner)
        sent = elapsed()
        keys = (self._keys.leader, self._keys.meta, self._keys.beats, self._keys.changes)
        host, pid = socket.gethostname(), os.getpid()
        line = line_of(Who(f"beat of {host}"[:MAX_ACTOR], "beat"), "term begun", f"pid {pid}")
        args = (self._token, round(self._lease * 1000), host, pid, UNDERSTOOD, line.change)
        self._unanswered = True
        reply = self._backend.scripts.run("leader/acquire", keys, args)
        if reply[0] == -1:
            raise UnsupportedFormat(
                f"the schedule in Redis has format {reply[1]}; this redbeat_lite reads up to {UNDERSTOOD}"
            )
        self._unanswered = False
        if reply[0] == 0:
            return max(float(reply[1]) / 1000, 0.001)
        self.last_clock = max(int(clock) if re.fullmatch(rb"[0-9]{1,18}", clock) else 0 for clock in reply[2:4])
        self.last_zones = reply[4].decode(errors="replace")
        term = Term(self._token, int(reply[1]))
        self._renewal = _Renewal(self, self._backend, self._keys, term, self._lease, self._vitals)
        self._renewal.trust_from(sent)
        self.progress("starting to lead")
        self._renewal.start()
        return 0.0

    def incumbent(self) -> Beat | None:
        """Who leads; ``None`` if nobody does, or nobody can tell."""
        client: Any = self._backend.client
        token = client.hget(self._keys.leader, "token")
        return None if token is None else beat_of(token)

    @property
    def leading(self) -> bool:
        """Whether this process may act as leader right now."""
        return self._renewal is not None and self._renewal.trusted

    @property
    def in_office(self) -> bool:
        """Whether a term was begun and not ended by :meth:`step_down` or :meth:`resign`."""
        return self._renewal is not None

    @property
    def term(self) -> Term:
        """The current term; raises Lost where there is none, or it cannot be trusted any more."""
        if self._renewal is None or not self._renewal.trusted:
            raise Lost
        return self._renewal.term

    def note_damage(self) -> None:
        """Part of the schedule is gone, seen before a renewal could tell."""
        self.damaged = True

    def progress(self, doing: object, within: float = 0.0) -> None:
        """Tell the watchdog that the main loop is alive.

        Parameters:
            doing: what it does now, for the log; only if it comes to that, it is put in words.
            within: seconds after which it means to report again; the stall timeout is added.
        """
        self._vitals.alive()
        if self._renewal is not None:
            self._renewal.watch(doing, elapsed() + within + self._stall_timeout)

    def checkpoint(self, doing: object) -> None:
        """Report progress between two steps; raise SystemExit if the beat is to stop."""
        self.stop.check()
        self.progress(doing)

    def step_down(self) -> str:
        """End the term on this side, without a word to Redis; says why it ended."""
        renewal, self._renewal = self._renewal, None
        if renewal is None:
            return "not leading"
        # Within the window only Redis can have said so; the clock has not.
        why = _GONE if renewal.trusted else renewal.why
        renewal.stop()
        return why or "the lease could not be renewed in time"

    @property
    def yields_for(self) -> float:
        """Seconds for which this beat leaves the lease to others."""
        return max(self._not_before - elapsed(), 0.0)

    def yield_lease(self) -> None:
        """Give the lease back, and leave it to others for a while."""
        self.resign()
        # After an outage of the broker, all beats may wait like this. Nobody sends as long as they do.
        longest = min(self._lease + self._stall_timeout, _LONGEST_YIELD)
        self._not_before = elapsed() + min(_YIELDED_LEASES * self._lease, longest)

    def resign(self) -> None:
        """Give the lease back, so that a stand-by takes over at once.

        May be called twice, and by a thread beside the loop.
        """
        renewal = self._renewal
        if renewal is None and not self._unanswered:
            return
        if renewal is not None:
            renewal.stop()
        # A client of its own, because the loop may hang in a command on the shared one.
        client = self._backend.open(timeout=_RESIGN_TIMEOUT)
        with suppress(Exception):  # The lease runs out by itself. A provider of passwords may raise anything.
            keys = (self._keys.leader, self._keys.beats, self._keys.meta)
            Scripts(client).run("leader/resign", keys, (self._token, self._keys.wake))
        client.close()
        self._renewal = None
        self._unanswered = False
        if renewal is not None:
            renewal.join()


class _Renewal:
    """One term: the thread that renews it, and the window in which it may be trusted."""

    def __init__(self, leader: Leader, backend: Backend, keys: Keys, term: Term, lease: float, vitals: Vitals) -> None:
        self.term = term
        self.why = ""
        self._leader = leader
        self._backend = backend
        backfills = keys.of_backfills.due
        self._keys = (keys.leader, keys.due, keys.entries, keys.state, keys.meta, keys.beats, backfills)
        self._lease = lease
        self._vitals = vitals
        self._trusted_until = 0.0
        self._doing: object = ""
        self._deadline = float("inf")
        self._main = threading.get_ident()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="redbeat-lite-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._trusted_until = 0.0
        self._stopped.set()

    def join(self) -> None:
        self._thread.join(_JOIN_TIMEOUT)

    @property
    def trusted(self) -> bool:
        return elapsed() < self._trusted_until

    def trust_from(self, sent: float) -> None:
        self._trusted_until = sent + self._lease * (1 - _MARGIN)

    def watch(self, doing: object, deadline: float) -> None:
        self._doing, self._deadline = doing, deadline

    def _run(self) -> None:
        pause = self._lease / RENEWALS_PER_LEASE
        client = self._backend.open(timeout=pause)
        scripts = Scripts(client)
        try:
            while not self._stopped.wait(pause):
                if self._stalled() or not self._renew(scripts):
                    return
        finally:
            client.close()

    def _renew(self, scripts: Scripts) -> bool:
        """Renew once; ``False`` when the lease belongs to somebody else."""
        sent = elapsed()
        try:
            args = (*self.term, round(self._lease * 1000), self._leader.least, *self._vitals.report())
            reply = scripts.run("leader/renew", self._keys, args)
        except Exception as exc:  # noqa: BLE001 - a provider of passwords may raise anything
            self.why = f"the lease could not be renewed: {text_of(exc)}"
            return True  # the window closes by itself if this goes on
        if self._stopped.is_set():
            return False
        if reply[0]:
            self.why = ""
            self._leader.damaged = reply[0] == 2
            _, entries, due, pauses, backfills = reply
            self._vitals.entries = entries
            self._vitals.due = due
            self._leader.pauses = pauses
            if due or backfills:
                self._leader.overdue = True
            self.trust_from(sent)
            return True
        self.why = _GONE
        self._trusted_until = 0.0
        return False

    def _stalled(self) -> bool:
        late = elapsed() - self._deadline
        if late < 0:
            return False
        frame = sys._current_frames().get(self._main)
        stack = "".join(traceback.format_stack(frame)) if frame else ""
        logger.error(
            "beat: no progress while %s (%.1f s overdue); not renewing the lease, so that a stand-by can lead\n%s",
            self._doing,
            late,
            stack,
        )
        self.why = f"no progress while {self._doing}"
        return True
