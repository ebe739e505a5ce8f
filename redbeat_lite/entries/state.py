"""State of an entry: the fields that the scheduler remembers, and their compact text form.

The text is ``version|generation|nominal|last|count|skipped|attempts|paused|notes``. A commit
compares the first three fields, so the Lua script only compares the begin of the text to see
whether the entry is still the one that was planned. ``notes`` is JSON or empty; it comes last
because it may hold any character.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from .._base.errors import CorruptEntry, InvalidEntry
from .._base.ids import named_uuid, random_hex
from .._base.times import MAX_MS, MIN_MS
from ..rules import Question
from ..runs.run import BACKFILLED
from ..store.json_values import dumps, loads
from .sent import readable, shortened, times

#: Namespace of all task ids. It is arbitrary, but must never change.
_PREFIX = UUID("5c6f1e0a-3b1d-4b0e-9f0e-8d9a7c6b2a10").bytes

#: Number of fields in the text.
_FIELDS = 9

#: Longest note of a pause, in characters. It is bounded because each read of the state transfers
#: it.
MAX_NOTE = 1000

#: Largest text of a state, in bytes. Note and error have up to 1,000 characters each, and a
#: character takes up to 6 bytes. The sent occurrences, up to 1,000 within 8,000 years, take up to
#: 11 bytes each; the oldest are left out if note and error leave no room for them.
MAX_BYTES = 16 * 1024

#: Bound of all counts: more than is ever reached, and still exact as a double in Lua.
MAX_COUNT = 10**15


# A frozen dataclass would take three times as long to create.
@dataclass(slots=True)
class EntryState:
    """State of an entry. No code changes a state; it makes another one. Instants are in epoch ms.

    Parameters:
        version: grows with each edit, pause and resume.
        generation: random text, replaced when an entry of this name is created again, and when the
            entry goes back in time.
        nominal: nominal time of the next occurrence, or a `Question` with the instant at which to
            ask the schedule; ``None`` if the entry is finished.
        last: nominal time of the last occurrence that was emitted.
        count: number of emitted occurrences.
        skipped: number of occurrences that a misfire policy or a once-lock left out.
        attempts: number of failed publishes of the occurrence that is due.
        paused: whether the entry is paused.
        note: reason of the pause.
        error: error of the last failed publish.
        deltas: last sent occurrences, as a text; :attr:`sent` reads it.
        forgiven: nominal time up to which failures do not count for ``on_failure``, set by a
            resumption; 0 if all failures count.
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
        """Return the state of a new entry."""
        return cls(version=1, generation=random_hex(4), nominal=nominal)

    def edited(self, **changes: object) -> EntryState:
        """Return the state after an edit: with these changes and the next version."""
        # replace() checks the names.
        return replace(self, version=self.version + 1, **changes)  # type: ignore[arg-type]

    def moved(self, nominal: int | None, **changes: object) -> EntryState:
        """Return the state after an edit that also sets the next occurrence.

        Nominal times only grow within a generation, so that no two occurrences have the same task
        id. An entry that goes back in time gets a new generation.
        """
        if nominal is not None and self.last is not None:
            goes_back = nominal != self.nominal and nominal <= self.last
            if goes_back:
                changes.update(generation=random_hex(4), deltas="")
        return self.edited(nominal=nominal, **changes)

    @property
    def guard(self) -> str:
        """Begin that the stored text must have, or a commit changes nothing.

        It contains the nominal time, so that a commit that is sent twice takes effect once.
        """
        # It is kept, because it is read several times in the life of a state.
        if not self._guard:
            nominal = "" if self.nominal is None else self.nominal
            self._guard = f"{self.version}|{self.generation}|{nominal}|"
        return self._guard

    @property
    def sent(self) -> tuple[int, ...]:
        """Nominal times of the last occurrences sent in this generation, the newest first."""
        return times(self.deltas, self.last)

    @property
    def finished(self) -> bool:
        """Whether no occurrence is to come."""
        return self.nominal is None

    def encode(self) -> str:
        """Return the compact text."""
        last = "" if self.last is None else self.last
        paused = 1 if self.paused else 0
        text = f"{self.guard}{last}|{self.count}|{self.skipped}|{self.attempts}|{paused}|"
        return text + self._notes(MAX_BYTES - len(text))

    def _notes(self, room: int) -> str:
        """Return the fields that most states do not have, in at most ``room`` bytes."""
        notes: dict[str, Any] = {}
        if self.note:
            notes["note"] = self.note
        if self.error:
            notes["error"] = self.error
        if isinstance(self.nominal, Question):
            notes["asked"] = self.nominal.asked
        if self.forgiven:
            notes["forgiven"] = self.forgiven
        if self.deltas:
            room -= len(dumps(notes).encode()) + len(',"sent":""')
            notes["sent"] = shortened(self.deltas, room)
        return dumps(notes) if notes else ""

    @classmethod
    def decode(cls, raw: bytes) -> EntryState:
        """Read the compact text; raise CorruptEntry if :meth:`encode` has not written it."""
        if len(raw) > MAX_BYTES:
            raise CorruptEntry(f"state has over {MAX_BYTES} bytes")
        try:
            parts = raw.decode("utf-8").split("|", _FIELDS - 1)
            version, generation, nominal, last, count, skipped, attempts, paused, notes = parts
            extra = loads(notes) if notes else {}
            state = cls(
                _count(version),
                generation,
                _nominal(nominal, extra.get("asked")),
                _instant(last),
                _count(count),
                _count(skipped),
                _count(attempts),
                paused == "1",
                str(extra.get("note", "")),
                str(extra.get("error", "")),
                readable(extra.get("sent")),
                _instant(str(extra.get("forgiven", ""))) or 0,
            )
        except (ValueError, AttributeError, CorruptEntry) as exc:
            raise CorruptEntry(f"state is not readable: {exc}") from exc
        # A commit compares the begin of the text. If the fields were written differently, as "01"
        # for 1, no commit would match, and the entry would stay due for ever.
        if not raw.startswith(state.guard.encode()):
            raise CorruptEntry(f"state is not as it is written here: {raw[:60]!r}")
        return state


def storable_note(name: str | None, note: object, least: int = 0) -> str:
    """Return a user's note in its stored form; raise InvalidEntry if it is no text or too long."""
    if not isinstance(note, str) or not least <= len(note) <= MAX_NOTE:
        bounds = f"{least} to" if least else "at most"
        raise InvalidEntry("note", f"text of {bounds} {MAX_NOTE} characters", note, entry=name)
    return note.encode("utf-8", "replace").decode()


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


def _nominal(text: str, asked: object) -> int | None:
    nominal = _instant(text)
    if nominal is None or asked is None:
        return nominal
    if type(asked) is not int or not MIN_MS <= asked <= MAX_MS:
        raise ValueError(f"{str(asked)[:30]} is no instant")
    return Question(nominal, asked)


def task_id(name: str, generation: str, nominal: int) -> str:
    """Return the task id of an occurrence. A second publish of the occurrence has the same id."""
    return named_uuid(_PREFIX, f"{name}\0{generation}\0{nominal}")


def backfill_id(name: str, generation: str, nominal: int, again: int) -> str:
    """Return the task id of an occurrence that a backfill sends.

    It differs from the id of the regular occurrence, and has the mark of backfills.
    """
    id_ = task_id(f"{name}\0backfill\0{again}", generation, nominal)
    return f"{id_[:14]}{BACKFILLED}{id_[15:]}"
