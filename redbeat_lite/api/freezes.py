"""Freezes for users, who add and thaw them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

from .._base.actors import who
from .._base.clock import wall_ms
from .._base.errors import EntryChanged, EntryNotFound, InvalidEntry
from .._base.fields import length
from .._base.ids import random_hex
from .._base.public import public
from .._base.times import YEAR, Duration, from_ms, to_ms
from ..entries.changes import Line, line_of
from ..entries.entry import Entry
from ..entries.freezes import Freeze, Freezes
from ..entries.selection import Selection
from ..entries.state import storable_note
from ..store.store import TRIES, Store
from .reader import mark_frozen

#: Maximum number of freezes. They are bounded because the beat compares each of them with each due
#: entry.
_MOST = 100

#: Longest freeze in seconds, so that a datetime can hold its end in any zone.
_LONGEST = 1000 * YEAR

#: Length of a freeze.
_LENGTH = length(0.001, _LONGEST)


@public
class FreezeList:
    """Freezes that are in force, as :attr:`Schedules.freezes`. Every process sees the same ones."""

    def __init__(self, store: Store, actor: str | None) -> None:
        self._store = store
        self._actor = actor

    def __iter__(self) -> Iterator[Freeze]:
        """Iterate over the freezes that are in force, the oldest first."""
        return iter(self.known().holding(wall_ms()))

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
        """Keep entries from firing for a time, without an edit of these entries.

        Messages that were sent already, and their retries, are not affected. At the end of the
        freeze, each entry's misfire policy decides on the runs that were due meanwhile.

        Once this call has returned, a beat that commits and sends in one step sends no message of
        these entries. If the broker is another server, the beat may still send the batch that it is
        sending just then.

        Parameters:
            name, task: patterns of names and of tasks, as of files: ``billing-*``.
            tag: one of the entry's tags.
            until: aware; time at which the freeze ends.
            seconds: length of the freeze instead of ``until``, as seconds, a timedelta or a text
                such as ``"2h"``.
            note: reason, which is shown with the freeze.

        Raises:
            InvalidEntry: a parameter is wrong, or there are 100 freezes already.
            UnsupportedFormat: another version of redbeat_lite uses this schedule.
        """
        now = wall_ms()
        selection = Selection.of(name, tag, task)
        # Exactly one of the two must be passed.
        if (until is None) == (seconds is None):
            raise InvalidEntry("until", "either until or seconds", (until, seconds))
        if until is None:
            end = now + round(1000 * _LENGTH.read("seconds", seconds))
        else:
            end = to_ms(until, "until")
        if not now < end <= now + 1000 * _LONGEST:
            raise InvalidEntry("until", "an instant still to come, within 1,000 years", until)
        freeze = Freeze(
            random_hex(3),  # This is the id.
            *selection,  # These are name, tag and task.
            since=from_ms(now),
            until=from_ms(end),
            note=storable_note(name, note),
            actor=who(self._actor).actor,
        )
        self.restore(freeze)
        return freeze

    def restore(self, freeze: Freeze) -> None:
        """Store a freeze of a backup, unless its id is stored already; raises as :meth:`add`."""
        fields = {"id": freeze.id, **freeze.selection._asdict(), "until": freeze.until.isoformat()}
        # A difference is a field, its value before and its value after.
        differences = tuple((field, None, value) for field, value in fields.items())
        line = line_of(who(self._actor), "frozen", freeze.note, differences)

        def with_freeze(stored: Sequence[Freeze]) -> list[Freeze]:
            """Return the stored freezes and this one, in place of a stored one with the same id."""
            others = [other for other in stored if other.id != freeze.id]
            return [*others, freeze]

        self._change(with_freeze, line)

    def thaw(self, id: str) -> None:
        """End a freeze before its time.

        Raises:
            EntryNotFound: no active freeze has this id.
        """
        now = wall_ms()

        def thawed(stored: Sequence[Freeze]) -> list[Freeze]:
            """Return the stored freezes, of which the one with this id ends now."""
            freezes = {freeze.id: freeze for freeze in stored}
            if id not in freezes or not freezes[id].holds(now):
                hint = "`redbeat freezes` lists those that do"
                raise EntryNotFound(f"no freeze {id!r} holds; {hint}")
            freezes[id] = freezes[id].but(thawed=from_ms(now))
            return [*freezes.values()]

        # A difference is a field, its value before and its value after.
        differences = (("id", None, id),)
        self._change(thawed, line_of(who(self._actor), "thawed", fields=differences))

    def marked(self, entries: Iterable[Entry], known: Freezes | None = None) -> Iterator[Entry]:
        """Yield these entries with ``frozen_until`` set.

        Parameters:
            known: the freezes, if they have been read already.
        """
        freezes = self.known() if known is None else known
        for entry in entries:
            mark_frozen(entry, freezes)
            yield entry

    def known(self) -> Freezes:
        """Return all stored freezes."""
        return Freezes.of(self._store.freezes())

    def _change(self, change: Callable[[Sequence[Freeze]], list[Freeze]], line: Line) -> None:
        """Store the freezes that ``change`` returns; retry if another process has changed them.

        Parameters:
            change: function that gets the stored freezes and returns all freezes to store.
            line: line about the change, for the record of changes.

        Raises:
            InvalidEntry: there are too many freezes.
            EntryChanged: other processes change the freezes all the time.
        """
        for _ in range(TRIES):
            before = self.known()
            after = before.replaced(*change(before.all))
            # Ended freezes stay until the beat has handled their ends. If no beat runs, they may
            # become ten times as many as active ones may be.
            number = max(len(after.holding(wall_ms())), len(after.all) // 10)
            if number > _MOST:
                raise InvalidEntry("freezes", f"at most {_MOST} of them", number)
            # This stores nothing if another process has changed the freezes since they were read.
            if self._store.set_freezes(before.text, after.text, line):
                return
        raise EntryChanged("the freezes are being changed too often")
