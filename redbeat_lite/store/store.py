"""The stored schedule: entries, their quarantine, calendars, the freeze, and configurations.

Calls that only the leader may make are in :mod:`.leader_store`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Self, cast

from .._base.errors import EntryChanged, InvalidEntry
from .._base.ids import random_hex
from .._base.json_values import dumps, loads_as
from ..entries.changes import FORMAT, Edit, Line, Stored, wrong_format
from ..rules.calendars import Calendar
from ..settings import Settings
from .connections import Backend
from .keys import Keys
from .records import AT_ONCE, PAGE, PARKED, Refused, Term, chunks, entries_of, stored_score
from .redis_values import text
from .scripts import Command, checked
from .transact import GuardFailed, Step, record_change, transact

#: Attempts of an edit while other writers change the same entry. An entry that runs every 50 ms
#: can lose this race a few times in a row, but not fifty times.
TRIES = 50

# The JSON text of a change begins with one of these if the change pauses or resumes an entry.
_PAUSES = ('["paused"', '["resumed"')


# Guard that stops an edit if another program uses one of the keys. Each HGET reads a field that
# does not exist. If the key has another type than a hash, the server raises an error at this read,
# before anything is written.
# The script reads ``due`` before its first write, and each edit of an entry begins with a read of
# ``state``. So these two keys need no row here.
# HSETNX stores the format of this version, if no format is stored.
_IS_OURS = f"""
    IF HGET entries NONE IS NONE
    IF HGET quarantine NONE IS NONE
    HSETNX meta format {FORMAT}
"""

# Guard that stops an edit if the stored schedule has the format of another version.
_HAS_FORMAT = f"IF HGET meta format IS {FORMAT}"

# The next five statements edit an entry. Values $1 to $6: name, expected state, new state, new due
# time, new definition, new text for the field ``pauses``. A statement uses only some of them.
# If the expected state is empty, the edit is made only if Redis has no state of the entry.

# New state and due time.
_MOVE = """
    IF HGET state $1 IS $2
    HSET state $1 $3
    ZADD due $4 $1
    HDEL quarantine $1
    CHANGED $1
"""

# New definition, state and due time.
_SAVE = f"""
    {_MOVE}
    HSET entries $1 $5
"""

# Removal. HDEL failures comes first: it fails if another program uses its key, and then nothing is
# removed.
_REMOVE = """
    IF HGET state $1 IS $2
    HDEL failures $1
    HDEL entries $1
    HDEL state $1
    ZREM due $1
    HDEL quarantine $1
    NAMED $1
"""

# Part of a statement by which another process than the leader stores or removes a config entry.
# The leader has to store an entry again that the configuration has, and to remove one that it does
# not have. It does so once it finds that the stamp of its last sync has been replaced.
_SYNC_AGAIN = """
    HSET meta synced edited
"""

# Part of a statement that pauses or resumes an entry. The leader keeps in memory which config
# entries are paused. A new text in this field makes the leader read the pauses again.
_RENEW_PAUSES = """
    HSET meta pauses $6
"""

# Removal of an entry's record from the quarantine. Values $1 and $2: name, expected record. The
# configuration may still have the entry, so the leader has to read it again, as after a removal.
_DISCARD = """
    IF HGET quarantine $1 IS $2
    HDEL quarantine $1
    NAMED $1
    HSET meta synced discarded
"""

# Replacement of a calendar. Values $1 to $3: name, expected calendar (empty: none), new calendar.
_SET_CALENDAR = """
    IF HGET calendars $1 IS $2
    HSET calendars $1 $3
"""

# Replacement of the freeze. Values $1 and $2: expected freeze (empty: none), new freeze.
_SET_FREEZE = """
    IF HGET meta freeze IS $1
    HSET meta freeze $2
    PUBLISH wake freeze
"""

# Replacement of a field of ``meta``, without a check. Values $1 and $2: field, new value.
_SET_META = "HSET meta $1 $2"


def _step_of(edit: Edit, term: Term | None) -> Step:
    """Return the step that makes an edit.

    Parameters:
        term: term of the leader; ``None``: another process makes the edit.
    """
    score = stored_score(edit.score)
    # An edit may have no new state or no new definition. The statement for it does not use the
    # value, so an empty text can stand in its place.
    values = [edit.name, edit.expected or b"", edit.state or "", score, edit.definition or ""]
    if edit.state is None:
        statement = _REMOVE
    elif edit.definition:
        statement = _SAVE
    else:  # The stored definition stays.
        statement = _MOVE
    if edit.is_of_config and term is None and statement != _MOVE:
        statement += _SYNC_AGAIN
    if edit.line and edit.line.change.startswith(_PAUSES):
        # The edit pauses or resumes the entry. Value $6 is a new random text for the field
        # ``pauses``. When the leader sees another text there, it reads all pauses again.
        statement += _RENEW_PAUSES
        values.append(random_hex())
    return Step(statement, values, edit.line)


class RankedNames(NamedTuple):
    """Names of entries, as :meth:`Store.ranked_names` reads them.

    An entry is parked if it will not fire by itself. Parked entries come last in due order.

    Parameters:
        parts: three lists of names. The first list has the entries that are due first. The second
            one has the entries that are due last and are not parked, in reverse order. The third
            one has parked entries. A name may be in two of these lists.
        parked: count of the parked entries.
        total: count of all entries.
    """

    parts: list[list[bytes]]
    parked: int
    total: int


@dataclass(eq=False)
class Store:
    """Entries of a schedule in Redis, and its quarantine, calendars, freeze and configurations."""

    backend: Backend
    keys: Keys

    @classmethod
    def of(cls, settings: Settings, *, timeout: float | None = None) -> Self:
        """Return the store of an app's settings, with a backend that connects at the first use."""
        return cls(Backend(settings, timeout=timeout), Keys.of(settings.key_prefix))

    @property
    def _client(self) -> Any:
        return self.backend.client

    # -- reading entries by name -------------------------------------------------------------------

    def read(self, names: Sequence[str | bytes]) -> list[Stored]:
        """Return the entries of these names, in one round trip.

        An entry that is not stored has neither definition nor state.
        """
        return self._read(names)

    def _read(
        self, names: Sequence[str | bytes] = (), first: int | str = "", last: int | str = ""
    ) -> list[Stored]:
        """Return the entries of the ranks from ``first`` to ``last``, or else of these names."""
        # A script reads all entries as they are at one moment. A transaction could do this for
        # names, but redis-py before 6.2 has no transactions for a cluster.
        scripts = self.backend.scripts
        reply = scripts.run("schedule/read", self.keys, first=first, last=last, names=names)
        return entries_of(reply)

    def present(self, names: Iterable[str | bytes]) -> Iterator[Stored]:
        """Yield the stored entries of these names, in this order, 1,000 in a round trip."""
        for chunk in chunks(names, PAGE):
            yield from (stored for stored in self.read(chunk) if stored.is_present)

    def exists(self, name: str) -> bool:
        """Return whether an entry of this name is stored."""
        return bool(self._client.hexists(self.keys.entries, name))

    # -- reading entries in due order --------------------------------------------------------------

    def page(self, offset: int, limit: int) -> list[Stored]:
        """Return at most ``limit`` entries from rank ``offset`` on, in one round trip.

        The rank of an entry is its place in due order, from 0.
        """
        return self._read(first=offset, last=offset + limit - 1)

    def ranked(self, offset: int = 0, size: int = PAGE) -> Iterator[Stored]:
        """Yield entries from rank ``offset`` on in due order, ``size`` per round trip.

        An entry whose due time changes while the pages are read may be yielded twice or not at all.
        So use this method if only the first entries are needed, and :meth:`pages` for all entries.
        Unlike :meth:`pages`, this method also yields a name that has a due time, but neither
        definition nor state.
        """
        while page := self.page(offset, size):
            yield from page
            offset += size

    def pages(self) -> Iterator[Stored]:
        """Yield all entries in due order, 1,000 in a round trip.

        The first page takes one round trip, because many callers need no more. If there are more
        entries, all other names are read in due order, and then the entries of these names. So an
        entry whose due time changes meanwhile is not missed, but may be out of order.
        """
        first = self.page(0, PAGE)
        yield from (stored for stored in first if stored.is_present)
        if len(first) == PAGE:  # The page is full, so there may be more entries.
            taken = {stored.name for stored in first}
            yield from self.present(name for name in self.names() if name not in taken)

    def scan(self) -> Iterator[tuple[bytes, float]]:
        """Yield all names with their due times, in no order, 1,000 in a round trip.

        A name that is stored during the whole scan is among them, even if its due time changes. It
        may come twice.
        """
        pairs = self._client.zscan_iter(self.keys.due, count=PAGE)
        return cast(Iterator[tuple[bytes, float]], pairs)

    def names(self) -> list[bytes]:
        """Return all names in due order, and by name if they are due at the same instant."""
        scores = dict(self.scan())  # A scan may return a name twice.
        return sorted(scores, key=lambda name: (scores[name], name))

    def count(self) -> int:
        """Return how many entries are stored."""
        return int(self._client.hlen(self.keys.entries))

    def ranked_names(self, first: int, last: int, parked: int) -> RankedNames:
        """Return names in due order, as :class:`RankedNames` describes them.

        They are read in one round trip; 10,000 names take 2 ms.

        Parameters:
            first: maximum number of the first names.
            last: maximum number of the last names of entries that are not parked.
            parked: maximum number of names of parked entries.
        """
        due = self.keys.due
        # Parked entries have the highest score, ``PARKED``. The parenthesis excludes them.
        commands: list[Command] = [
            ("ZRANGE", due, "-inf", "+inf", "BYSCORE", "LIMIT", 0, first),
            ("ZRANGE", due, f"({PARKED}", "-inf", "BYSCORE", "REV", "LIMIT", 0, last),
            ("ZRANGE", due, PARKED, "+inf", "BYSCORE", "LIMIT", 0, parked),
            ("ZCOUNT", due, PARKED, "+inf"),
            ("HLEN", self.keys.entries),
        ]
        *parts, parked_count, total = checked(self.backend.scripts.together(commands))
        return RankedNames(parts, parked_count, total)

    def due_counts(self, edges: Sequence[int]) -> list[int]:
        """Return how many entries are due between instants, in one round trip.

        Parameters:
            edges: instants in epoch ms. The first count is for the time before the first instant,
                and the last count is for the time from the last instant on.
        """
        commands = []
        for start, end in pairwise(("-inf", *edges, PARKED)):
            # The parenthesis excludes the end of a span, which belongs to the next span. The last
            # span ends before ``PARKED``, so it does not count entries that will not fire by
            # themselves.
            commands.append(("ZCOUNT", self.keys.due, start, f"({end}"))
        return [*checked(self.backend.scripts.together(commands))]

    # -- writing entries ---------------------------------------------------------------------------

    def put(self, edits: Iterable[Edit], term: Term | None = None) -> list[bool]:
        """Make edits, 250 in a round trip, and record them; return for each whether it was made.

        Raises:
            UnsupportedFormat: another version of redbeat_lite uses this prefix. Nothing was
                written.
            Lost: the term is over. The edits of earlier round trips were made.
        """
        made: list[bool] = []
        for chunk in chunks(edits, AT_ONCE):
            made += self._edit([_step_of(edit, term) for edit in chunk], term)
        return made

    def _edit(self, steps: Sequence[Step], term: Term | None = None) -> list[bool]:
        """Make steps that change the schedule; return for each whether it was made.

        The beat is woken if the first entry becomes due earlier.

        Raises:
            UnsupportedFormat: a schedule of another format is stored. Nothing was written.
            Lost: the term is over. Nothing was written.
        """
        guards = [Step(_IS_OURS), Step(_HAS_FORMAT)]
        try:
            return transact(self.backend.scripts, self.keys, steps, guards, term=term, wakes=True)
        except GuardFailed:
            # Only the guard about the format can fail. The checks of ``_IS_OURS`` always hold: if a
            # key belongs to another program, the server raises another error.
            stored = text(self._client.hget(self.keys.meta, "format") or "")
            number = int(stored) if stored.isdecimal() else stored
            raise wrong_format("the schedule in Redis", number) from None

    def rewrite(
        self,
        names: Iterable[str | bytes],
        decide: Callable[[Stored], Edit | None],
        term: Term | None = None,
    ) -> list[str | bytes]:
        """Edit stored entries; return the names of the edited entries.

        If another writer changes an entry meanwhile, it is read again and ``decide`` is called
        again. After ``TRIES`` attempts it is left unchanged.

        Parameters:
            decide: returns the edit of an entry; ``None`` if the entry must not change.

        Raises:
            Lost: as :meth:`put`.
        """
        edited: list[str | bytes] = []
        for chunk in chunks(names, AT_ONCE):
            remaining = chunk
            for _ in range(TRIES):
                edits: list[Edit] = []
                for stored in self.read(remaining):
                    edit = decide(stored)
                    if edit is not None:
                        edits.append(edit)
                remaining = []
                for edit, is_made in zip(edits, self.put(edits, term), strict=True):
                    if is_made:
                        edited.append(edit.name)
                    else:  # Another writer has changed the entry, so read it again.
                        remaining.append(edit.name)
                if not remaining:
                    break
        return edited

    def record(self, line: Line, names: Sequence[str] = ()) -> None:
        """Record a change that is no edit of an entry, such as a freeze.

        Parameters:
            names: what was changed, at most :data:`AT_ONCE` names; empty: none.
        """
        record_change(self.backend.scripts, self.keys, line, names)

    # -- quarantine --------------------------------------------------------------------------------

    def quarantined(self, limit: int | None = None) -> dict[str, dict[str, Any]]:
        """Return all records of the quarantine, or about ``limit`` of them, by name.

        A record has ``error``, ``definition``, ``state`` and ``at``. A record that cannot be read
        has only an ``error`` that says so.
        """
        key = self.keys.quarantine
        if limit:
            # One step of the scan is enough. Ignore the cursor, from which a next step would begin.
            # The server takes ``count`` as a hint, so a step may return more records or fewer.
            _, records = self._client.hscan(key, count=limit)
        else:
            records = self._client.hgetall(key)
        unreadable = {"error": "its record in the quarantine cannot be read"}
        return {text(name): loads_as(dict, raw) or unreadable for name, raw in records.items()}

    def discard(self, name: str, line: Line) -> bool:
        """Remove an entry from the quarantine, and add ``line`` to the record of changes.

        Returns:
            Whether the entry was removed.
        """
        record = self._client.hget(self.keys.quarantine, name)
        if record is None:
            return False
        # If another process has replaced or removed ``record`` meanwhile, this step is not made.
        [is_made] = self._edit([Step(_DISCARD, (name, record), line)])
        return is_made

    # -- calendars ---------------------------------------------------------------------------------

    def calendars(self) -> dict[str, Calendar]:
        """Return the stored calendars that can be read, by name, in one round trip."""
        calendars = {}
        for name, raw in self._client.hgetall(self.keys.calendars).items():
            calendar = _calendar_of(raw)
            if calendar is not None:
                calendars[text(name)] = calendar
        return calendars

    def put_calendar(self, name: str, calendar: Calendar) -> tuple[Calendar, bool]:
        """Store a calendar as the next revision, unless the stored calendar has the same days.

        Returns:
            The stored calendar, and whether it was written.

        Raises:
            EntryChanged: other writers have changed the calendar during each of ``TRIES`` attempts.
        """
        key = self.keys.calendars
        for _ in range(TRIES):
            raw = self._client.hget(key, name)
            before = _calendar_of(raw)
            if before is None:  # The calendar is new, or the stored text cannot be read.
                revision = 1
            elif (before.days, before.until) == (calendar.days, calendar.until):
                return before, False
            else:
                revision = before.revision + 1
            stored = replace(calendar, name=name, revision=revision)
            # For a new calendar, the expected value is empty. Then the step is made only if Redis
            # has no calendar of this name.
            values = (name, raw or b"", stored.encode())
            [is_stored] = self._edit([Step(_SET_CALENDAR, values)])
            if is_stored:
                return stored, True
        raise EntryChanged(f"calendar {name!r} is being changed too often")

    def restore_calendar(self, calendar: Calendar) -> None:
        """Store a calendar with its own revision, unless a calendar of its name is stored.

        An import calls this, because the imported entries refer to this revision.
        """
        self._client.hsetnx(self.keys.calendars, calendar.name, calendar.encode())

    # -- the freeze --------------------------------------------------------------------------------

    def freeze(self) -> bytes:
        """Return the text of the last freeze (:mod:`redbeat_lite.entries.freeze`), or ``b""``."""
        return self._client.hget(self.keys.meta, "freeze") or b""

    def set_freeze(self, before: bytes, after: str | bytes, line: Line | None = None) -> bool:
        """Store the text of a freeze and wake all beats, if the stored text is still ``before``.

        Returns:
            Whether it was stored.

        Raises:
            UnsupportedFormat: another version of redbeat_lite uses this prefix.
        """
        [is_stored] = self._edit([Step(_SET_FREEZE, (before, after), line)])
        return is_stored

    # -- configurations ----------------------------------------------------------------------------

    def refused(self) -> Refused:
        """Return the config entries that were refused when a beat last read its configuration."""
        return Refused.decode(self._client.hget(self.keys.meta, "refused") or b"")

    def owners(self) -> set[str]:
        """Return the owners that have stored config entries.

        An owner is the value of an app's setting ``owner``.
        """
        fields = map(text, self._client.hkeys(self.keys.meta))
        return {field.removeprefix("config:") for field in fields if field.startswith("config:")}

    def config_names(self, owner: str) -> set[str]:
        """Return the names of the config entries that ``owner`` stored last."""
        raw = self._client.hget(self.keys.meta, f"config:{owner}")
        # The list may come from another program, so skip items that are no texts.
        return {name for name in loads_as(list, raw) if isinstance(name, str)}

    def add_config_names(self, owner: str, names: Iterable[str]) -> None:
        """Add these names to those of the config entries that ``owner`` has stored.

        Call this before the entries are stored. A config entry whose name is not remembered would
        never be removed.
        """
        self.set_config_names(owner, self.config_names(owner).union(names))

    def set_config_names(self, owner: str, names: Iterable[str], term: Term | None = None) -> None:
        """Remember which config entries ``owner`` has stored."""
        self.remember(f"config:{owner}", dumps(sorted(names)), term)

    def remember(self, field: str, value: str, term: Term | None) -> None:
        """Store a value in a field of ``meta``, the hash of facts about the whole schedule."""
        self._edit([Step(_SET_META, (field, value))], term)


def _calendar_of(raw: object) -> Calendar | None:
    """Return the calendar of a stored text; ``None`` if there is none, or it cannot be read."""
    with suppress(InvalidEntry):
        return Calendar.decode(text(raw))
    return None
