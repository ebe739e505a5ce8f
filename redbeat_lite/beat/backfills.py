"""Sends backfills, after what is due: a schedule of their own, dispatched as the other one is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from celery.utils.log import get_logger

from ..actors import BEAT
from ..clock import elapsed, wall_ms
from ..entries.backfilling import room, times, went_out
from ..entries.entry import Entry
from ..entries.freezes import Freezes
from ..entries.lifecycle import retry_delay
from ..entries.state import EntryState, backfill_id
from ..entries.stored_entry import UNREADABLE, state_of
from ..errors import CorruptEntry, NotKnownHere, describe
from ..once.store import LockStore
from ..runs.keys import RunKeys
from ..runs.run import BACKFILL_HEADER
from ..schedules import every
from ..schedules.misfire import Plan
from ..settings import MAX_HISTORY
from ..storage.backfills import Backfill, backfill_of
from ..storage.changes import line_of
from ..storage.leader_store import LeaderStore
from ..storage.replies import text
from ..storage.stored import Advance, Bad, Refrozen, Stored
from .dispatch.advances import Advances
from .dispatch.dispatcher import Dispatcher
from .dispatch.once_locks import Claiming
from .dispatch.planner import Ahead, Job, Planner, quarantined
from .dispatch.publisher import Publisher
from .dispatch.reports import Reports
from .leader import Leader
from .vitals import Vitals

logger = get_logger(f"celery.{__name__}")

#: Milliseconds until the first new look at a backfill that waits for an end, a lock or a thaw. Each
#: wait is twice the one before it.
_FIRST_LOOK = 200

#: Longest of these waits in milliseconds.
_LAST_LOOK = 4000

#: Milliseconds between two steps of a backfill that sends by ``max_active``.
_STEP = 10

#: Milliseconds before an entry is due in which nothing else is begun; for so many seconds at most.
_MAKES_WAY, _PATIENCE = 30, 1.0

#: Lines of the feed of one look, and backfills that run at once.
_LINES, _TWINS = 1000, 100


@dataclass(slots=True, kw_only=True)
class _Job(Job):
    """A step of a backfill; what it is after that, unless something fails."""

    backfill: Backfill
    is_last: bool = False
    after: Backfill | None = None

    def id_of(self, nominal: int) -> str:
        return _id_of(self.backfill, nominal)


class BackfillPlanner(Planner):
    """Plans steps of backfills."""

    def __init__(self, live: LeaderStore, **planned: Any) -> None:
        super().__init__(**planned)
        self._live, self._feed = live, RunKeys(live.keys.prefix).feed
        self._guards = LockStore(live.backend.client, live.keys.prefix)
        #: Of each backfill its entry, and the one that is sent in its place.
        self._twins: dict[str, tuple[Entry, Entry]] = {}

    def plan(self, due: Sequence[Stored], now: int, freezes: Freezes, most: int = 0) -> tuple[list[Job], list[Bad]]:
        [stored] = due
        if (backfill := backfill_of(stored)) is None:
            return [], [quarantined(stored, CorruptEntry("it is no backfill"), now)]
        about = EntryState(0, "", None), Plan((), None, 0), Ahead(None, None)
        job = _Job(stored, Entry(backfill.name, "unknown", every(1)), *about, backfill=backfill)
        [found] = self._live.read([backfill.name])
        try:
            state, entry = state_of(found), self._entry(found)
            if state.generation != backfill.generation:
                raise CorruptEntry("another one has its name")  # noqa: TRY301 - as where it cannot be read
            if freezes.until(now, entry) is None:
                self._plan(job, entry, state, now)
        except NotKnownHere as exc:
            job.error = describe(exc)
        except UNREADABLE as exc:
            job.backfill = replace(backfill, ended=f"cancelled, as its entry is gone: {exc}")
        except Exception as exc:  # noqa: BLE001 - a schedule may raise anything
            job.error = describe(exc)
            logger.error("beat: backfill %s of %r waits, trying again later: %s", backfill.id, backfill.name, job.error)
        return [job], []

    def _plan(self, job: _Job, entry: Entry, state: EntryState, now: int) -> None:
        job.backfill = backfill = self._with_ends(job.backfill)
        job.entry, most = self._twin(entry, backfill), room(backfill, entry)
        if most < 1:
            return
        found = [*islice(times(backfill, entry, state, self._zone), most + 1)]
        job.plan, job.is_last = Plan(tuple(found[:most]), None, 0), len(found) <= most
        if (once := job.entry.once) is not None:
            job.wanted = [self._claim(job, once, nominal, now) for nominal in job.plan.emit]

    def _twin(self, entry: Entry, backfill: Backfill) -> Entry:
        """The entry as its messages are made: nothing is expected of them, and they say of which backfill they are."""
        known, twin = self._twins.get(backfill.id, (None, None))
        if known is not entry or twin is None:
            twin = copy(entry)
            twin.written = None
            headers = {**(entry.options.get("headers") or {}), BACKFILL_HEADER: backfill.id}
            twin._put(expect=False, options={**entry.options, "headers": headers})
            if entry.once is not None and not entry.once.at_publish and entry.once.on_conflict != "wait":
                twin._put(once=entry.once.but(on_conflict="wait", max_waiters=None))  # or the worker would leave it out
            if backfill.max_active is not None:
                twin._put(history=MAX_HISTORY)  # Of an old run, the end is told only where there is room for its row.
            if len(self._twins) >= _TWINS:
                self._twins.clear()
            self._twins[backfill.id] = entry, twin
        return twin

    def _with_ends(self, backfill: Backfill) -> Backfill:
        """The backfill without those, where it waits for one, of whose end the feed tells, or whose worker has died."""
        if backfill.max_active is None or len(backfill.active) < backfill.max_active:
            return backfill
        client: Any = self._live.backend.client
        lines = client.xrange(self._feed, f"({backfill.feed}", "+", _LINES)
        ended = {text(fields.get(b"id", b"")) for _, fields in lines if fields.get(b"outcome") != b"y"}
        out = {id_: nominal for nominal in backfill.active if (id_ := _id_of(backfill, nominal)) not in ended}
        lapsed = self._guards.lapsed(out)
        active = [nominal for id_, nominal in out.items() if id_ not in lapsed]
        return replace(backfill, active=active, feed=text(lines[-1][0]) if lines else backfill.feed)


class Backfills(Dispatcher):
    """Dispatches backfills; ``live`` is the schedule of the entries."""

    def __init__(
        self, live: LeaderStore, leader: Leader, publisher: Publisher, locks: LockStore, vitals: Vitals, **by: Any
    ) -> None:
        own = LeaderStore(live.backend, live.keys.of_backfills)
        super().__init__(own, leader, publisher, locks, vitals, **by)
        self._live, self._vitals, self._last = live, vitals, 0.0
        self._claiming, self._reports = _Claiming(locks), _Reports(live, vitals, by["zone"])
        self._advances = self._next = _Advances(RunKeys(live.keys.prefix), by["deadlines"], by["zone"])

    def run_beside(self, upcoming: int | None) -> int | None:
        """Take a step of the backfill whose turn it is, before the next entry is due; raises as :meth:`run`.

        Returns when there is something to do next, in epoch milliseconds.
        """
        due, now = self._live.backfill_due, wall_ms()
        if due is None:
            self._vitals.backfill_left = 0
            return upcoming
        if due > now:
            return due if upcoming is None else min(due, upcoming)
        if upcoming is not None and upcoming - now < _MAKES_WAY and elapsed() - self._last < _PATIENCE:
            return upcoming
        self._last = elapsed()
        running = [stored for stored in self._store.page(0, _TWINS) if stored.score is not None]
        self._vitals.backfill_left = sum(each.left for each in map(backfill_of, running) if each is not None)
        if running:
            with suppress(Refrozen):
                self._dispatch(self._leader.term, running[:1], now)
        dues = upcoming, self._next.due, *(stored.score for stored in running[1:2])
        return min((due for due in dues if due is not None), default=None)


class _Claiming(Claiming):
    def _tell_held(self, name: str, key: str) -> None:
        """It waits, and is not left out."""


class _Reports(Reports):
    def __init__(self, live: LeaderStore, *about: Any) -> None:
        super().__init__(*about)
        self._live = live

    def advanced(self, job: Job) -> None:
        assert isinstance(job, _Job)
        after = job.after
        if after is not None and after.ended and not job.error:
            line = line_of(BEAT, "backfill", f"{after.id} {after.ended}: {after.sent} sent")
            self._live.record(line, [after.name])

    def committed(self, jobs: Iterable[Job]) -> None:
        self._vitals.sent += sum(len(job.plan.emit) for job in jobs if not job.error)


class _Advances(Advances):
    due: int | None = None  #: of the backfill that was advanced last

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self._waits: dict[str, int] = {}  #: last wait in ms of each backfill that waits, by id

    def of(self, job: Job, now: int) -> Advance:
        assert isinstance(job, _Job)
        before, sent = job.backfill, job.plan.emit
        if job.error:
            after = replace(before, attempts=before.attempts + 1)
            wait = 1000 * retry_delay(after.attempts)
        else:
            after = went_out(before, sent, is_all=job.is_last and not job.left_out)
            wait = self._pace(before, len(sent)) if sent else self._back_off(before)
        job.after = after
        self.due = None if after.ended else now + wait
        return Advance(job.stored.name, (job.stored.state or b"").decode(), after.state, self.due, job.commands)

    def _pace(self, backfill: Backfill, sent: int) -> int:
        """Return the milliseconds to wait after a step that has sent so many messages."""
        self._waits.pop(backfill.id, None)
        if backfill.max_active is not None:
            return _STEP
        return round(1000 * sent / backfill.rate)

    def _back_off(self, backfill: Backfill) -> int:
        """Return the milliseconds until the next look at a backfill that could not send."""
        wait = min(2 * self._waits.get(backfill.id, _FIRST_LOOK // 2), _LAST_LOOK)
        if len(self._waits) >= _TWINS:
            self._waits.clear()
        self._waits[backfill.id] = wait
        return wait


def _id_of(backfill: Backfill, nominal: int) -> str:
    return backfill_id(backfill.name, backfill.generation, nominal, backfill.again)
