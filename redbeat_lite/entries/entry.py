"""Entry: a named schedule with its task, arguments and policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, tzinfo
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Unpack, get_args

from celery.schedules import schedule
from kombu.utils.functional import reprcall
from msgspec import structs

from .._base import times
from .._base.errors import InvalidEntry
from .._base.public import public
from ..rules import (
    Rule,
    SpreadSchedule,
    manual,
    resolved_text,
    rule_of,
    schedule_identity,
    schedule_text,
)
from ..rules.calendars import Calendar, without
from ..rules.zones import portable
from .changes import Change
from .model import (
    FIELDS,
    NAME,
    Args,
    Changes,
    Definition,
    Kwargs,
    Policies,
    Schedule,
    brings_arguments,
    definition_of,
    entry_fields,
)
from .run import NOT_DONE, Row, Run, run_of
from .state import EntryState, task_id

if TYPE_CHECKING:
    # Celery ships no types, so its class would have any attribute, also misspelled ones. The fields
    # of the definition become attributes of the entry.

    class ScheduleEntry(Definition, frozen=True):
        name: str = ""
else:
    from celery.beat import ScheduleEntry

#: States of an entry, as users see them.
Status = Literal["waiting", "paused", "disabled", "manual", "finished"]
STATUSES = get_args(Status)

#: Attributes of an entry that are no part of its definition. :meth:`Entry.as_dict` shows them too.
_READ = (
    *("source", "status", "paused_note", "paused_until", "next_run_at", "last_run_at"),
    *("total_run_count", "skipped_count", "last_task_id", "last_error", "version", "generation"),
    *("last_run", "last_success_at", "failures_in_a_row"),
)

#: Attributes that a pickled entry leaves out: the app cannot always be pickled, and the three other
#: attributes can be made again.
_NOT_PICKLED = ("app", "_rule", "own_part", "read_rows")


@public
class Entry(ScheduleEntry):  # type: ignore[misc]  # only the fields are read-only
    """Named schedule of a task. As a :class:`celery.beat.ScheduleEntry` it works with Celery's
    tools.

    An entry is read-only: :class:`Schedules` changes stored entries, and :meth:`replace` makes
    another entry. Durations are seconds, a timedelta or a text such as ``"1h30m"``.

    Parameters:
        name: 1 to 200 characters without control characters.
        task: the task or its registered name; or a signature (``add.s(1, 2)``), which brings its
            arguments and options; or a chain, group or chord, which a worker with ``install()``
            applies; or a :class:`redbeat_lite.Pipeline`, of which each occurrence starts a run.
        schedule: :class:`every`, :class:`cron`, :class:`at`, :class:`rrule`, :class:`manual`, any
            Celery schedule, or a duration.
        args, kwargs: the task's arguments.
        options: options of ``apply_async``, such as ``queue`` and ``priority``. The task's
            ``apply_async`` and the broker get options with unknown names too; an option that looks
            misspelled is refused.
        policies: the other fields, by name; see :class:`Policies`. Each is an attribute.
        relative: Celery's own flag for interval schedules.
        app: the Celery app; its time zone applies to schedules without one.

    Raises:
        InvalidEntry: a field is unknown or wrong; names the field, the expected values and the
            value.
    """

    # The package may set the attributes that are annotated here; all others are read-only.

    #: The Celery app. An entry of a user may have none until it is added.
    app: Any = None
    #: State of an entry that was read from Redis or written to it. Any other entry has version 0.
    state: EntryState = EntryState(version=0, generation="", nominal=None)
    #: Due time in epoch milliseconds; ``None`` if the entry does not fire by itself.
    due: int | None = None
    #: Owner of a config entry; ``None`` for a runtime entry.
    owner: str | None = None
    #: The last change, if it is known.
    last_change: Change | None = None
    #: Function that returns the rows of its last runs, the newest first; ``None`` if the entry was
    #: not read from Redis.
    read_rows: Callable[[], Sequence[Row]] | None = None
    #: Name of a field that could not be stored -> its readable text. Only a config entry may have
    #: such fields.
    unstored: Mapping[str, str] = MappingProxyType({})
    #: Part that all messages of the entry have in common; see
    #: :mod:`redbeat_lite.beat.dispatch.message_templates`.
    own_part: tuple[str, dict[str, str]] | None = None
    _rule: Rule | None = None

    def __init__(
        self,
        name: str,
        task: Any,
        schedule: Schedule,
        args: Args = (),
        kwargs: Kwargs = None,
        options: Kwargs = None,
        *,
        relative: bool = False,
        app: Any = None,
        **policies: Unpack[Policies],
    ) -> None:
        # Celery's own __init__ is not called, because it fills last_run_at from a clock.
        fields = {
            "task": task,
            "schedule": schedule,
            "args": args,
            "kwargs": kwargs,
            "options": options,
            **policies,
        }
        self._fill(name, fields, relative, app)

    @classmethod
    def from_mapping(cls, name: str, written: Mapping[str, Any], *, app: Any = None) -> Entry:
        """Return the entry of a dict in the form of Celery's ``beat_schedule``.

        The dict may also have this package's fields. ``written`` may be an ``Entry`` already, which
        must have this name: it gets the app, and the same object is returned.

        Raises:
            InvalidEntry: a field is missing, unknown or wrong.
        """
        expected = "a dict with task and schedule"
        if isinstance(written, Entry):
            if written.name == name:
                written._put(app=app or written.app)
                return written
            # An entry with another name is no mapping, so it is refused below with this text.
            expected = f"an Entry named {name!r}, as its key is"
        if not isinstance(written, Mapping):
            raise InvalidEntry("entry", expected, written, entry=str(name))
        fields = dict(written)
        # This is an argument of Celery's own entries, and no field of the definition.
        relative = fields.pop("relative", False)
        entry = cls.__new__(cls)
        entry._fill(name, fields, relative, app)
        return entry

    def _fill(self, name: str, fields: Mapping[str, Any], relative: bool, app: Any) -> None:
        """Set name, app and fields of a new entry; raise InvalidEntry if one is wrong."""
        # The entry is read-only, so ``self.name = …`` would raise an error.
        attributes = self.__dict__
        attributes["name"] = NAME.read("name", name)
        attributes["app"] = app
        try:
            attributes.update(structs.asdict(definition_of(fields)))
        except InvalidEntry as exc:
            raise exc.of(name) from None
        if isinstance(self.schedule, SpreadSchedule):
            # The times of a spread schedule depend on the name.
            attributes["schedule"] = self.schedule.of(name)
        # Celery's entries pass ``relative`` on to a plain interval, so do the same.
        elif relative and type(self.schedule) is schedule:
            attributes["schedule"] = schedule(self.schedule.run_every, relative=True)

    # -- Plan --------------------------------------------------------------------------------------

    @property
    def rule(self) -> Rule:
        """The schedule as a rule, which gives the next occurrence after an instant.

        It gives none on the days that the entry's calendar leaves out. A schedule without a time
        zone has the zone of the app. The rule is kept, because a beat asks for it at each run.
        """
        if self._rule is None:
            self._rule = without(rule_of(self.schedule, self.app.timezone), self.calendar)
        return self._rule

    @property
    def zone(self) -> tzinfo:
        """Zone of the schedule, or else that of the app."""
        return getattr(self.rule, "zone", None) or portable(self.app.timezone)

    @property
    def start_ms(self) -> int | None:
        """``start_at`` in epoch milliseconds."""
        return None if self.start_at is None else times.to_ms(self.start_at)

    @property
    def end_ms(self) -> int:
        """``end_at`` in epoch milliseconds; the last instant that there is, if it has no end."""
        return times.MAX_MS if self.end_at is None else times.to_ms(self.end_at)

    @property
    def jitter_ms(self) -> int:
        """``jitter`` in milliseconds."""
        return round(self.jitter * 1000)

    @property
    def calendar_name(self) -> str:
        """Name of the calendar; empty if there is none."""
        if isinstance(self.calendar, Calendar):
            return self.calendar.name
        return self.calendar or ""

    # -- State, as it was when the entry was read --------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether no occurrence is to come, so the entry is only kept as a record."""
        is_manual = isinstance(self.schedule, manual)
        # An entry that was not read from Redis has version 0, and its state says nothing.
        return self.version > 0 and self.state.finished and not is_manual

    @property
    def status(self) -> Status:
        """The state of the entry in one word."""
        if self.paused_note is not None:
            return "paused"
        if not self.enabled:
            return "disabled"
        if isinstance(self.schedule, manual):
            return "manual"
        return "finished" if self.finished else "waiting"

    @property
    def next_run_at(self) -> datetime | None:
        """Time of the next run, with jitter, in UTC. A pause with an end puts it off to that end.

        ``None`` while the entry is paused without an end, disabled, finished or manual.
        """
        return None if self.due is None else times.from_ms(self.due)

    @property
    def last_run_at(self) -> datetime | None:
        """Nominal time of its last occurrence, in UTC; ``None`` before any."""
        last = self.state.last
        return None if last is None else times.from_ms(last)

    @property
    def total_run_count(self) -> int:
        """Number of occurrences that were sent."""
        return self.state.count

    @property
    def skipped_count(self) -> int:
        """Number of occurrences that a misfire policy or a once-lock left out."""
        return self.state.skipped

    @property
    def last_task_id(self) -> str | None:
        """Task id of its last occurrence; ``None`` before any."""
        if self.state.last is None:
            return None
        return task_id(self.name, self.state.generation, self.state.last)

    @property
    def version(self) -> int:
        """Number that grows with each edit, pause and resume; 0 for an entry that was not read."""
        return self.state.version

    @property
    def generation(self) -> str | None:
        """Text that changes when the entry is removed and added again, so task ids change, too.

        ``None`` for an entry that was not read.
        """
        return self.state.generation or None

    @property
    def paused_note(self) -> str | None:
        """Reason of its pause, which may be empty; ``None`` if it is not paused."""
        return self.state.note if self.state.paused else None

    @property
    def paused_until(self) -> datetime | None:
        """End of its pause; ``None`` if it is not paused, or if its pause has no end."""
        if not self.state.paused or self.state.paused_until is None:
            return None
        return times.from_ms(self.state.paused_until)

    @property
    def last_error(self) -> str | None:
        """Error of the last publish, if that failed."""
        return self.state.error or None

    @property
    def source(self) -> str:
        """``"runtime"``, or ``"config:<owner>"`` for an entry of ``beat_schedule``."""
        return "runtime" if self.owner is None else f"config:{self.owner}"

    # -- Last runs; the first access may ask the server --------------------------------------------

    @property
    def rows(self) -> Sequence[Row]:
        """The recorded rows of its last runs, the newest first."""
        return () if self.read_rows is None else self.read_rows()

    @property
    def last_run(self) -> Run | None:
        """The newest run that a worker has recorded."""
        return next((run_of(self.name, row) for row in self.rows if not row.is_range), None)

    @property
    def last_success_at(self) -> datetime | None:
        """Nominal time of the newest run that succeeded."""
        for row in self.rows:
            if row.outcome == "succeeded":
                return times.from_ms(row.nominal)
        return None

    @property
    def failures_in_a_row(self) -> int:
        """Number of runs since the last success that did not do their work.

        Runs that have not ended, runs that the beat did not send, and backfilled runs do not count.
        """
        failures = 0
        for row in self.rows:  # The newest comes first.
            if row.is_backfilled:
                continue
            if row.outcome == "succeeded":
                break
            failures += row.outcome in NOT_DONE
        return failures

    # -- Value -------------------------------------------------------------------------------------

    def definition(self) -> dict[str, Any]:
        """Return the fields that a user may write, by name."""
        return {field: getattr(self, field) for field in FIELDS}

    def as_dict(self) -> dict[str, Any]:
        """Return definition, state and last run as JSON values, instants in UTC, as ``show --json``
        prints them.

        An entry that was read asks the server for its last runs, as :attr:`last_run` does.
        """
        attributes = {name: _plain(getattr(self, name)) for name in _READ}
        if self.last_run is not None:
            fields = asdict(self.last_run)
            attributes["last_run"] = {field: _plain(value) for field, value in fields.items()}
        return {
            "name": self.name,
            **entry_fields(self, defaults=True),
            "schedule_text": schedule_text(self.schedule),
            "resolved": resolved_text(self.schedule),
            **attributes,
        }

    def replace(self, **changes: Unpack[Changes]) -> Entry:
        """Return a new entry with these fields changed, checked as a whole, without state.

        Raises:
            InvalidEntry: a field is unknown or wrong.
        """
        before = self.definition()
        # A new task that brings its own arguments is refused beside other arguments, so drop the
        # arguments of the old task.
        if brings_arguments(changes.get("task")):
            before.update(args=(), kwargs={})
        return Entry.from_mapping(self.name, {**before, **changes}, app=self.app)

    def __eq__(self, other: object) -> bool:
        """Return whether a user would write the same for both entries; state does not count.

        ``1`` and ``True`` are equal here, as in Python. An edit compares stored forms instead.
        """
        if not isinstance(other, Entry):
            return NotImplemented
        return self._identity() == other._identity()

    def _identity(self) -> dict[str, Any]:
        """Return what equal entries have in common: the name, and the fields that users write."""
        return {
            **self.definition(),
            "schedule": schedule_identity(self.schedule),
            "name": self.name,
        }

    __hash__ = None  # type: ignore[assignment]  # mutable, and equal by value

    def __copy__(self) -> Entry:
        # A copy of a checked entry needs no check, and the beat makes many copies.
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        state = {key: value for key, value in vars(self).items() if key not in _NOT_PICKLED}
        # Pickle calls ``Entry`` with these three fields, and then puts ``state``, a dict of
        # attributes, into the ``__dict__`` of the new entry.
        return Entry, (self.name, self.task, self.schedule), state

    def __repr__(self) -> str:
        call = reprcall(self.task, self.args, self.kwargs)  # type: ignore[no-untyped-call]
        return f"<Entry {self.name!r}: {call} {self.schedule!r}>"

    # -- Read-only: a change of this object would not change what is stored ------------------------

    def __setattr__(self, name: str, value: object) -> None:
        """Set one of the attributes that the class annotates; refuse any other attribute."""
        if name not in Entry.__annotations__:
            self._refuse()
        self.__dict__[name] = value

    if TYPE_CHECKING:
        # To a type checker these are None, so that it reports a call. As methods that never return,
        # they would only stop it from checking the lines after the call.
        save: None = None
        delete: None = None
        update: None = None
    else:

        def save(self, *args: Any, **kwargs: Any) -> NoReturn:
            """Raise an ``AttributeError`` that names the methods of :class:`Schedules`."""
            self._refuse()

        delete = update = save

    def _refuse(self) -> NoReturn:
        """Raise the error about a change of this object; it says how to change what is stored."""
        name = self.__dict__.get("name")
        raise AttributeError(
            f"entry {name!r} is read-only: to change what is stored, "
            f"schedules.update({name!r}, field=...) or "
            f"schedules.remove({name!r}); for another one like it, entry.replace(field=...)"
        )

    def _put(self, **attributes: Any) -> None:
        """Set attributes although the entry is read-only, and drop the cached rule, which may be
        old.

        The values must have been checked already.
        """
        self.__dict__.update(attributes, _rule=None)


def _plain(value: Any) -> Any:
    """Return an attribute as a JSON value; an instant becomes a text in UTC."""
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value
