"""Moving in from another scheduler: its entries are carried over, with their last runs.

A :class:`Source` (:mod:`.redbeat_source`, :mod:`.djangobeat_source`) reads the other scheduler's
store and never writes. A :class:`Carrier` makes entries of what was read. :class:`MoveIn` stores
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from typing import Any, Literal, NamedTuple

from celery import Celery
from celery.schedules import solar

from .._base.actors import who
from .._base.clock import wall_ms
from .._base.errors import InvalidEntry, RedbeatError
from .._base.times import to_ms
from ..entries import lifecycle
from ..entries.apply_options import check_destination
from ..entries.configured import config_entry, configured, entry_with_defaults, short_name
from ..entries.definition import encode
from ..entries.differences import line_of_write
from ..entries.entry import Entry
from ..entries.sendable import check_arguments, serializer_of
from ..entries.state import MAX_COUNT, EntryState
from ..entries.stored_entry import edit_of, readable_parts
from ..rules import At, first_ms, next_ms
from ..settings import Settings
from ..store.records import PAGE, Edit, Stored, chunks
from ..store.store import Store

#: Tolerance for the sun, in ms: two programs compute one sunset some fractions of a second apart,
#: and sunsets are hours apart. Without it, a run that the old beat has sent would count as to come.
_SAME_EVENT_MS = 60_000


class Unreadable(RedbeatError):
    """The store of the other scheduler cannot be reached."""


class ForeignEntry(NamedTuple):
    """One entry of another scheduler.

    Parameters:
        name: its name.
        fields: its definition, as a value of ``beat_schedule``.
        since: aware; the instant from which its next run counts: its last run, or its creation if
            it never ran. ``None`` for an entry that begins now.
        runs: how often it ran.
        has_run: whether ``since`` is its last run although ``runs`` is 0, because the counter was
            reset.
        at_once: whether the other scheduler would run it at its next look, whatever its schedule.
        of_config: whether the other scheduler has it from ``beat_schedule``, as far as is known.
        notes: remarks for people.
    """

    name: str
    fields: Mapping[str, Any]
    since: datetime | None = None
    runs: int = 0
    has_run: bool = False
    at_once: bool = False
    of_config: bool = False
    notes: tuple[str, ...] = ()


class LeftOut(NamedTuple):
    """An entry that cannot be carried over, and why."""

    name: str
    reason: str


class Source:
    """A schedule of another scheduler, for reading only."""

    title: str  #: name of the other scheduler
    where: str  #: the place that is read, for people
    lag = 0.0  #: seconds until its store shows a run
    led = False  #: whether one of its beats held the leader's lock at the last :meth:`read`

    def read(self) -> Iterator[ForeignEntry | LeftOut]:
        """Yield every entry; raises Unreadable if the store cannot be reached."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections, if there are any."""


class Carried(NamedTuple):
    """An entry to store, with its state, its stored form, and remarks for people."""

    entry: Entry
    definition: str
    notes: tuple[str, ...] = ()


class Carrier:
    """Converter of another scheduler's entries into ours. Pure.

    Parameters:
        configured: ``beat_schedule`` of the app. It owns the definitions of its entries.
    """

    def __init__(
        self, app: Celery, settings: Settings, configured: dict[str, Any], zone: tzinfo
    ) -> None:
        self._app = app
        self._settings = settings
        self._configured = configured
        self._zone = zone

    def carry(self, foreign: ForeignEntry | LeftOut, now: int) -> Carried | LeftOut:
        """Return our entry for an entry of another scheduler, or why it is left out.

        Parameters:
            now: epoch ms, from which our entry continues.
        """
        if isinstance(foreign, LeftOut):
            return foreign
        short = short_name(foreign.name)
        if short in self._configured:
            foreign = foreign._replace(name=short)
        if not 0 <= foreign.runs < MAX_COUNT:
            limit = f"0 to {MAX_COUNT - 1:,}"
            return LeftOut(foreign.name, f"the number of its runs is none from {limit}")
        is_ours = foreign.name in self._configured
        if foreign.of_config and not is_ours:
            reason = "it comes from a beat_schedule, and this app's beat_schedule lacks it"
            return LeftOut(foreign.name, reason)
        carry = self._carry_config_entry if is_ours else self._carry_runtime_entry
        try:
            carried = carry(foreign, now)
            check_destination(carried.entry.options, self._settings.key_prefix)
        except InvalidEntry as exc:
            return LeftOut(foreign.name, str(exc).removeprefix(f"entry {foreign.name!r}: "))
        entry = carried.entry
        entry.due = lifecycle.due_time(entry, entry.known_state, self._zone)
        return carried

    def _carry_runtime_entry(self, foreign: ForeignEntry, now: int) -> Carried:
        """Return a runtime entry with the definition and the history of the old beat."""
        fields = dict(foreign.fields)
        entry = entry_with_defaults(self._settings, foreign.name, fields, app=self._app)
        check_arguments(entry, serializer_of(entry, self._app))
        carried = self._with_state(foreign, entry, now)
        if self._app.finalized and entry.task not in self._app.tasks:
            note = f"no task {entry.task!r} is registered in this app"
            return carried._replace(notes=(*foreign.notes, note))
        return carried

    def _carry_config_entry(self, foreign: ForeignEntry, now: int) -> Carried:
        """Combine the definition of the configuration with the history of the old beat."""
        definition = self._configured[foreign.name]
        entry = config_entry(self._settings, foreign.name, definition, app=self._app)
        entry.owner = self._settings.owner
        carried = self._with_state(foreign, entry, now)
        if entry.enabled and foreign.fields.get("enabled") is False:
            note = "was disabled when it was moved in"
            entry.state = replace(entry.known_state, paused=True, note=note)
            notes = (*foreign.notes, "disabled there, so it is paused here")
            return carried._replace(notes=notes)
        return carried

    def _with_state(self, foreign: ForeignEntry, entry: Entry, now: int) -> Carried:
        lifecycle.check(entry, now, self._zone)
        definition = encode(entry, placeholders=entry.owner is not None)
        entry.state = carried_state(foreign, entry, now, self._zone)
        return Carried(entry, definition, foreign.notes)


def carried_state(foreign: ForeignEntry, entry: Entry, now: int, zone: tzinfo) -> EntryState:
    """Return the state with which an entry continues an entry of another scheduler.

    An occurrence that came due since the old beat last ran is the next one. It lies in the past, so
    the misfire policy decides about it, as after any outage.
    """
    state = lifecycle.created(entry, now, zone)
    last = None if foreign.since is None else to_ms(foreign.since)
    nominal = state.nominal
    if isinstance(entry.rule(zone), At):
        if foreign.runs:
            nominal = None
    elif foreign.at_once:
        nominal = now
    elif last is not None:
        nominal = _following(entry, last, zone)
    if lifecycle.used_up(entry, foreign.runs) or lifecycle.beyond(entry, nominal):
        nominal = None
    if not foreign.runs and not foreign.has_run:
        last = None  # ``since`` is its creation
    return replace(state, nominal=nominal, count=foreign.runs, last=last)


def _following(entry: Entry, last: int, zone: tzinfo) -> int | None:
    rule = entry.rule(zone)
    start = entry.start_ms
    if start is not None and start > last:
        return first_ms(rule, last, start)
    if type(entry.schedule) is solar:
        last += _SAME_EVENT_MS
    return next_ms(rule, last)


@dataclass(slots=True)
class Move:
    """Result for one entry of the other scheduler, by its name there.

    Parameters:
        entry: the entry as it is stored here, with its state; ``None`` if it is not.
        notes: remarks for people, such as why it is not stored.
    """

    name: str
    action: Literal["add", "replace", "stored", "left out"]
    entry: Entry | None
    notes: tuple[str, ...]
    edit: Edit | None = None


class MoveIn:
    """Transfer of another scheduler's entries into the schedule of a finalized app.

    An entry that the app's ``beat_schedule`` has keeps its definition there, and becomes a config
    entry with the history of the old one. All others become runtime entries.

    Parameters:
        replace: carry over entries that are stored here already, too; for a second run right before
            the switch.
    """

    def __init__(self, app: Celery, *, replace: bool = False) -> None:
        self._replace = replace
        self._settings = Settings.from_app(app)
        self._store = Store.of(self._settings)
        self._zone: tzinfo = app.timezone
        self._carrier = Carrier(app, self._settings, configured(app), self._zone)

    @property
    def where(self) -> str:
        """The place that is written, for people."""
        return f"{self._store.backend.display_url}, keys {self._store.keys.prefix}:*"

    @property
    def led(self) -> bool:
        """Whether a beat of ours leads at the moment."""
        return bool(self._store.backend.client.exists(self._store.keys.leader))

    def plan(self, entries: Iterable[ForeignEntry | LeftOut]) -> list[Move]:
        """Return what :meth:`apply` would do with the entries of a source. Writes nothing."""
        now = wall_ms()
        moves: list[Move] = []
        for chunk in chunks([self._carrier.carry(foreign, now) for foreign in entries], PAGE):
            names = [carried.entry.name for carried in chunk if isinstance(carried, Carried)]
            rows = {row.name.decode(): row for row in self._store.read(names)}
            for carried in chunk:
                if isinstance(carried, LeftOut):
                    moves.append(Move(carried.name, "left out", None, (carried.reason,)))
                else:
                    moves.append(self._move(carried, rows[carried.entry.name]))
        return moves

    def apply(self, moves: Iterable[Move]) -> None:
        """Store a plan, 1,000 entries in a round trip.

        A move whose entry was changed meanwhile becomes ``"left out"``.
        """
        planned = [move for move in moves if move.edit is not None]
        config_names = set()
        for move in planned:
            if move.entry is not None and move.entry.owner is not None:
                config_names.add(move.name)
        if config_names:
            self._store.add_config_names(self._settings.owner, config_names)
        stored = self._store.put(move.edit for move in planned if move.edit is not None)
        for move, ok in zip(planned, stored, strict=True):
            if not ok:
                move.action = "left out"
                move.entry = None
                move.notes = ("somebody else changed it at this moment",)

    def close(self) -> None:
        """Close the connections."""
        self._store.backend.close()

    def _move(self, carried: Carried, stored: Stored) -> Move:
        """Return what happens to an entry that can be carried over."""
        entry = carried.entry
        action: Literal["add", "replace"] = "add"
        if stored.definition is not None:
            action = "replace"
            existing, state = readable_parts(stored)
            if existing is not None and existing.owner not in (None, self._settings.owner):
                reason = f"the name is taken by the configuration of {existing.owner!r}"
                return Move(entry.name, "left out", None, (reason,))
            if not self._replace:
                note = "it is stored here already; --replace carries it over again"
                return Move(entry.name, "stored", None, (note,))
            if state is not None:
                _continue_state(entry, state)
        line = line_of_write(who(), stored, carried.definition, "carried over")
        edit = edit_of(
            entry,
            entry.known_state,
            self._zone,
            expected=stored.state,
            definition=carried.definition,
            line=line,
        )
        entry.due = edit.score
        return Move(entry.name, action, entry, carried.notes, edit)


def _continue_state(entry: Entry, stored: EntryState) -> None:
    """Raise the version over the stored one for caches, and keep a pause that was made here."""
    version = stored.version + 1
    entry.state = replace(entry.known_state, version=version, generation=stored.generation)
    if stored.paused:
        entry.state = replace(entry.state, paused=True, note=stored.note)
