"""An entry: a named schedule with its task, arguments and policies."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, tzinfo
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack

from celery.schedules import BaseSchedule

from .. import instants
from ..durations import LENGTH, Duration
from ..errors import InvalidEntry
from ..expect import Expect, Pause
from ..once.policy import Once
from ..public import public
from ..schedules import Manual, Rule, encode_schedule, rule_of
from ..schedules.calendars import Calendar, without
from ..schedules.misfire import Misfire
from ..settings import MAX_HISTORY
from . import fields
from .as_read import AsRead, Status
from .field_types import (
    Args,
    CalendarField,
    Changes,
    ExpectField,
    Expires,
    Kwargs,
    MisfireField,
    OnceField,
    OnFailure,
    Schedule,
)
from .fields import DEFINITION_FIELDS
from .frozen import Frozen

if TYPE_CHECKING:  # Celery ships no types: of its class an entry would have any attribute, misspelt ones too

    class ScheduleEntry: ...
else:
    from celery.beat import ScheduleEntry

_REQUIRED = {
    "task": "the name of a task, a task, a signature or a Pipeline",
    "schedule": f"{LENGTH}, or a schedule",
}


@public
class Entry(Frozen, AsRead, ScheduleEntry):
    """One named schedule; a :class:`celery.beat.ScheduleEntry`, so tools that know Celery know it. It is frozen: what
    is stored is changed by :class:`Schedules`, and :meth:`replace` makes another entry. Lengths of time are seconds, a
    timedelta or a text such as ``"1h30m"``.

    Parameters:
        name: 1 to 200 characters, no control characters.
        task: the task's registered name, or the task; or a signature (``add.s(1, 2)``), which brings its arguments and
            options; or a chain, group or chord, which a worker with ``install()`` applies; or a
            :class:`redbeat_lite.Pipeline`, of which each occurrence starts a run.
        schedule: :func:`every`, :func:`cron`, :func:`at`, :func:`rrule`, :func:`manual`, any Celery schedule,
            or a length of time.
        args, kwargs: the task's arguments.
        options: options of ``apply_async``, such as ``queue`` and ``priority``. Those of no known name are handed on to
            the task's ``apply_async`` and to the broker; one that looks misspelt is refused.
        expires: ``None``, a length of time after publishing, or ``"interval"``: for the gap to the next run.
            An ``expires`` among the options takes precedence.
        once: keep one run of this entry queued or running at a time; ``True`` or a :class:`Once`.
        misfire: what to do about occurrences found too late: ``"coalesce"``, ``"skip"``, ``"all"``, a :class:`Misfire`.
        jitter: a length of time; each occurrence is put off by a fixed amount between 0 and this.
        start_at, end_at: aware datetimes; no occurrence lies before the one or after the other.
        max_runs: finish after this many occurrences.
        enabled: a disabled entry is kept, but does not fire.
        description: free text for people.
        remove_when_done: remove the entry when it finishes, instead of keeping its record.
        history: how many of its last runs are remembered, 0 to 1,000; ``None`` for what ``redbeat_lite_history`` says.
        expect: an :class:`Expect` or a mapping of its fields: what must become of its runs; ``False`` for nothing,
            ``None`` for what ``redbeat_lite_expect`` says.
        on_failure: a :class:`Pause` or its text, such as ``"pause:3"``: pause it after so many failures in a row.
        calendar: the name of a stored :class:`Calendar`, on whose days nothing runs; of an entry that was read, itself.
        tags: up to 20 words by which it is selected with others; kept sorted.
        relative: Celery's own flag for interval schedules.
        app: the Celery app; its time zone counts for schedules that carry none.

    Raises:
        InvalidEntry: a field is wrong; names the field, what was expected and what came.
    """

    #: Texts in place of the fields that could not be stored, by field; only a config entry has some.
    unstored: Mapping[str, str] = MappingProxyType({})
    #: The shape of its messages, and what it fills in; see :mod:`redbeat_lite.beat.dispatch.message_templates`.
    written: tuple[Any, Any] | None = None

    def __init__(
        self,
        name: str,
        task: Any,
        schedule: Schedule,
        args: Args = (),
        kwargs: Kwargs = None,
        options: Kwargs = None,
        *,
        expires: Expires = "interval",
        once: OnceField = False,
        misfire: MisfireField = "coalesce",
        jitter: Duration = 0.0,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        max_runs: int | None = None,
        enabled: bool = True,
        description: str = "",
        remove_when_done: bool = False,
        history: int | None = None,
        expect: ExpectField = None,
        on_failure: OnFailure = None,
        calendar: CalendarField = None,
        tags: Collection[str] = (),
        relative: bool = False,
        app: Any = None,
    ) -> None:
        # Celery's own __init__ is not called: it would fill last_run_at from a clock.
        self.name: Final[str] = fields.check_name("name", name)
        self.app = app
        try:
            task, args, kwargs, options = fields.expanded(task, args, kwargs, options)
            self.task: Final[str] = fields.check_name("task", getattr(task, "name", task))
            self.schedule: Final[BaseSchedule] = fields.as_schedule(schedule, relative, self.name)
            self.args: Final[tuple[Any, ...]] = fields.as_args(args)
            self.kwargs: Final[Mapping[str, Any]] = fields.as_mapping("kwargs", kwargs)
            self.options: Final[Mapping[str, Any]] = fields.as_options(options)
            self.expires: Final[float | str | None] = fields.as_expires(expires)
            self.once: Final[Once | None] = Once.of(once)
            self.misfire: Final[Misfire] = Misfire.of(misfire)
            self.jitter: Final[float] = fields.as_jitter(jitter)
            self.start_at: Final[datetime | None] = None if start_at is None else instants.aware("start_at", start_at)
            self.end_at: Final[datetime | None] = None if end_at is None else instants.aware("end_at", end_at)
            self.max_runs: Final[int | None] = fields.as_number("max_runs", max_runs, 1)
            self.enabled: Final[bool] = fields.of_type("enabled", enabled, bool)
            self.description: Final[str] = fields.of_type("description", description, str)
            self.remove_when_done: Final[bool] = fields.of_type("remove_when_done", remove_when_done, bool)
            self.history: Final[int | None] = fields.as_number("history", history, 0, MAX_HISTORY)
            self.expect: Final[Expect | Literal[False] | None] = Expect.of(expect)
            self.on_failure: Final[Pause | None] = Pause.of(on_failure)
            self.calendar: Final[Calendar | str | None] = fields.as_calendar(calendar)
            self.tags: Final[tuple[str, ...]] = fields.as_tags(tags)
            fields.check_together(self)
        except InvalidEntry as exc:
            raise exc.of(self.name) from None

    @classmethod
    def from_mapping(cls, name: str, written: Mapping[str, Any], *, app: Any = None) -> Entry:
        """An entry from a dict in the form of Celery's ``beat_schedule``, which may hold this package's fields too.

        Raises:
            InvalidEntry: a field is missing, unknown or wrong.
        """
        if isinstance(written, Entry):
            if written.name != name:
                raise InvalidEntry("entry", f"an Entry named {name!r}, as its key is", written, entry=str(name))
            return written
        if not isinstance(written, Mapping):
            raise InvalidEntry("entry", "a dict with task and schedule", written, entry=str(name))
        for field in written:
            if field not in fields.WRITABLE:
                raise InvalidEntry(
                    str(field), "a known field", written[field], entry=str(name), hint=fields.hint(str(field))
                )
        for required, expected in _REQUIRED.items():
            if written.get(required) is None:
                hint = None if required in written else "the field is missing"
                raise InvalidEntry(required, expected, None, entry=str(name), hint=hint)
        return cls(name, **written, app=app)

    # -- what the plan needs ------------------------------------------------------------------------------------------

    def rule(self, zone: tzinfo) -> Rule:
        """The schedule as a pure rule; ``zone`` counts where the schedule carries none."""
        if self._rule is None or self._rule[0] is not zone:
            self._rule = (zone, without(rule_of(self.schedule, zone), self.calendar))
        return self._rule[1]

    _rule: tuple[tzinfo, Rule] | None = None

    def zone(self, app_zone: tzinfo) -> tzinfo:
        """Return the zone of the schedule, or else that of the app."""
        return getattr(self.rule(app_zone), "zone", None) or app_zone

    @property
    def start_ms(self) -> int | None:
        """``start_at`` in epoch milliseconds."""
        return None if self.start_at is None else instants.to_ms(self.start_at)

    @property
    def end_ms(self) -> int | None:
        """``end_at`` in epoch milliseconds."""
        return None if self.end_at is None else instants.to_ms(self.end_at)

    @property
    def jitter_ms(self) -> int:
        """``jitter`` in milliseconds."""
        return round(self.jitter * 1000)

    @property
    def finished(self) -> bool:
        """Whether it has no occurrence to come, and is kept as a record."""
        return self.state is not None and self.state.finished and not isinstance(self.schedule, Manual)

    @property
    def status(self) -> Status:
        """What it is doing."""
        if self.paused_note is not None:
            return "paused"
        if not self.enabled:
            return "disabled"
        if isinstance(self.schedule, Manual):
            return "manual"
        return "finished" if self.finished else "frozen" if self.frozen_until else "waiting"

    # -- as a value ---------------------------------------------------------------------------------------------------

    def definition(self) -> dict[str, Any]:
        """The fields a user may write, by name."""
        return {field: getattr(self, field) for field in DEFINITION_FIELDS}

    def as_dict(self) -> dict[str, Any]:
        """Everything about it as JSON: definition, state and last run, instants in UTC; what the command line prints.

        An entry that was read asks the server for its last runs, as :attr:`last_run` does.
        """
        from .as_json import as_json

        return as_json(self)

    def replace(self, **changes: Unpack[Changes]) -> Entry:
        """A new entry with these fields changed, validated as a whole; it carries no state.

        Raises:
            InvalidEntry: a field is unknown or wrong.
        """
        before = self.definition()
        if fields.brings_arguments(changes.get("task")):
            before.update(args=(), kwargs={})
        return Entry.from_mapping(self.name, {**before, **changes}, app=self.app)

    def __eq__(self, other: object) -> bool:
        """Equal when a user would have to write the same to get both; state does not count.

        By Python's lights, to which ``1`` is ``True``; what an edit changes is told by the stored form.
        """
        if not isinstance(other, Entry):
            return NotImplemented
        mine, others = self.definition(), other.definition()
        same_schedule = told(mine.pop("schedule")) == told(others.pop("schedule"))
        return self.name == other.name and same_schedule and mine == others

    __hash__ = None  # type: ignore[assignment]  # mutable, and equal by value

    def __copy__(self) -> Entry:
        # Not through __reduce__: a copy of what was validated need not be validated, and the beat makes many.
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the app: it is not what a pickled entry is about, and often cannot be pickled.
        left_out = ("app", "_rule", "written", "read_rows")
        state = {key: value for key, value in vars(self).items() if key not in left_out}
        return Entry, (self.name, self.task, self.schedule), state

    def __repr__(self) -> str:
        call = ", ".join([*map(repr, self.args), *(f"{key}={value!r}" for key, value in self.kwargs.items())])
        return f"<Entry {self.name!r}: {self.task}({call}) {self.schedule!r}>"


def told(schedule: BaseSchedule) -> object:
    """What was written to tell one schedule from another, if it can be stored. To Celery, equal clocks are enough."""
    try:
        return {**encode_schedule(schedule), "resolved": None}
    except InvalidEntry:
        return schedule
