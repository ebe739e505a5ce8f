"""State of an entry: the fields that the scheduler remembers, and their compact text form.

The text is ``version|generation|nominal|``, and JSON of the fields that do not have their default.
If the first three fields are unchanged since the beat planned an occurrence, the plan still holds.
So the script that commits the occurrence compares only the beginning of the text.

The second line of the text has the last change of the entry. Only the script of an edit writes this
line. It has the id of the line in the record of changes, ``|``, and JSON of the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import Annotated, Any
from uuid import UUID

from msgspec import Meta, Struct, ValidationError, convert, to_builtins
from msgspec.structs import replace

from .._base.errors import CorruptEntry, InvalidEntry
from .._base.ids import named_uuid, random_hex
from .._base.json_values import dumps, loads
from .._base.times import MAX_MS, MIN_MS
from ..rules import Question
from .run import BACKFILLED

#: Namespace of all task ids. It is arbitrary, but must never change.
_PREFIX = UUID("5c6f1e0a-3b1d-4b0e-9f0e-8d9a7c6b2a10").bytes

#: Longest note of a pause, in characters. It is bounded because each read of the state transfers
#: it.
MAX_NOTE = 1000

#: Largest text of a state, in bytes. Note and error have up to 1,000 characters each, and a
#: character takes up to 6 bytes. The sent occurrences, up to 1,000, take up to 13 bytes each.
MAX_BYTES = 32 * 1024

#: Bound of all counts: more than is ever reached, and still exact as a double in Lua.
MAX_COUNT = 10**15


_Instant = Annotated[int, Meta(ge=MIN_MS, le=MAX_MS)]
_Count = Annotated[int, Meta(ge=0, lt=MAX_COUNT)]
#: Text of :func:`add_sent`. A distance has up to 12 digits, which are 8,000 years.
_Deltas = Annotated[str, Meta(pattern=r"\A(0(,[0-9a-f]{1,12}(\*[0-9]{1,4})?)*)?\Z")]


# A frozen object would take longer to create.
class EntryState(Struct, omit_defaults=True):
    """State of an entry. No code changes a state; it makes another one. Instants are in epoch ms.

    Parameters:
        version: grows with each edit, pause and resume.
        generation: random text, replaced when an entry of this name is created again, and when the
            entry goes back in time (to an occurrence not after ``last``).
        nominal: nominal time of the next occurrence, or a `Question` with the instant at which to
            ask the schedule; ``None`` if the entry is finished.
        last: nominal time of the last occurrence that was emitted.
        count: number of emitted occurrences.
        skipped: number of occurrences that a misfire policy or a once-lock left out.
        attempts: number of failed publishes of the occurrence that is due.
        paused: whether the entry is paused.
        paused_until: end of the pause, also if it has ended; ``None`` if the last pause lasts until
            somebody resumes the entry.
        note: reason of the pause.
        error: error of the last failed publish.
        deltas: last sent occurrences, in the form of :func:`add_sent`; :attr:`sent` reads it.
        forgiven: nominal time up to which failures do not count for ``on_failure``, set by a
            resumption; 0 if all failures count.
        change: last change of the entry, as it is stored. An edit that leaves a line in the record
            replaces it.
    """

    version: _Count
    generation: str
    nominal: _Instant | None
    last: _Instant | None = None
    count: _Count = 0
    skipped: _Count = 0
    attempts: _Count = 0
    paused: bool = False
    paused_until: _Instant | None = None
    note: str = ""
    error: str = ""
    deltas: _Deltas = ""
    forgiven: _Instant = 0
    change: str = ""

    @classmethod
    def new(cls, nominal: int | None) -> EntryState:
        """Return the state of a new entry."""
        return cls(version=1, generation=random_hex(4), nominal=nominal)

    def edited(self, **changes: object) -> EntryState:
        """Return the state after an edit: with these changes and the next version."""
        return replace(self, version=self.version + 1, **changes)

    def moved(self, nominal: int | None, **changes: object) -> EntryState:
        """Return the state after an edit that also sets the next occurrence.

        Nominal times only grow within a generation, so that no two occurrences have the same task
        id. An entry that goes back in time gets a new generation.
        """
        if nominal is not None and self.last is not None:
            # If the planned occurrence itself is not after ``last``, an earlier call has set it and
            # replaced the generation. An edit that keeps this occurrence must keep its task id.
            goes_back = nominal != self.nominal and nominal <= self.last
            if goes_back:
                # The sent occurrences, from which ``deltas`` counts, belong to the old generation.
                changes.update(generation=random_hex(4), deltas="")
        return self.edited(nominal=nominal, **changes)

    @property
    def guard(self) -> str:
        """Beginning that the stored text must have; otherwise a commit changes nothing.

        It contains the nominal time, so that a commit that is sent twice takes effect once.
        """
        nominal = "" if self.nominal is None else int(self.nominal)
        return f"{self.version}|{self.generation}|{nominal}|"

    @property
    def sent(self) -> tuple[int, ...]:
        """Nominal times of the last occurrences sent in this generation, the newest first."""
        nominals: list[int] = []
        nominal = self.last or 0
        # The first step is 0, so ``last`` comes first. Without a sent occurrence there is no step.
        for step in _steps(self.deltas):
            nominal -= step
            if nominal >= MIN_MS:  # A damaged text may lead before the year 1.
                nominals.append(nominal)
        return tuple(nominals)

    @property
    def finished(self) -> bool:
        """Whether no occurrence is to come."""
        return self.nominal is None

    def encode(self) -> str:
        """Return the compact text.

        It has the guard, which is ``version|generation|nominal|``, then JSON of the other fields,
        and in a second line the last change of the entry, if there was one.
        """
        # msgspec does not know Question, so the hook makes it a plain number.
        kept: dict[str, Any] = to_builtins(self, enc_hook=int)
        for field in ("version", "generation", "nominal"):
            del kept[field]  # The guard has this field.
        change = kept.pop("change", "")
        # A schedule of a user's own class may not name its next occurrence. Then ``nominal`` is a
        # Question: the instant at which to ask it. The question is about the first occurrence after
        # ``asked``.
        if isinstance(self.nominal, Question):
            kept["asked"] = self.nominal.after
        text = self.guard + dumps(kept)
        return f"{text}\n{change}" if change else text

    @classmethod
    def decode(cls, raw: bytes) -> EntryState:
        """Read the compact text; raise CorruptEntry if :meth:`encode` has not written it."""
        if len(raw) > MAX_BYTES:
            raise CorruptEntry(f"state has over {MAX_BYTES} bytes")
        try:
            text, _, change = raw.decode("utf-8").partition("\n")
            version, generation, nominal, kept = text.split("|", 3)
            fields = {"version": version, "generation": generation, "nominal": nominal or None}
            fields.update(loads(kept), change=change)
            asked = fields.pop("asked", None)
            # ``strict=False`` also reads numbers from texts, such as those before the JSON.
            state = convert(fields, cls, strict=False)
            # If the text has ``asked``, ``nominal`` is no occurrence. It is the time at which the
            # user's schedule is asked for the first occurrence after ``asked``.
            if asked is not None and state.nominal is not None:
                state.nominal = Question(state.nominal, convert(asked, _Instant))
        except (ValueError, TypeError, ValidationError, CorruptEntry) as exc:
            raise CorruptEntry(f"state is not readable: {exc}") from exc
        # A commit compares the beginning of the text. If the fields were written differently, as
        # "01" for 1, no commit would match, and the entry would stay due for ever.
        if not raw.startswith(state.guard.encode()):
            raise CorruptEntry(f"state is not as it is written here: {raw[:60]!r}")
        return state


def storable_note(name: str | None, note: object, least: int = 0) -> str:
    """Return a user's note in its stored form; raise InvalidEntry if it is no text or too long."""
    if not isinstance(note, str) or not least <= len(note) <= MAX_NOTE:
        bounds = f"{least} to" if least else "at most"
        raise InvalidEntry("note", f"text of {bounds} {MAX_NOTE} characters", note, entry=name)
    return note.encode("utf-8", "replace").decode()


def add_sent(deltas: str, last: int | None, emitted: Sequence[int], history: int) -> str:
    """Return the text of the last sent occurrences, after further ones were sent.

    The text has the distances between the occurrences in hexadecimal milliseconds, from the newest
    to the oldest. The first distance is 0: the newest occurrence is the state's ``last``. Equal
    distances in a row are written once, with their number in decimal. ``0,3e8*2,7d0`` means that
    occurrences were sent for ``last``, and for one, two and four seconds before it.

    The text is empty if nothing was sent in the present generation. A new generation, with other
    task ids, begins when an entry is created again or goes back in time.

    Parameters:
        deltas: the text before.
        last: nominal time of the last occurrence before, in epoch ms.
        emitted: nominal times of the further occurrences, the oldest first.
        history: number of occurrences to keep; 0 for none.
    """
    if not history:
        return ""
    for nominal in emitted:
        # The first occurrence of a generation has no distance from an earlier one.
        deltas = _add_one(deltas, nominal - last, history) if deltas and last is not None else "0"
        last = nominal
    return deltas


# Entries with the same interval have the same text, so the cache serves many entries.
@lru_cache(maxsize=256)
def _add_one(deltas: str, delta: int, history: int) -> str:
    """Return the text after one more occurrence, ``delta`` ms after the newest one.

    Parameters:
        history: number of occurrences to keep.
    """
    # The new occurrence is the newest now, so the distance 0 belongs to it. The occurrence that was
    # the newest before gets the distance ``delta`` instead of 0.
    steps = [0, delta, *_steps(deltas)[1:]]
    groups = []
    for step, equal_steps in groupby(steps[:history]):
        number = len([*equal_steps])
        groups.append(f"{step:x}*{number}" if number > 1 else f"{step:x}")
    return ",".join(groups)


def _steps(deltas: str) -> list[int]:
    """Return the distances in a text of :func:`add_sent`, the newest first."""
    steps: list[int] = []
    for group in filter(None, deltas.split(",")):
        step, _, number = group.partition("*")
        steps += [int(step, 16)] * int(number or 1)
    return steps


def task_id(name: str, generation: str, nominal: int) -> str:
    """Return the task id of an occurrence. A second publish of the occurrence has the same id."""
    return named_uuid(_PREFIX, f"{name}\0{generation}\0{nominal}")


def backfill_id(name: str, generation: str, nominal: int, again: int) -> str:
    """Return the task id of an occurrence that a backfill sends.

    It differs from the id of the regular occurrence, and has the mark of backfills.
    """
    id_ = task_id(f"{name}\0backfill\0{again}", generation, nominal)
    # The mark is the version of the UUID, its character at index 14.
    return f"{id_[:14]}{BACKFILLED}{id_[15:]}"
