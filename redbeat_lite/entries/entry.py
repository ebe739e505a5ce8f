"""An entry: a named schedule with its task, arguments and policies."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import Any

from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule

from .. import instants
from ..errors import InvalidEntry
from ..expect import Expect, Pause
from ..once.policy import Once
from ..public import public
from ..schedules import Manual, Rule, encode_schedule, rule_of
from ..schedules.calendars import without
from ..schedules.misfire import Misfire
from ..storage.changes import Change
from . import fields
from .fields import DEFINITION_FIELDS
from .recorded import Recorded
from .state import EntryState, task_id
from .together import check_together

_REQUIRED = {
    "task": "the name of a task, a task, a signature or a Pipeline",
    "schedule": "seconds, a timedelta or a schedule",
}


@public
class Entry(Recorded, ScheduleEntry):  # type: ignore[misc]  # Celery ships no types
    """One named schedule; a :class:`celery.beat.ScheduleEntry`, so tools that know Celery know it.

    Parameters:
        name: 1 to 200 characters, no control characters.
        task: the task's registered name, or the task; or a signature (``add.s(1, 2)``), which brings its arguments and
            options; or a chain, group or chord, which a worker with ``install()`` applies; or a
            :class:`redbeat_lite.Pipeline`, of which each occurrence starts a run.
        schedule: :func:`every`, :func:`cron`, :func:`at`, :func:`rrule`, :func:`manual`, any Celery schedule,
            seconds or a timedelta.
        args, kwargs: the task's arguments.
        options: options of ``apply_async``, such as ``queue`` and ``priority``. Those of no known name are handed on to
            the task's ``apply_async`` and to the broker; one that looks misspelt is refused.
        expires: ``None``, seconds or a timedelta after publishing, or ``"interval"``: for the gap to the next run.
            An ``expires`` among the options takes precedence.
        once: keep one run of this entry queued or running at a time; ``True`` or a :class:`Once`.
        misfire: what to do about occurrences found too late: ``"coalesce"``, ``"skip"``, ``"all"``, a :class:`Misfire`.
        jitter: seconds or a timedelta; each occurrence is put off by a fixed amount between 0 and this.
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

    Read-only attributes, as last read from Redis: ``next_run_at`` (when it will fire, jitter included; ``None`` while
    paused, disabled, finished or manual), ``last_run_at`` (nominal time of the last occurrence, ``None`` before any),
    ``total_run_count``, ``last_task_id``, ``version``, ``generation``, ``paused_note`` (``None`` unless paused),
    ``source`` (``"runtime"``, or ``"config:<owner>"``), ``last_error``, ``last_change`` (a :class:`Change`, of an entry
    that was read by its name; else ``None``).

    What workers have recorded of its last runs, at most 100 of them, is read when one of these is first asked for,
    together with that of up to 100 entries of the same page: ``last_run`` (a :class:`Run` without worker and error),
    ``last_success_at`` (nominal time), ``failures_in_a_row``. ``None`` and 0 where no worker records.

    Raises:
        InvalidEntry: a field is wrong; names the field, what was expected and what came.
    """

    def __init__(
        self,
        name: str,
        task: Any,
        schedule: Any,
        args: Any = (),
        kwargs: Any = None,
        options: Any = None,
        *,
        expires: Any = "interval",
        once: Any = False,
        misfire: Any = "coalesce",
        jitter: Any = 0.0,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        max_runs: int | None = None,
        enabled: bool = True,
        description: str = "",
        remove_when_done: bool = False,
        history: int | None = None,
        expect: Any = None,
        on_failure: Any = None,
        calendar: Any = None,
        tags: Any = (),
        relative: bool = False,
        app: Any = None,
    ) -> None:
        # Celery's own __init__ is not called: it would fill last_run_at from a clock.
        self.name = fields.check_name("name", name)
        self.app = app
        try:
            task, args, kwargs, options = fields.expanded(task, args, kwargs, options)
            self.task = fields.check_name("task", getattr(task, "name", task))
            self.schedule = fields.as_schedule(schedule, relative, self.name)
            self.args = fields.as_args(args)
            self.kwargs = fields.as_mapping("kwargs", kwargs)
            self.options = fields.as_options(options)
            self.expires = fields.as_expires(expires)
            self.once = Once.of(once)
            self.misfire = Misfire.of(misfire)
            self.jitter = fields.as_jitter(jitter)
            self.start_at = None if start_at is None else instants.aware("start_at", start_at)
            self.end_at = None if end_at is None else instants.aware("end_at", end_at)
            self.max_runs = fields.as_max_runs(max_runs)
            self.enabled = fields.of_type("enabled", enabled, bool)
            self.description = fields.of_type("description", description, str)
            self.remove_when_done = fields.of_type("remove_when_done", remove_when_done, bool)
            self.history = fields.as_history(history)
            self.expect = Expect.of(expect)
            self.on_failure = Pause.of(on_failure)
            self.calendar = fields.as_calendar(calendar)
            self.tags = fields.as_tags(tags)
            check_together(self)
        except InvalidEntry as exc:
            raise exc.of(self.name) from None
        self.state: EntryState | None = None
        self.due: int | None = None
        self.owner: str | None = None
        self.frozen_until: datetime | None = None  #: known to who asks :attr:`Schedules.freezes` for it
        self.last_change: Change | None = None
        self.local: tuple[str, ...] = ()
        #: What was noted of the runs of a schedule that cannot be stored; see :mod:`redbeat_lite.entries.sameness`.
        self.runs: tuple[int, ...] = ()
        #: The shape of its messages, and what it fills in; see :mod:`redbeat_lite.beat.dispatch.prepared`.
        self.written: tuple[Any, Mapping[str, str]] | None = None

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
    def known_state(self) -> EntryState:
        """The state of an entry that was read or written."""
        assert self.state is not None
        return self.state

    @property
    def next_run_at(self) -> datetime | None:
        return None if self.due is None else instants.from_ms(self.due)

    @property
    def last_run_at(self) -> datetime | None:
        last = self.state.last if self.state else None
        return None if last is None else instants.from_ms(last)

    @property
    def total_run_count(self) -> int:
        return self.state.count if self.state else 0

    @property
    def skipped_count(self) -> int:
        return self.state.skipped if self.state else 0

    @property
    def last_task_id(self) -> str | None:
        if self.state is None or self.state.last is None:
            return None
        return task_id(self.name, self.state.generation, self.state.last)

    @property
    def version(self) -> int:
        return self.state.version if self.state else 0

    @property
    def generation(self) -> str | None:
        return self.state.generation if self.state else None

    @property
    def paused_note(self) -> str | None:
        return self.state.note if self.state and self.state.paused else None

    @property
    def finished(self) -> bool:
        return self.state is not None and self.state.finished and not isinstance(self.schedule, Manual)

    @property
    def last_error(self) -> str | None:
        return (self.state.error or None) if self.state else None

    @property
    def source(self) -> str:
        return "runtime" if self.owner is None else f"config:{self.owner}"

    # -- as a value ---------------------------------------------------------------------------------------------------

    def definition(self) -> dict[str, Any]:
        """The fields a user may write, by name."""
        return {field: getattr(self, field) for field in DEFINITION_FIELDS}

    def replace(self, **changes: Any) -> Entry:
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
