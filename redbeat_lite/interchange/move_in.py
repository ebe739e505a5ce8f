"""Import of the entries of another scheduler, with their last runs.

A source (:mod:`.sources`) reads the store of the other scheduler,
and never writes there. A :class:`Carrier` converts its entries. :class:`MoveIn` stores them. The
other scheduler's beat is called the old beat.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from celery import Celery
from celery.schedules import solar
from msgspec.structs import replace

from .._base.actors import who
from .._base.clock import wall_ms
from .._base.errors import InvalidEntry, RedbeatError
from .._base.times import to_ms
from ..api.reader import Reader
from ..entries import lifecycle
from ..entries.apply_options import check_destination
from ..entries.changes import Edit, Stored
from ..entries.configured import (
    config_entry,
    configured,
    entry_with_defaults,
    name_taken,
    short_name,
)
from ..entries.entry import Entry
from ..entries.message import check_arguments, serializer_of
from ..entries.model import encode
from ..entries.state import MAX_COUNT, EntryState
from ..entries.stored_entry import edit_of, line_of_write, readable_parts
from ..rules import at, first_ms
from ..settings import Settings
from ..store.records import PAGE, chunks
from ..store.store import Store

#: Tolerance for sunsets and the like, in ms. Two programs may compute instants of one sunset that
#: differ by fractions of a second. Without a tolerance, a run that the old beat has sent could
#: count as the next run.
_SAME_EVENT_MS = 60_000


class Unreadable(RedbeatError):
    """The store of the other scheduler cannot be reached."""


class ForeignEntry(NamedTuple):
    """One entry of another scheduler.

    Parameters:
        name: name of the entry.
        fields: its definition, in the form of a value of ``beat_schedule``.
        since: aware; instant of its last run, or of its creation if it has never run. The next run
            counts from it. ``None`` for an entry that begins now.
        runs: how often it has run.
        has_run: whether ``since`` is its last run although ``runs`` is 0, because the counter was
            reset.
        at_once: whether the other scheduler would run it now, whatever its schedule says.
        of_config: whether the other scheduler has it from ``beat_schedule``.
        notes: remarks for people.
        fault: why it cannot be imported; empty if it can.
    """

    name: str
    fields: dict[str, Any]
    since: datetime | None = None
    runs: int = 0
    has_run: bool = False
    at_once: bool = False
    of_config: bool = False
    notes: tuple[str, ...] = ()
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """Plan for one entry of a file or of another scheduler.

    Parameters:
        action: what happens. ``"same"``: the stored entry equals the imported one, so nothing
            happens; ``"stored"``: the stored entry is kept although it may differ.
        entry: the entry with the state that it gets; ``None`` if it cannot be imported.
        notes: remarks for people, such as why the entry is left out.
        edit: edit that stores the entry; ``None``: nothing has to be stored.
    """

    name: str
    action: Literal["add", "replace", "same", "stored", "left out"]
    entry: Entry | None = None
    notes: tuple[str, ...] = ()
    edit: Edit | None = None


def left_out(name: str, reason: str) -> Step:
    """Return the step for an entry that is not imported."""
    return Step(name, "left out", notes=(reason,))


class LeftOut(Exception):
    """An entry cannot be imported. The text is the reason."""


def guarded(name: str, decode: Callable[..., ForeignEntry], *parts: Any) -> ForeignEntry:
    """Return the entry that ``decode`` makes of its stored parts.

    If ``decode`` fails, the entry has only a name and a fault.

    Parameters:
        name: name of the entry, if it cannot be decoded.
        parts: arguments of ``decode``.
    """
    try:
        return decode(*parts)
    except (InvalidEntry, LeftOut) as exc:
        fault = str(exc)
    except Exception as exc:  # noqa: BLE001 - one bad entry must not stop the others
        fault = f"it cannot be read: {type(exc).__name__}: {exc}"
    return ForeignEntry(name, {}, fault=fault)


class Carrier:
    """Converter of another scheduler's entries into entries of this package.

    Entries of the app's ``beat_schedule`` keep their definitions.
    """

    def __init__(self, app: Celery, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._configured = configured(app)

    def carry(self, foreign: ForeignEntry, now: int) -> Step:
        """Return the step that adds an entry of another scheduler, or leaves it out.

        The added entry has the state by which it continues.

        Parameters:
            now: epoch ms.
        """
        # A long key of beat_schedule is shortened when it is stored. Compare the short name.
        short = short_name(foreign.name)
        if short in self._configured:
            foreign = foreign._replace(name=short)
        try:
            return self._addition(foreign, now)
        except (InvalidEntry, LeftOut) as exc:
            # The step has the name, so the reason need not repeat it.
            return left_out(foreign.name, str(exc).removeprefix(f"entry {foreign.name!r}: "))

    def _addition(self, foreign: ForeignEntry, now: int) -> Step:
        """Return the step that adds an entry.

        Its definition comes from the app's ``beat_schedule``, or from the other scheduler if the
        ``beat_schedule`` lacks the entry.

        Raises:
            InvalidEntry, LeftOut: the entry cannot be imported.
        """
        if foreign.fault:
            raise LeftOut(foreign.fault)
        if not 0 <= foreign.runs < MAX_COUNT:
            raise LeftOut(f"the number of its runs is not between 0 and {MAX_COUNT - 1:,}")
        is_configured = foreign.name in self._configured
        if foreign.of_config and not is_configured:
            raise LeftOut("it comes from a beat_schedule, and this app's beat_schedule lacks it")
        if is_configured:
            written = self._configured[foreign.name]
            entry = config_entry(self._settings, foreign.name, written, self._app)
            entry.owner = self._settings.owner
        else:
            entry = entry_with_defaults(self._settings, foreign.name, foreign.fields, self._app)
            check_arguments(entry, serializer_of(entry))
        # The next three calls only check the entry: its next run, its queue, and whether it can be
        # stored. They raise InvalidEntry.
        lifecycle.check(entry, now)
        check_destination(entry.options, self._settings.key_prefix)
        encode(entry)
        state = carried_state(foreign, entry, now)
        notes = foreign.notes
        # The configuration decides whether a config entry is enabled. If only the other scheduler
        # has disabled it, pause it instead.
        if is_configured and entry.enabled and foreign.fields.get("enabled") is False:
            state = replace(state, paused=True, note="was disabled when it was moved in")
            notes = (*notes, "disabled there, so it is paused here")
        elif not is_configured and self._app.finalized and entry.task not in self._app.tasks:
            notes = (*notes, f"no task {entry.task!r} is registered in this app")
        lifecycle.set_state(entry, state)
        return Step(entry.name, "add", entry, notes)


def carried_state(foreign: ForeignEntry, entry: Entry, now: int) -> EntryState:
    """Return the state with which an entry continues an entry of another scheduler.

    Its next occurrence may be in the past. Then the misfire policy decides about it, as after any
    outage. An entry that has had all its runs, or whose end has passed, has no next occurrence.

    Parameters:
        now: epoch ms.
    """
    state = lifecycle.created(entry, now)
    nominal = _next_nominal(foreign, entry, state.nominal, now)
    # If the entry has had all its runs, or the occurrence lies after its end, no run is left.
    if lifecycle.used_up(entry, foreign.runs) or lifecycle.beyond(entry, nominal):
        nominal = None
    last = None
    if foreign.since is not None and (foreign.runs or foreign.has_run):
        last = to_ms(foreign.since)
    return replace(state, nominal=nominal, count=foreign.runs, last=last)


def _next_nominal(foreign: ForeignEntry, entry: Entry, first: int | None, now: int) -> int | None:
    """Return the next occurrence (nominal time) of an entry, in epoch ms; ``None``: there is none.

    It is the first occurrence after the last run, unless the entry has no last run, runs once, has
    not reached its ``start_at``, or is due at once in the other scheduler.

    Parameters:
        first: next occurrence, in epoch ms, that the entry would have as a new one.
        now: epoch ms.
    """
    rule = entry.rule
    if isinstance(rule, at):
        # The schedule is one instant. A one-off that has run does not run again.
        return None if foreign.runs else first
    if foreign.at_once:
        return now
    if foreign.since is None:
        return first
    last = to_ms(foreign.since)
    start = entry.start_ms
    # If the last run was before ``start_at``, the first occurrence of the entry is still to come.
    if start is not None and start > last:
        return first_ms(rule, last, start)
    if type(entry.schedule) is solar:
        last += _SAME_EVENT_MS  # Skip an occurrence that is the same sunset as the last run.
    return rule.next_ms(last)


class MoveIn:
    """Import of another scheduler's entries into the schedule of a finalized app.

    If the app's ``beat_schedule`` has an entry, the import takes its definition from there, and
    only its last run from the other scheduler. All other entries become runtime entries.

    Parameters:
        replace: also import entries that are stored here already, for a second import right before
            the switch. An entry that has run here since keeps its last run and counter.
    """

    def __init__(self, app: Celery, *, replace: bool = False) -> None:
        self._replace = replace
        reader = Reader(app)
        self._settings = reader.settings
        self._store = reader.store
        self._app = app
        self._carrier = Carrier(app, reader.settings)
        #: Name of an entry that can be imported -> the step that adds it.
        self._additions: dict[str, Step] = {}

    @property
    def where(self) -> str:
        """The server and the keys into which the import writes, for people."""
        return f"{self._store.backend.display_url}, keys {self._store.keys.prefix}:*"

    @property
    def led(self) -> bool:
        """Whether a beat of this package leads at present."""
        return bool(self._store.backend.client.exists(self._store.keys.leader))

    def plan(self, entries: Iterable[ForeignEntry]) -> list[Step]:
        """Return what :meth:`apply` would do with the entries of a source. Writes nothing."""
        now = wall_ms()
        carried = [self._carrier.carry(foreign, now) for foreign in entries]
        self._additions = {step.name: step for step in carried if step.entry is not None}
        # A step without an entry says why an entry cannot be moved. Each step that adds an entry
        # also depends on what is stored under its name: _decide() looks it up in self._additions.
        steps = [step for step in carried if step.entry is None]
        for names in chunks(self._additions, PAGE):
            steps += map(self._decide, self._store.read(names))
        return steps

    def apply(self, steps: Sequence[Step]) -> list[Step]:
        """Store a plan, and return what was done."""
        # store_steps() calls _decide() again for each entry, because other processes may have
        # changed the stored entry since the plan was made.
        return store_steps(self._store, steps, self._decide)

    def _decide(self, stored: Stored) -> Step:
        """Return what to do with an entry that can be imported.

        Parameters:
            stored: what is stored under its name. It has no definition if there is no such entry.
        """
        addition = self._additions[stored.name.decode()]
        notes = addition.notes
        # This method may be called again for the same addition, so change only a copy of its entry.
        entry = copy(addition.entry)
        assert entry is not None
        is_stored = stored.definition is not None
        existing, state = readable_parts(stored, self._app)
        # A runtime entry (its owner is ``None``) or a config entry of this app may be replaced. A
        # config entry of another app stays.
        if existing is not None and existing.owner not in (None, self._settings.owner):
            return left_out(entry.name, name_taken(existing))
        if is_stored and not self._replace:
            note = "it is stored here already; --replace carries it over again"
            return Step(entry.name, "stored", notes=(note,))
        if is_stored and state is not None:
            # This scheduler has sent a run after the other scheduler's last run.
            has_run_here = (state.last or 0) > (entry.state.last or 0)
            if has_run_here:
                notes = (*notes, "has run here since, so its last run and counter stay")
            # Merge the stored state into the imported entry. If the stored definition cannot be
            # read, take the imported one as the definition that the state belongs to.
            before = existing or entry
            entry.state = _merged_state(before, state, entry, has_run_here=has_run_here)
        definition = encode(entry)
        line = line_of_write(who(), stored, definition, "carried over")
        # The line for the record of changes lists the fields whose values differ.
        if line.fields:
            fields = ", ".join(field for field, *_ in line.fields)
            notes = (*notes, f"differs from what is stored here: {fields}")
        edit = edit_of(entry, entry.state, expected=stored.state, definition=definition, line=line)
        return Step(entry.name, "replace" if is_stored else "add", entry, notes, edit)


def _merged_state(
    before: Entry, stored: EntryState, entry: Entry, *, has_run_here: bool
) -> EntryState:
    """Return the state of an entry that replaces a stored one.

    Parameters:
        before: the stored entry; if only its state can be read, the imported entry.
        stored: the stored state.
        entry: the imported entry, with the state that the other scheduler gave it.
        has_run_here: whether the entry has run here after its last run in the other scheduler. That
            scheduler does not know these runs, so its state would send them once more.
    """
    imported = entry.state
    if has_run_here:
        # The stored state goes on, as after an edit of the definition.
        state = lifecycle.after_edit(before, stored, entry, wall_ms())
    else:
        # The version becomes higher than the stored one, so that no cache mistakes the new entry
        # for the old one.
        state = replace(imported, version=stored.version + 1, generation=stored.generation)
    # The entry is paused if it is paused here or in the other scheduler. If it is paused in both,
    # the note of the pause here remains, because ``stored`` comes last.
    for source in (imported, stored):
        if source.paused:
            state = replace(state, paused=True, note=source.note)
    return state


def store_steps(
    store: Store, steps: Sequence[Step], decide: Callable[[Stored], Step]
) -> list[Step]:
    """Write plans, 250 entries in two round trips. Return what was done with each entry.

    For each owner, Redis has a list of the names of its config entries. The names are added to
    these lists before the entries are stored. So if the call ends in between, no config entry is
    stored without its name in a list.

    Parameters:
        decide: returns the plan for an entry. It gets the entry as it is stored now, because other
            processes may have changed it since ``steps`` were made.
    """
    # A step without an edit stores nothing.
    planned = [step.entry for step in steps if step.edit is not None and step.entry is not None]
    names_of = defaultdict(set)
    for entry in planned:
        if entry.owner is not None:
            names_of[entry.owner].add(entry.name)
    for owner, names in names_of.items():
        store.add_config_names(owner, names)
    done = {step.name: step for step in steps}

    def edit(stored: Stored) -> Edit | None:
        """Return the edit of one entry, and note its plan; called once per attempt."""
        step = decide(stored)
        done[step.name] = step
        return step.edit

    # rewrite() calls edit() again for an entry that another process has changed meanwhile. It
    # returns the names of the entries that it wrote.
    written = set(store.rewrite((entry.name for entry in planned), edit))
    for name, step in done.items():
        if step.edit is not None and name not in written:
            done[name] = left_out(name, "it is being changed too often")
    return [*done.values()]
