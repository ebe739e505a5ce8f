"""An entry: a named schedule with its task, arguments and policies."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, tzinfo
from typing import Any, TypeGuard

from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, schedule

from . import instants
from .errors import InvalidEntry
from .misfire import Misfire
from .once.policy import Once
from .schedules import Rule, coerce_schedule, rule_of
from .state import State, task_id

#: Longest name of an entry or a task, in characters.
MAX_NAME = 200

#: Unicode's control characters (Cc), and lone surrogates (Cs), which UTF-8 cannot hold.
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

#: What a user may write in an entry, in the order of the signature; the rest of an Entry is state.
DEFINITION_FIELDS = (
    "task",
    "schedule",
    "args",
    "kwargs",
    "options",
    "expires",
    "once",
    "misfire",
    "jitter",
    "start_at",
    "end_at",
    "max_runs",
    "enabled",
    "description",
    "remove_when_done",
)


class Entry(ScheduleEntry):  # type: ignore[misc]  # Celery ships no types
    """One named schedule; a :class:`celery.beat.ScheduleEntry`, so tools that know Celery know it.

    Parameters:
        name: 1 to 200 characters, no control characters.
        task: the task's registered name, or the task; or a :class:`redbeat_lite.Pipeline`, of which each occurrence
            starts a run.
        schedule: :func:`every`, :func:`cron`, :func:`at`, :func:`rrule`, any Celery schedule, seconds or a timedelta.
        args, kwargs: the task's arguments.
        options: options of ``apply_async``, such as ``queue`` and ``priority``.
        expires: ``None``, seconds or a timedelta after publishing, or ``"interval"``: until the next nominal time.
            An ``expires`` among the options takes precedence.
        once: keep one run of this entry queued or running at a time; ``True`` or a :class:`Once`.
        misfire: what to do about occurrences found too late: ``"coalesce"``, ``"skip"``, ``"all"`` or a
            :class:`Misfire`.
        jitter: seconds or a timedelta; each occurrence is put off by a fixed amount between 0 and this.
        start_at, end_at: aware datetimes; no occurrence lies before the one or after the other.
        max_runs: finish after this many occurrences.
        enabled: a disabled entry is kept, but does not fire.
        description: free text for people.
        remove_when_done: remove the entry when it finishes, instead of keeping its record.
        relative: Celery's own flag for interval schedules.
        app: the Celery app; its time zone counts for schedules that carry none.

    Read-only attributes, as last read from Redis: ``next_run_at`` (when it will fire, jitter included; ``None`` while
    paused, disabled or finished), ``last_run_at`` (nominal time of the last occurrence, ``None`` before the first),
    ``total_run_count``, ``last_task_id``, ``version``, ``generation``, ``paused_note`` (``None`` unless paused),
    ``source`` (``"runtime"``, or ``"config:<owner>"``), ``last_error``.

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
        relative: bool = False,
        app: Any = None,
    ) -> None:
        # Celery's own __init__ is not called: it would fill last_run_at from a clock.
        self.name = check_name("name", name)
        self.app = app
        try:
            task, kwargs = _expanded(task, kwargs)
            self.task = check_name("task", getattr(task, "name", task))
            self.schedule = _schedule(schedule, relative)
            self.args = _args(args)
            self.kwargs = _mapping("kwargs", kwargs)
            self.options = _options(options)
            self.expires = _expires(expires)
            self.once = Once.of(once)
            self.misfire = Misfire.of(misfire)
            self.jitter = _jitter(jitter)
            self.start_at = None if start_at is None else instants.aware("start_at", start_at)
            self.end_at = None if end_at is None else instants.aware("end_at", end_at)
            self.max_runs = _max_runs(max_runs)
            self.enabled = _of_type("enabled", enabled, bool)
            self.description = _of_type("description", description, str)
            self.remove_when_done = _of_type("remove_when_done", remove_when_done, bool)
            self._check_window()
        except InvalidEntry as exc:
            raise exc.of(self.name) from None
        self.state: State | None = None
        self.due: int | None = None
        self.owner: str | None = None
        self.local: tuple[str, ...] = ()
        #: The prepared message of this definition, and whose it is; see :mod:`redbeat_lite.prepared`.
        self.template: tuple[object, Any] | None = None

    @classmethod
    def from_mapping(cls, name: str, fields: Mapping[str, Any], *, app: Any = None) -> Entry:
        """An entry from a dict in the form of Celery's ``beat_schedule``, which may hold this package's fields too.

        Raises:
            InvalidEntry: a field is missing, unknown or wrong.
        """
        if isinstance(fields, Entry):
            return fields
        if not isinstance(fields, Mapping):
            raise InvalidEntry("entry", "a dict with task and schedule", fields, entry=str(name))
        known = (*DEFINITION_FIELDS, "relative")
        for field in fields:
            if field not in known:
                near = difflib.get_close_matches(str(field), known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else None
                raise InvalidEntry(str(field), "a known field", fields[field], entry=str(name), hint=hint)
        for required in ("task", "schedule"):
            if fields.get(required) is None:
                raise InvalidEntry(required, "a value", None, entry=str(name))
        return cls(name, **fields, app=app)

    def _check_window(self) -> None:
        if self.start_at and self.end_at and self.end_at < self.start_at:
            raise InvalidEntry("end_at", f"an instant not before start_at ({self.start_at.isoformat()})", self.end_at)

    # -- what the plan needs ------------------------------------------------------------------------------------------

    def rule(self, zone: tzinfo) -> Rule:
        """The schedule as a pure rule; ``zone`` counts where the schedule carries none."""
        if self._rule is None or self._rule[0] is not zone:
            self._rule = (zone, rule_of(self.schedule, zone))
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

    # -- read-only state ----------------------------------------------------------------------------------------------

    @property
    def known_state(self) -> State:
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
        return self.state is not None and self.state.finished

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
        return Entry.from_mapping(self.name, {**self.definition(), **changes}, app=self.app)

    def __eq__(self, other: object) -> bool:
        """Equal when a user would have to write the same to get both; state does not count."""
        if not isinstance(other, Entry):
            return NotImplemented
        return self.name == other.name and self.definition() == other.definition()

    __hash__ = None  # type: ignore[assignment]  # mutable, and equal by value

    def __copy__(self) -> Entry:
        # Not through __reduce__: a copy of what was validated need not be validated, and the beat makes many.
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the app: it is not what a pickled entry is about, and often cannot be pickled.
        state = {key: value for key, value in vars(self).items() if key not in ("app", "_rule", "template")}
        return _restore, (self.name, self.task, self.schedule), state

    def __repr__(self) -> str:
        call = ", ".join([*map(repr, self.args), *(f"{key}={value!r}" for key, value in self.kwargs.items())])
        return f"<Entry {self.name!r}: {self.task}({call}) {self.schedule!r}>"


def _restore(name: str, task: str, schedule: BaseSchedule) -> Entry:
    return Entry(name, task, schedule)


def check_name(field: str, value: object) -> str:
    """``value`` as a name of an entry or a task.

    Raises:
        InvalidEntry: not text, empty, over 200 characters, or with control characters in it.
    """
    if not is_name(value):
        raise InvalidEntry(field, f"text of 1 to {MAX_NAME} characters without control characters", value)
    return value


def is_name(value: object) -> TypeGuard[str]:
    """Whether ``value`` can be the name of an entry or a task."""
    return isinstance(value, str) and 1 <= len(value) <= MAX_NAME and _FORBIDDEN.search(value) is None


def _schedule(value: Any, relative: bool) -> BaseSchedule:
    rule = coerce_schedule(value)
    if relative and type(rule) is schedule:
        return schedule(rule.run_every, relative=True)
    return rule


def _args(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise InvalidEntry("args", "a list or tuple", value, hint="one argument is written (value,)")
    return tuple(value)


def _mapping(field: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidEntry(field, "a dict", value)
    for key in value:
        if not isinstance(key, str):
            raise InvalidEntry(field, "a dict with text keys", key)
    return dict(value)


def _options(value: Any) -> dict[str, Any]:
    options = _mapping("options", value)
    _mapping("options.headers", options.get("headers"))  # ours are merged into them at each run
    return options


def _of_type(field: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise InvalidEntry(field, {bool: "True or False", str: "text"}[kind], value)
    return value


def _seconds(value: Any) -> float | None:
    """A timedelta or a finite number of seconds as a float, anything else as ``None``."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def _expires(value: Any) -> float | str | None:
    if value is None or value == "interval":
        return value  # type: ignore[no-any-return]
    seconds = _seconds(value)
    if seconds is None or seconds <= 0:
        raise InvalidEntry("expires", 'None, positive seconds, a timedelta or "interval"', value)
    return seconds


def _jitter(value: Any) -> float:
    seconds = _seconds(value)
    if seconds is None or seconds < 0:
        raise InvalidEntry("jitter", "seconds or a timedelta, not negative", value)
    return seconds


def _max_runs(value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise InvalidEntry("max_runs", "None or a whole number from 1", value)
    return value


def _expanded(task: Any, kwargs: Any) -> tuple[Any, Any]:
    """What starts a run of it, if ``task`` is a pipeline."""
    if not hasattr(task, "as_entry"):
        return task, kwargs
    if kwargs:
        raise InvalidEntry("kwargs", "none beside a pipeline, which has its own params", kwargs)
    fields = task.as_entry()
    return fields["task"], fields["kwargs"]
