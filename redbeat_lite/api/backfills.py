"""Backfills for users, who start, pause and cancel them. The leading beat sends their messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice, pairwise
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from .._base.actors import who
from .._base.clock import wall_ms
from .._base.errors import EntryChanged, EntryNotFound, InvalidEntry
from .._base.fields import INSTANT
from .._base.public import public
from .._base.times import from_ms, in_zone, to_ms
from ..entries.backfill import Backfill, backfill_of, covered, merged, unsent_times
from ..entries.changes import Edit, line_of
from ..entries.entry import Entry
from ..entries.model import is_name
from ..entries.state import storable_note
from ..once.lock_store import LockStore
from ..once.worker_reports import workers
from ..settings import MAX_HISTORY
from ..store.redis_values import server_ms, text
from ..store.store import TRIES, Store
from .reader import Reader, check_complete
from .run_history import RunHistory, RunQuery

#: Maximum number of occurrences of one backfill.
_LONGEST = 100_000

#: Maximum number of separate ranges of times that the backfills of one entry may have sent.
_RANGES = 1000

#: Maximum number of ended backfills that are kept.
_ENDED = 100

#: Outcomes of a run that is not missing, because it has succeeded or may still succeed.
_THERE = ("waiting", "running", "retrying", "succeeded")


@public
class Backfills:
    """Backfills of a schedule, as :attr:`Schedules.backfills`. Every process sees the same ones.

    All backfills that have not ended are kept, and the last hundred that have ended. Iteration
    begins with the oldest; ``[id]`` returns one.
    """

    def __init__(self, reader: Reader, actor: str | None) -> None:
        self._reader = reader
        self._zone = reader.app.timezone
        self._store = reader.store
        self._actor = actor
        self._own = Store(reader.store.backend, reader.store.keys.of_backfills)

    def start(
        self,
        name: str,
        start: datetime,
        end: datetime,
        *,
        max_active: int | None = 1,
        rate: float = 10,
        again: int = 0,
        missing: bool = False,
        note: str = "",
        dry_run: bool = False,
    ) -> Backfill:
        """Send all occurrences of an entry between two instants of the past, the oldest first.

        Both instants are included. The occurrences follow the present schedule; it does not matter
        whether they were sent at their time. Occurrences that an earlier backfill has sent are left
        out. If both instants are the same, one run gets this nominal time, whatever the schedule.

        Parameters:
            max_active: maximum number of runs in flight at the same time, up to 1,000. A run is in
                flight until a worker has recorded its end. ``None``: only ``rate`` limits the
                backfill.
            rate: messages per second if ``max_active`` is ``None``, up to 1,000.
            again: number from 0. Occurrences that earlier backfills have sent under another number
                are sent once more.
            missing: leave out occurrences whose recorded run has succeeded, is running or waits.
                They count as sent from then on.
            note: reason, which is shown with the backfill.
            dry_run: return the backfill without an id, and start nothing.

        Raises:
            EntryNotFound: there is no such entry.
            InvalidEntry: a parameter is wrong; no occurrence or too many are to be sent; no worker
                records runs; or with ``missing``, the record of runs does not reach back so far.
            ConfigOwned: its schedule cannot be stored, and this app's configuration does not have
                it.
        """
        entry = self._reader.whole(name)
        check_complete(entry, "schedule")
        first = INSTANT.read("start", start)
        last = INSTANT.read("end", end)
        if first > last:
            raise InvalidEntry("start", "an instant not after the end", start)
        now = wall_ms()
        # to_ms() rounds up, so the present instant may become ``now + 1``.
        if to_ms(last) > now + 1:
            raise InvalidEntry("end", "an instant that is not to come", end)
        backfill = Backfill(
            id="",  # _store_new() makes the id.
            name=name,
            # Redis stores instants in whole milliseconds.
            start=from_ms(to_ms(first)),
            end=from_ms(to_ms(last)),
            max_active=max_active,
            rate=rate,
            again=again,
            note=storable_note(name, note),
            actor=who(self._actor).actor,
            at=from_ms(now),
            generation=entry.state.generation,
        )
        if max_active is not None:
            self._check_workers(max_active)
        backfill = self._with_total(backfill, entry, missing=missing)
        return backfill if dry_run else self._store_new(backfill)

    def _with_total(self, backfill: Backfill, entry: Entry, *, missing: bool) -> Backfill:
        """Return a new backfill with its count of occurrences, and the ranges of times to skip.

        Parameters:
            missing: as for :meth:`start`.
        """
        before = self._newest(backfill)
        if before is not None:
            _check_ended(before)
            backfill = backfill.but(number=before.number + 1, skip=covered(before))
        # Read one more than is allowed, so that _check_amount() sees that there are too many.
        nominals = [*islice(unsent_times(backfill, entry, entry.state), _LONGEST + 1)]
        # If there are none or too many, the error of _check_amount() comes first.
        if missing and 0 < len(nominals) <= _LONGEST:
            nominals, backfill = self._only_missing(entry, nominals, backfill)
        _check_amount(entry, nominals, backfill, missing=missing)
        first = from_ms(nominals[0])
        return backfill.but(start=first, end=from_ms(nominals[-1]), total=len(nominals))

    def _check_workers(self, max_active: int) -> None:
        """Raise InvalidEntry if no worker records the ends of runs, which ``max_active`` needs.

        Parameters:
            max_active: the value of the parameter, for the error.
        """
        locks = LockStore(self._store.backend.client, self._store.keys.prefix)
        # workers() returns the workers that have reported within the last minute.
        if workers(locks):
            return
        expected = (
            "None (--max-active none), as no worker that records runs has reported within a minute"
        )
        hint = "it then sends `rate` (--rate) messages a second, whatever becomes of them"
        raise InvalidEntry("max_active", expected, max_active, hint=hint)

    def _only_missing(
        self, entry: Entry, nominals: list[int], backfill: Backfill
    ) -> tuple[list[int], Backfill]:
        """Return the nominal times of missing runs, and the backfill that skips the other times.

        Parameters:
            nominals: nominal times of all occurrences, in epoch ms, the earliest first.

        Raises:
            InvalidEntry: the record of runs does not reach back to the first nominal time.
        """
        runs = RunHistory(self._reader).of_entry(entry, RunQuery.of(limit=MAX_HISTORY))
        # The record begins with the earliest recorded run.
        since = min((run.scheduled_at for run in runs), default=None)
        first = from_ms(nominals[0])
        if since is None or since > first:
            expected = f"a record of runs that goes back to {in_zone(first, self._zone)}"
            got = "none" if since is None else f"one that begins {in_zone(since, self._zone)}"
            hint = (
                "begin where the record begins; without missing (--missing) all are sent, "
                "whatever became of them"
            )
            raise InvalidEntry("missing", expected, got, entry=entry.name, hint=hint)
        present = {to_ms(run.scheduled_at) for run in runs if run.outcome in _THERE}
        # A run that is not missing gets a range to skip, up to 1 ms before the next occurrence. So
        # the ranges of several such runs in a row touch, and merged() makes one range of them. The
        # last occurrence has none after it, so its range is its own instant.
        ranges = [
            (nominal, following - 1)
            for nominal, following in pairwise([*nominals, nominals[-1] + 1])
            if nominal in present
        ]
        missing = [nominal for nominal in nominals if nominal not in present]
        return missing, backfill.but(skip=merged([*backfill.skip, *ranges]))

    def lacks(self, backfill: Backfill) -> bool:
        """Return whether Redis has neither this backfill nor a later one of the same kind.

        Backfills of a kind have the same entry, generation and ``again``. Each of them skips what
        the earlier ones have sent, and has the next number.
        """
        newest = self._newest(backfill)
        return newest is None or newest.number < backfill.number

    def restore(self, backfill: Backfill) -> None:
        """Store a backfill of a backup, so that it continues, unless it is stored already."""
        if self.lacks(backfill) and self._put(before=None, after=self._with_feed(backfill)):
            self._record(backfill, "imported")

    def pause(self, id: str) -> Backfill:
        """Stop sending messages of a backfill until :meth:`resume`.

        Raises:
            EntryNotFound: there is no such backfill, or it has ended.
        """
        return self._change(id, "paused", paused=True)

    def resume(self, id: str) -> Backfill:
        """Continue a backfill; raises as :meth:`pause`.

        Runs that were in flight no longer count as in flight, because their ends may be lost.
        """
        return self._change(id, "resumed", paused=False, active=())

    def cancel(self, id: str) -> Backfill:
        """End a backfill, so that no further message is sent; raises as :meth:`pause`."""
        return self._change(id, "cancelled", ended="cancelled")

    def __getitem__(self, id: str) -> Backfill:
        """Return the backfill of this id; raise EntryNotFound, a ``KeyError``, if there is none."""
        backfill = backfill_of(self._own.read([id])[0]) if is_name(id) else None
        if backfill is None:
            raise EntryNotFound(f"no backfill {id!r} is stored")
        return backfill

    def __iter__(self) -> Iterator[Backfill]:
        readable = filter(None, map(backfill_of, self._own.pages()))
        return iter(sorted(readable, key=lambda backfill: (backfill.at, backfill.number)))

    def _newest(self, backfill: Backfill) -> Backfill | None:
        """Return the stored backfill of the same kind that was started last, if there is one."""
        stored = [other for other in self if _kind(other) == _kind(backfill)]
        return max(stored, key=lambda other: other.number, default=None)

    def _store_new(self, backfill: Backfill) -> Backfill:
        """Store a new backfill, and remove old ones. Return the backfill with its id.

        Raises:
            EntryChanged: another process has just started the same backfill.
        """
        # If two processes start the same backfill at the same time, both compute the same id, so
        # only one of them can store it.
        identity = repr((_kind(backfill), backfill.number))
        id_ = uuid5(NAMESPACE_OID, identity).hex[:10]
        backfill = self._with_feed(backfill.but(id=id_))
        if not self._put(before=None, after=backfill):
            raise EntryChanged(
                f"backfill {id_!r} of {backfill.name!r} was started by somebody else just now"
            )
        first = in_zone(backfill.start, self._zone)
        last = in_zone(backfill.end, self._zone)
        self._record(backfill, f"started, {backfill.total} from {first} to {last}")
        self._remove_old()
        return backfill

    def _remove_old(self) -> None:
        """Remove all but the last ``_ENDED`` of the ended backfills.

        The newest backfill of each kind stays as long as its entry exists, because the next one of
        its kind skips the times that it has sent.
        """
        # Iteration begins with the oldest. So for each kind, the dict keeps the newest backfill.
        backfills = [*self]
        newest = {_kind(backfill): backfill for backfill in backfills}
        old = [backfill for backfill in backfills if backfill.ended][:-_ENDED]
        entries = self._store.present({backfill.name for backfill in old})
        names = {text(stored.name) for stored in entries}
        for backfill in old:
            is_needed = newest[_kind(backfill)] is backfill and backfill.name in names
            if not is_needed:
                # An edit without a state removes the backfill.
                self._own.put([Edit(backfill.id, backfill.text.encode(), state=None)])

    def _with_feed(self, backfill: Backfill) -> Backfill:
        """Return the backfill with ``feed`` set to now: it reads only ends of runs from now on."""
        return backfill.but(feed=server_ms(self._store.backend.client))

    def _put(self, before: Backfill | None, after: Backfill) -> bool:
        """Store a backfill if Redis still holds ``before``; return whether it was stored.

        Parameters:
            before: the backfill as it was read; ``None`` if there must be no such backfill.
        """
        due = wall_ms() if after.runs else None  # A paused or ended backfill is never due.
        return self._own.put([after.edit(before, due)]) == [True]

    def _change(self, id_: str, action: str, **changes: Any) -> Backfill:
        """Change fields of a backfill that has not ended, and record the change.

        If another process changes the backfill at the same time, this call reads it again and
        retries.

        Parameters:
            action: the change in one word, for the record of changes.
            changes: the fields with their new values.
        """
        for _ in range(TRIES):
            before = self[id_]
            if before.ended:
                raise EntryNotFound(f"backfill {id_!r} has ended: {before.ended}")
            after = before.but(**changes)
            if self._put(before, after):
                self._record(after, action)
                return after
        raise EntryChanged(f"backfill {id_!r} is being changed too often")

    def _record(self, backfill: Backfill, action: str) -> None:
        """Add a line to the record of changes."""
        note = f": {backfill.note}" if backfill.note else ""
        line = line_of(who(self._actor), "backfill", f"{backfill.id} {action}{note}")
        self._store.record(line, [backfill.name])


def _kind(backfill: Backfill) -> tuple[str, str, int]:
    """Return the kind of a backfill: the name and the generation of its entry, and ``again``.

    A backfill skips the occurrences that earlier backfills of the same kind have sent.
    """
    return backfill.name, backfill.generation, backfill.again


def _check_ended(backfill: Backfill) -> None:
    """Raise InvalidEntry if this backfill has not ended, so that no other of its kind may start."""
    if backfill.ended:
        return
    hint = (
        f"backfill {backfill.id} has {backfill.left} left: wait for its end, cancel it, "
        f"or send its runs once more by {_next_number(backfill.again)}"
    )
    expected = "a number that no unfinished backfill of the entry has"
    raise InvalidEntry("again", expected, backfill.again, hint=hint)


def _next_number(again: int) -> str:
    """Return the parameter with the number after ``again``, for Python and the command line."""
    return f"again={again + 1} (--again {again + 1})"


def _check_amount(
    entry: Entry, nominals: Sequence[int], backfill: Backfill, *, missing: bool
) -> None:
    """Raise InvalidEntry if there is no occurrence, or too many, or too many ranges to skip.

    Parameters:
        nominals: nominal times of the occurrences to send, at most one more than is allowed.
        missing: whether only missing runs are to be sent, for the error.
    """
    number = len(nominals)
    if not 0 < number <= _LONGEST:
        suffix = " and that are missing" if missing else ""
        expected = f"a range with 1 to {_LONGEST:,} occurrences that no backfill has sent{suffix}"
        again = _next_number(backfill.again)
        hint = f"if all of these were sent already, {again} sends them once more"
        raise InvalidEntry("start", expected, f"{number:,} of {entry.schedule!r}", hint=hint)
    if len(backfill.skip) >= _RANGES:
        expected = "a number under which fewer separate ranges of times were sent"
        raise InvalidEntry("again", expected, backfill.again)
