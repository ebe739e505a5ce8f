"""Tests of schedules and pipelines without a beat, a worker or a server.

:func:`schedule_clock` shows the runs of an app's schedule, :func:`rehearse` those of a pipeline.
To freeze the time of the process, install freezegun, which the extra ``testing`` contains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from datetime import UTC, datetime, timedelta, tzinfo
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import current_app
from msgspec.structs import replace

from ._base.errors import ConfigurationError
from ._base.fields import local_instant
from ._base.times import Duration, seconds_of, to_ms
from .entries import lifecycle
from .entries.configured import as_written, config_entry
from .entries.entry import Entry
from .entries.message import evaluated
from .entries.preview import Upcoming, upcoming_runs
from .pipeline.rehearsal import Rehearsal, rehearse
from .rules.zones import zone_of
from .settings import NO_SERVER, Settings

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["Fired", "Rehearsal", "ScheduleClock", "rehearse", "schedule_clock"]


class Fired(NamedTuple):
    """Occurrence, as a worker would have received it.

    Parameters:
        name: the entry's name.
        task: the task's name.
        nominal: nominal time, which the schedule says; aware, in the clock's zone.
        args, kwargs: the task's arguments.
        at: time of sending: ``nominal`` plus the entry's jitter.
    """

    name: str
    task: str
    nominal: datetime
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    at: datetime


def schedule_clock(
    start: str | datetime,
    *,
    tz: str | tzinfo | None = None,
    app: Celery | None = None,
    entries: Iterable[Entry] | Mapping[str, Mapping[str, Any]] = (),
) -> ScheduleClock:
    """Return a clock at ``start`` for the schedule of an app, as if its first beat started then.

    The clock sends nothing and asks no server. The code of the beat decides when entries fire.

    Parameters:
        start: ISO 8601 text such as ``"2026-03-29 00:00"``, or a datetime; without a zone, it is a
            local time in ``tz``.
        tz: the zone in which times are read and shown; by default the app's. It does not change the
            zone in which a schedule runs.
        app: the app whose ``beat_schedule`` runs; by default the current app.
        entries: more entries, as :class:`redbeat_lite.Entry` or in the form of ``beat_schedule``;
            each replaces the app's entry of the same name.

    Raises:
        InvalidEntry: an entry is wrong; a beat would log the error and run the other entries.
    """
    app = app or current_app._get_current_object()
    # A beat imports and finalizes, too: the app may add periodic tasks when it is finalized.
    app.loader.import_default_modules()
    app.finalize()
    zone = app.timezone if tz is None else zone_of(tz)
    begin = local_instant("start", start, zone).astimezone(UTC)
    return ScheduleClock(begin, zone, _begun_entries(app, entries, to_ms(begin)))


class ScheduleClock:
    """Clock for a schedule; :func:`schedule_clock` returns one.

    As a context manager it freezes the time of the process by freezegun: ``datetime.now(tz)`` and
    ``time.time()`` return the time of the clock, and a naive ``datetime.now()`` returns it in UTC.
    """

    def __init__(self, start: datetime, zone: tzinfo, entries: Iterable[Entry]) -> None:
        self._zone = zone
        self._now = start
        due_entries = [entry for entry in entries if entry.due is not None]
        due_entries.sort(key=attrgetter("due"))
        # All occurrences to come, each with its entry.
        self._stream = upcoming_runs(due_entries, now=to_ms(start))
        # The first occurrence that has not been returned yet; None after the last one.
        self._ahead = next(self._stream, None)
        # freezegun's context, and the time of the process in it; None outside a with block.
        self._freezer: Any = None
        self._frozen: Any = None

    @property
    def now(self) -> datetime:
        """Time of the clock, in its zone."""
        return self._now.astimezone(self._zone)

    def run(self, until: str | datetime | Duration = timedelta(days=1)) -> list[Fired]:
        """Move the clock to ``until``, and return the occurrences from now on and before ``until``.

        Parameters:
            until: ISO 8601 text or a datetime as for ``start``; or a length of time: seconds, a
                timedelta or a text such as ``"1h30m"``. A day is always 24 hours, so on the day of
                a clock change it does not lead from midnight to midnight; then give the end.
        """
        return list(self.walk(until))

    def walk(self, until: str | datetime | Duration = timedelta(days=1)) -> Iterator[Fired]:
        """Yield the occurrences that :meth:`run` returns, one by one.

        In the body of a loop over the occurrences, the clock shows the time at which the present
        one is sent. After the loop, it shows ``until``.
        """
        # A text of digits, such as 20261201, is a date and no number of seconds.
        is_date = isinstance(until, str) and until.isdecimal()
        seconds = None if is_date else seconds_of(until)
        if seconds is None:
            end = local_instant("until", until, self._zone).astimezone(UTC)
        else:
            end = self._now + timedelta(seconds=seconds)
        if end < self._now:
            raise ValueError(
                f"until: expected an instant that is still to come, got {until!r} at {self.now}"
            )
        while self._ahead is not None and self._ahead[0].at < end:
            upcoming, entry = self._ahead
            self._ahead = next(self._stream, None)
            self._stand_at(upcoming.at)
            yield self._fired(upcoming, entry)
        self._stand_at(end)

    def __enter__(self) -> ScheduleClock:
        """Freeze the time of the process at the time of the clock."""
        try:
            from freezegun import freeze_time
        except ImportError:
            needed = (
                "freezegun is needed; in the checkout of redbeat_lite: pip install '.[testing]'"
            )
            raise ConfigurationError(needed) from None
        self._freezer = freeze_time(self._now)
        self._frozen = self._freezer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._freezer.stop()
        self._frozen = None

    def _stand_at(self, instant: datetime) -> None:
        """Set the clock, and the frozen time of the process, if it is frozen."""
        self._now = instant
        if self._frozen is not None:
            self._frozen.move_to(instant)

    def _fired(self, upcoming: Upcoming, entry: Entry) -> Fired:
        """Return an occurrence as a worker would have received it."""
        args, kwargs = evaluated(entry)
        nominal = upcoming.nominal.astimezone(self._zone)
        at = upcoming.at.astimezone(self._zone)
        return Fired(entry.name, entry.task, nominal, args, kwargs, at)


def _begun_entries(
    app: Celery, more: Iterable[Entry] | Mapping[str, Mapping[str, Any]], start: int
) -> Iterator[Entry]:
    """Yield the entries of an app and ``more`` entries, as if all were added at ``start``.

    An entry of ``more`` replaces the app's entry of the same name.
    """
    settings = Settings.from_app(app, url=NO_SERVER)
    added = more if isinstance(more, Mapping) else {entry.name: entry for entry in more}
    schedule = {**as_written(app.conf.beat_schedule or {}), **as_written(added)}
    for name, fields in schedule.items():
        # A copy, because the clock sets its state, and must not change an entry of the caller.
        entry = copy(config_entry(settings, name, fields, app))
        _begin(entry, start)
        yield entry


def _begin(entry: Entry, start: int) -> None:
    """Give an entry the state that it would have if it were added at ``start`` (epoch ms)."""
    # This only refuses an entry without a next run, or with options that do not fit its runs.
    lifecycle.check(entry, start)
    state = lifecycle.created(entry, start)
    # A new entry only has occurrences after its creation. But a test that starts its clock at
    # midnight expects the runs of that midnight, too.
    at_start = entry.rule.next_ms(start - 1) == start
    if at_start and (entry.start_ms is None or entry.start_ms <= start):
        state = replace(state, nominal=start)
    lifecycle.set_state(entry, state)
