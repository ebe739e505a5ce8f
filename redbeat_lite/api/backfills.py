"""Backfills as users start and stop them; the leading beat sends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from hashlib import sha1
from itertools import groupby, islice
from typing import Any, cast

from .._base.actors import Who
from .._base.clock import wall_ms
from .._base.errors import EntryChanged, EntryNotFound, InvalidEntry
from .._base.public import public
from .._base.times import aware, from_ms, to_ms
from ..entries.backfill import FASTEST, SLOWEST, Backfill, backfill_of, covered, merged, times
from ..entries.entry import Entry
from ..entries.fields import as_number, is_name, is_number
from ..entries.state import storable_note
from ..entries.words import in_zone
from ..once.lock_store import OnceKeys
from ..once.worker_reports import heard_of
from ..settings import MAX_HISTORY
from ..store.changes import line_of
from ..store.records import Edit
from ..store.redis_values import server_ms
from ..store.store import TRIES, Store
from .reader import Reader, check_complete
from .run_history import RunHistory, RunQuery

#: Most occurrences of one backfill.
_LONGEST = 100_000

#: Highest ``max_active`` of a backfill.
_ACTIVE = 1000

#: Most separate ranges of times that the backfills of one entry may have sent.
_RANGES = 1000

#: Ended backfills that are kept.
_ENDED = 100

#: What became of a run that is not missing: it has done its work, or may yet.
_THERE = ("waiting", "running", "retrying", "succeeded")


@public
class Backfills:
    """The backfills of a schedule, as :attr:`Schedules.backfills` has them; every process sees the
    same.

    Those that have not ended, and the last hundred that have: iterated over from the oldest on, or
    found by their ids.
    """

    def __init__(self, reader: Reader, who: Callable[[], Who]) -> None:
        self._reader, self._store, self._zone, self._who = reader, reader.store, reader.zone, who
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
        """Have all occurrences of an entry sent between two instants of the past, both included,
        oldest first.

        They are those of its schedule as it is, whether they were sent when they were due or not;
        what a backfill has sent is not sent again. One instant twice is the nominal time of one
        run, whatever the schedule.

        Parameters:
            max_active: how many may be out at once that no worker has recorded the end of, up to
                1,000; ``None``: it goes by ``rate`` alone.
            rate: messages a second without ``max_active``, up to 1,000.
            again: 1 and so on, to send what was sent under the numbers before.
            missing: leave out those that, by the record of runs, have succeeded, run or wait. They
                then count as sent.
            note: why, for those who come after.
            dry_run: return what would be started, without an id, and start nothing.

        Raises:
            EntryNotFound: there is no such entry.
            InvalidEntry: a parameter is wrong, nothing or too much is to be sent, no worker
                records, or what is missing is not known, as the record of runs does not reach back
                so far.
            ConfigOwned: its schedule cannot be stored, and this app's configuration does not have
                it.
        """
        entry, client = self._reader.whole(name), cast(Any, self._store.backend.client)
        check_complete(entry, "schedule")
        first, last = (
            to_ms(aware(field, value)) for field, value in (("start", start), ("end", end))
        )
        _check("start", "an instant not after the end", start, first <= last)
        _check("end", "an instant that is not to come", end, last <= wall_ms() + 1)
        as_number("max_active", max_active, 1, _ACTIVE)
        in_bounds = is_number(rate) and SLOWEST <= rate <= FASTEST
        _check("rate", f"{SLOWEST} to {FASTEST} messages a second", rate, in_bounds)
        _check("again", "a whole number from 0", again, type(again) is int and 0 <= again <= 10**6)
        heard = heard_of(
            client.hgetall(OnceKeys(self._store.keys.prefix).workers), server_ms(client) / 1000
        )
        expected = (
            "None (--max-active none), as no worker that records runs was heard of within a minute"
        )
        hint = "it then sends `rate` (--rate) messages a second, whatever becomes of them"
        is_told = max_active is None or any(said.records for said in heard.values())
        _check("max_active", expected, max_active, is_told, hint)
        known = [*self]
        kind = name, entry.known_state.generation, again
        before = max(
            (each for each in known if _kind(each) == kind),
            key=lambda each: each.number,
            default=None,
        )
        next_number = f"again={again + 1} (--again {again + 1})"
        if before and not before.ended:
            hint = (
                f"backfill {before.id} has {before.left} left: wait for its end, cancel it, "
                f"or send its runs once more by {next_number}"
            )
            raise InvalidEntry(
                "again", "a number under which no backfill of the entry goes on", again, hint=hint
            )
        about = (
            max_active,
            rate,
            again,
            storable_note(name, note),
            self._who().actor,
            from_ms(wall_ms()),
        )
        number, skip = (before.number + 1, covered(before)) if before else (0, ())
        wanted = Backfill("", name, from_ms(first), from_ms(last), *about, kind[1], number, skip)
        found = [*islice(times(wanted, entry, entry.known_state, self._zone), _LONGEST + 1)]
        if missing and 0 < len(found) <= _LONGEST:
            found, wanted = self._missing(entry, found, wanted)
        which = " and that are missing" if missing else ""
        expected = f"a range with 1 to {_LONGEST:,} occurrences that no backfill has sent{which}"
        hint = f"if all of these were sent already, {next_number} sends them once more"
        _check(
            "start",
            expected,
            f"{len(found):,} of {entry.schedule!r}",
            0 < len(found) <= _LONGEST,
            hint,
        )
        _check(
            "again",
            "one under which less was sent here and there",
            again,
            len(wanted.skip) < _RANGES,
        )
        wanted = replace(wanted, start=from_ms(found[0]), end=from_ms(found[-1]), total=len(found))
        return wanted if dry_run else self._started(wanted, known)

    def _missing(
        self, entry: Entry, found: list[int], wanted: Backfill
    ) -> tuple[list[int], Backfill]:
        """Those of these nominal times (epoch ms) that are missing; the others are among what was
        sent from then on.
        """
        known = RunHistory(self._reader).of_entry(entry, RunQuery.of(None, None, None, MAX_HISTORY))
        since, first = min((run.scheduled_at for run in known), default=None), from_ms(found[0])
        if since is None or since > first:
            expected = f"a record of runs that goes back to {in_zone(first, self._zone)}"
            got = "none" if since is None else f"one that begins {in_zone(since, self._zone)}"
            hint = (
                "begin where the record begins; without missing (--missing) all are sent, "
                "whatever became of them"
            )
            raise InvalidEntry("missing", expected, got, entry=entry.name, hint=hint)
        there = {to_ms(run.scheduled_at) for run in known if run.outcome in _THERE}
        others = [[*each] for is_there, each in groupby(found, there.__contains__) if is_there]
        skip = merged([*wanted.skip, *((each[0], each[-1]) for each in others)])
        return [at for at in found if at not in there], replace(wanted, skip=skip)

    def lacks(self, wanted: Backfill) -> bool:
        """Whether neither it nor one after it, of its entry and ``again``, is stored."""
        return not any(
            _kind(each) == _kind(wanted) and each.number >= wanted.number for each in self
        )

    def restore(self, wanted: Backfill) -> None:
        """Go on with one that there was, as a backup has it, where it is lacking."""
        wanted = replace(wanted, feed=f"{server_ms(self._store.backend.client)}-0")
        if self.lacks(wanted) and self._own.put(
            [wanted.edit(None, wall_ms() if wanted.runs else None)]
        ) == [True]:
            self._tell(wanted, "imported")

    def pause(self, id: str) -> Backfill:
        """Stop sending it for now; raises EntryNotFound if there is none, or it has ended."""
        return self._change(id, "paused", paused=True)

    def resume(self, id: str) -> Backfill:
        """Go on with it, and wait for nothing that is out: its end may have been lost; raises as
        :meth:`pause`.
        """
        return self._change(id, "resumed", paused=False, active=())

    def cancel(self, id: str) -> Backfill:
        """Send nothing of it any more; raises as :meth:`pause`."""
        return self._change(id, "cancelled", ended="cancelled")

    def __getitem__(self, id: str) -> Backfill:
        """The backfill of this id; raises EntryNotFound, a ``KeyError``, where there is none."""
        found = backfill_of(self._own.read([id])[0]) if is_name(id) else None
        if found is None:
            raise EntryNotFound(f"no backfill {id!r} is stored")
        return found

    def __iter__(self) -> Iterator[Backfill]:
        return iter(
            sorted(
                filter(None, map(backfill_of, self._own.pages())),
                key=lambda each: (each.at, each.number),
            )
        )

    def _started(self, wanted: Backfill, known: Sequence[Backfill]) -> Backfill:
        # Of two that are started at the same time, one has the id.
        id_ = sha1(
            repr((_kind(wanted), wanted.number)).encode(), usedforsecurity=False
        ).hexdigest()[:10]
        wanted = replace(wanted, id=id_, feed=f"{server_ms(self._store.backend.client)}-0")
        if self._own.put([wanted.edit(None, wall_ms())]) == [False]:
            raise EntryChanged(
                f"backfill {id_!r} of {wanted.name!r} was started by somebody else just now"
            )
        first, last = (in_zone(each, self._zone) for each in (wanted.start, wanted.end))
        self._tell(wanted, f"started, {wanted.total} from {first} to {last}")
        newest = {_kind(each): each for each in (*known, wanted)}
        old = [each for each in known if each.ended][:-_ENDED]
        there = self._store.existing({each.name for each in old})
        for each in old:
            if newest[_kind(each)] is not each or each.name not in there:
                self._own.put([Edit(each.id, each.state.encode(), None)])
        return wanted

    def _change(self, id_: str, action: str, **changes: Any) -> Backfill:
        for _ in range(TRIES):
            if (found := self[id_]).ended:
                raise EntryNotFound(f"backfill {id_!r} has ended: {found.ended}")
            after = replace(found, **changes)
            if self._own.put([after.edit(found, wall_ms() if after.runs else None)]) == [True]:
                self._tell(after, action)
                return after
        raise EntryChanged(f"backfill {id_!r} is being changed too often")

    def _tell(self, backfill: Backfill, what: str) -> None:
        note = f": {backfill.note}" if backfill.note else ""
        self._store.record(
            line_of(self._who(), "backfill", f"{backfill.id} {what}{note}"), [backfill.name]
        )


def _kind(backfill: Backfill) -> tuple[str, str, int]:
    return backfill.name, backfill.generation, backfill.again


def _check(
    field: str, expected: str, value: object, is_right: object, hint: str | None = None
) -> None:
    if not is_right:
        raise InvalidEntry(field, expected, value, hint=hint)
