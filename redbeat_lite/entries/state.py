"""What the scheduler remembers of an entry, and its compact text form.

The text is ``version|generation|nominal|last|count|skipped|attempts|paused|notes``. It opens with
the three fields that a commit compares, so that Lua needs no more than a look at the first
characters to know whether the entry is still the one that was planned; ``notes`` is JSON, or
nothing, and comes last because it may hold any character. Most hold nothing but what was sent
(:mod:`redbeat_lite.entries.sent`), and are written and read without a parser.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from uuid import UUID

from .._base.errors import CorruptEntry, InvalidEntry
from .._base.ids import named_uuid, random_hex
from .._base.times import MAX_MS, MIN_MS
from ..rules import Question
from ..runs.run import BACKFILLED
from ..store.json_values import dumps, loads
from .sent import alone_in, beside_others, notes_of, shortened, times

#: The namespace of all task ids made here: an arbitrary constant, which must never change.
_PREFIX = UUID("5c6f1e0a-3b1d-4b0e-9f0e-8d9a7c6b2a10").bytes

_FIELDS = 9

#: Patterns of Lua for the text of a state that says so.
PAUSED, FINISHED, FAILING = "^" + "[^|]*|" * 7 + "1", "^[^|]*|[^|]*||", '"error":'

#: Longest note of a pause, in characters: it travels with the entry's state on every look at it.
MAX_NOTE = 1000

#: Largest text of a state, in bytes: a note and an error of so many characters, each of which may
#: take six bytes. What was sent takes at most 11 for each of 1,000 occurrences, which lie within
#: 8,000 years; the oldest are left out where note and error leave no room for them.
MAX_BYTES = 16 * 1024

#: Far more than anything here ever counts, and few enough digits for every number format there is.
MAX_COUNT = 10**15


@dataclass(slots=True)  # frozen would make each one cost three times as much
class EntryState:
    """The state of one entry: a value, never changed once it is made. Instants are epoch
    milliseconds.

    Parameters:
        version: grows with each edit, pause and resume.
        generation: drawn anew when an entry of this name is created again, and when it goes back in
            time.
        nominal: the instant the schedule says comes next, or that of the `Question` to ask it;
            ``None`` when there is none, the entry is finished.
        last: nominal time of the last occurrence that was emitted.
        count: occurrences emitted.
        skipped: occurrences that a misfire policy or a once-lock left out.
        attempts: failed publishes of the occurrence that is due.
        paused: whether somebody paused the entry.
        note: why.
        error: what the last failed publish said.
        deltas: the last occurrences that were sent, as a text; :attr:`sent` reads it.
        forgiven: nominal time up to which failures do not count for ``on_failure``, as it was
            resumed; 0: all do.
    """

    version: int
    generation: str
    nominal: int | None
    last: int | None = None
    count: int = 0
    skipped: int = 0
    attempts: int = 0
    paused: bool = False
    note: str = ""
    error: str = ""
    deltas: str = ""
    forgiven: int = 0
    _guard: str = field(default="", init=False, repr=False, compare=False)

    @classmethod
    def new(cls, nominal: int | None) -> EntryState:
        """The state of an entry that has just been created."""
        return cls(version=1, generation=random_hex(4), nominal=nominal)

    def edited(self, **changes: object) -> EntryState:
        """The state after an edit: these changes, and the next version."""
        return replace(self, version=self.version + 1, **changes)  # type: ignore[arg-type]  # replace checks the names

    def moved(self, nominal: int | None, **changes: object) -> EntryState:
        """The state after an edit that also says which occurrence comes next.

        Within a generation nominal times only grow, so that no id is given twice. An entry that
        goes back to times where it may have been before does so in a new one.
        """
        if (
            nominal is not None
            and nominal != self.nominal
            and self.last is not None
            and nominal <= self.last
        ):
            changes.update(generation=random_hex(4), deltas="")
        return self.edited(nominal=nominal, **changes)

    @property
    def guard(self) -> str:
        """What the stored text must begin with for a commit to be allowed.

        The nominal time is part of it so that a commit which is sent twice does its work once.
        """
        if not self._guard:  # asked for several times in the life of a state
            self._guard = (
                f"{self.version}|{self.generation}|{'' if self.nominal is None else self.nominal}|"
            )
        return self._guard

    @property
    def sent(self) -> tuple[int, ...]:
        """Nominal times of the last occurrences that were sent in this generation, the newest
        first.
        """
        return times(self.deltas, self.last)

    @property
    def finished(self) -> bool:
        """Whether no occurrence will ever come again."""
        return self.nominal is None

    def encode(self) -> str:
        """The compact text."""
        last = "" if self.last is None else self.last
        paused = 1 if self.paused else 0
        text = f"{self.guard}{last}|{self.count}|{self.skipped}|{self.attempts}|{paused}|"
        return text + self._notes(MAX_BYTES - len(text))

    def _notes(self, room: int) -> str:
        asked = self.nominal.asked if isinstance(self.nominal, Question) else None
        if not self.note and not self.error and asked is None and not self.forgiven:
            return notes_of(self.deltas, room) if self.deltas else ""
        notes = {"note": self.note or None, "error": self.error or None, "asked": asked}
        notes["forgiven"] = self.forgiven or None
        text = dumps({key: value for key, value in notes.items() if value is not None})
        deltas = shortened(self.deltas, room - len(text.encode()) - len(',"sent":""'))
        return f'{text[:-1]},"sent":{dumps(deltas)}}}' if deltas else text

    @classmethod
    def decode(cls, raw: bytes) -> EntryState:
        """Read the compact text; raises CorruptEntry if it is not what :meth:`encode` writes."""
        if len(raw) > MAX_BYTES:
            raise CorruptEntry(f"state has over {MAX_BYTES} bytes")
        try:
            parts = raw.decode("utf-8").split("|", _FIELDS - 1)
            version, generation, nominal, last, count, skipped, attempts, paused, notes = parts
            sent = alone_in(notes)
            extra = loads(notes) if notes and sent is None else None
            state = cls(
                _count(version),
                generation,
                _nominal(nominal, extra),
                _instant(last),
                _count(count),
                _count(skipped),
                _count(attempts),
                paused == "1",
                deltas=sent or "",
            )
            if extra is not None:
                state.note, state.error = str(extra.get("note", "")), str(extra.get("error", ""))
                state.deltas = beside_others(extra.get("sent"))
                state.forgiven = _instant(str(extra.get("forgiven", ""))) or 0
        except (ValueError, AttributeError, CorruptEntry) as exc:
            raise CorruptEntry(f"state is not readable: {exc}") from exc
        # A commit compares the text itself: an entry whose state only reads like one would stay due
        # for ever.
        if not raw.startswith(state.guard.encode()):
            raise CorruptEntry(f"state is not as it is written here: {raw[:60]!r}")
        return state


def storable_note(name: str | None, note: object, least: int = 0) -> str:
    """Return a note of a user as it is stored; raises InvalidEntry if it cannot be one."""
    if not isinstance(note, str) or not least <= len(note) <= MAX_NOTE:
        bounds = f"{least} to" if least else "at most"
        raise InvalidEntry("note", f"text of {bounds} {MAX_NOTE} characters", note, entry=name)
    return note.encode("utf-8", "replace").decode()


@lru_cache(maxsize=1024)  # most are 0, or those of many entries
def _count(text: str) -> int:
    number = int(text)
    if not 0 <= number < MAX_COUNT:
        raise ValueError(f"{text[:30]} counts nothing")
    return number


def _instant(text: str) -> int | None:
    if not text:
        return None
    instant = int(text)
    if not MIN_MS <= instant <= MAX_MS:
        raise ValueError(f"{text[:30]} is no instant")
    return instant


def _nominal(text: str, notes: Any) -> int | None:
    nominal, asked = _instant(text), None if notes is None else notes.get("asked")
    if nominal is None or asked is None:
        return nominal
    if type(asked) is not int or not MIN_MS <= asked <= MAX_MS:
        raise ValueError(f"{str(asked)[:30]} is no instant")
    return Question(nominal, asked)


def task_id(name: str, generation: str, nominal: int) -> str:
    """The one id of an occurrence: publishing it again is publishing the same task."""
    return named_uuid(_PREFIX, f"{name}\0{generation}\0{nominal}")


def backfill_id(name: str, generation: str, nominal: int, again: int) -> str:
    """The one id of an occurrence that backfills send, which says so; the live one of that time has
    another.
    """
    found = task_id(f"{name}\0backfill\0{again}", generation, nominal)
    return f"{found[:14]}{BACKFILLED}{found[15:]}"
