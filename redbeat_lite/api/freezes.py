"""Freezes as users see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

from .._base.actors import Who
from .._base.clock import wall_ms
from .._base.errors import EntryChanged, EntryNotFound, InvalidEntry
from .._base.ids import random_hex
from .._base.public import public
from .._base.times import YEAR, Duration, aware, from_ms, length_of, to_ms
from ..entries.entry import Entry
from ..entries.freezes import Freeze, Freezes
from ..entries.selection import Selection
from ..entries.state import storable_note
from ..store.changes import Line, line_of
from ..store.store import TRIES, Store

#: As many as there may be: each is looked at for each entry that is due.
_MOST = 100

#: Seconds that one may hold, so that its end is an instant in each zone.
_LONGEST = 1000 * YEAR


@public
class FreezeList:
    """The freezes that hold, as :attr:`Schedules.freezes` has them; every process sees the same."""

    def __init__(self, store: Store, who: Callable[[], Who]) -> None:
        self._store, self._who = store, who

    def __iter__(self) -> Iterator[Freeze]:
        """The oldest first."""
        return (each for each in self.known().all if each.holds(wall_ms()))

    def add(
        self,
        name: str = "*",
        *,
        tag: str | None = None,
        task: str = "*",
        until: datetime | None = None,
        seconds: Duration | None = None,
        note: str = "",
    ) -> Freeze:
        """Keep entries from firing for a time. None is edited; messages that are out, and retries,
        go on.

        At its end, each entry's misfire policy decides on the runs that were due meanwhile.

        Once this has returned, nothing goes out that is sent in one step with the schedule; with a
        broker elsewhere, nothing later than the batch that is under way.

        Parameters:
            name, task: patterns, as of files: ``billing-*``.
            tag: one of the entry's tags.
            until: aware; when it ends.
            seconds: for how long it holds, as seconds, a timedelta or a text such as ``"2h"``; in
                the place of ``until``.
            note: why.

        Raises:
            InvalidEntry: a parameter is wrong, or there are 100.
            UnsupportedFormat: the beat that leads is of an earlier version, and would send what is
                frozen.
        """
        now, selection = wall_ms(), Selection.of(name, tag, task)
        if (until is None) == (seconds is None):
            raise InvalidEntry("until", "either until or seconds", (until, seconds))
        end = _after(now, seconds) if until is None else to_ms(aware("until", until))
        if not now < end <= now + 1000 * _LONGEST:
            raise InvalidEntry("until", "an instant still to come, within 1,000 years", until)
        whose, told, id = self._who(), storable_note(name, note), random_hex(3)
        since = from_ms(now)
        freeze = Freeze(id, *selection, since, until=from_ms(end), note=told, actor=whose.actor)
        self.restore(freeze)
        return freeze

    def restore(self, freeze: Freeze) -> None:
        """Store a freeze of a backup, unless it is stored; raises as :meth:`add`."""
        fields = {"id": freeze.id, **freeze.selection._asdict(), "until": freeze.until.isoformat()}
        told = tuple((field, None, value) for field, value in fields.items())
        line = line_of(self._who(), "frozen", freeze.note, told)
        self._change(
            lambda found: (
                found if any(each.id == freeze.id for each in found) else (*found, freeze)
            ),
            line,
        )

    def thaw(self, id: str) -> None:
        """End a freeze before its time.

        Raises:
            EntryNotFound: no freeze of this id holds.
        """
        now = wall_ms()

        def thawed(found: tuple[Freeze, ...]) -> list[Freeze]:
            if not any(each.id == id and each.holds(now) for each in found):
                raise EntryNotFound(
                    f"no freeze {id!r} holds: one is thawed by its id, which `freezes` tells"
                )
            return [each._replace(thawed=from_ms(now)) if each.id == id else each for each in found]

        self._change(thawed, line_of(self._who(), "thawed", "", (("id", None, id),)))

    def marked(self, entries: Iterable[Entry], known: Freezes | None = None) -> Iterator[Entry]:
        """These entries, each told until when it is frozen.

        Parameters:
            known: the freezes, where they were read already.
        """
        known, now = self.known() if known is None else known, wall_ms()
        for entry in entries:
            until = known.until(now, entry)
            entry.frozen_until = None if until is None else from_ms(until)
            yield entry

    def known(self) -> Freezes:
        """All that is stored of them."""
        return Freezes.of(self._store.freezes())

    def _change(self, decide: Callable[[tuple[Freeze, ...]], Sequence[Freeze]], line: Line) -> None:
        for _ in range(TRIES):
            known = self.known()
            if (wanted := decide(known.all)) is known.all:
                return
            later = known.replaced(*wanted)
            # Beside them there are those that have ended, of which the beat has not seen to the
            # end.
            number = max(sum(each.holds(wall_ms()) for each in later.all), len(later.all) // 10)
            if number > _MOST:
                raise InvalidEntry("freezes", f"at most {_MOST} of them", number)
            if self._store.set_freezes(known.text, later.text, line):
                return
        raise EntryChanged("the freezes are being changed too often")


def _after(now: int, seconds: object) -> int:
    return now + round(
        1000 * length_of("seconds", seconds, "a millisecond to 1,000 years", 0.001, _LONGEST)
    )
