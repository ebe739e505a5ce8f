"""Seeing in a test when an app's schedule fires, and what a pipeline does, without a beat, a worker
or a server.

Freezing the clock needs freezegun, from the ``testing`` extra; planning alone does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import current_app

from ._base.errors import ConfigurationError
from ._base.times import Duration, seconds_of, to_ms
from .entries import lifecycle
from .entries.configured import as_written, config_entry
from .entries.entry import Entry
from .entries.message import evaluated
from .entries.preview import Upcoming, walk
from .pipeline.rehearsal import Rehearsal, rehearse
from .rules import next_ms
from .rules.zones import zone_of
from .settings import NO_SERVER, Settings

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["Fired", "Rehearsal", "ScheduleClock", "rehearse", "schedule_clock"]


class Fired(NamedTuple):
    """One occurrence, as a worker would have received it.

    Parameters:
        name: the entry's name.
        task: the task's name.
        nominal: the instant the schedule says, aware, in the clock's zone.
        args, kwargs: the task's arguments.
        at: when it is sent: ``nominal`` plus the entry's jitter.
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
    """A clock that stands at ``start`` over the schedule of an app, as if its very first beat were
    started then.

    Nothing is sent and no server is asked. When something fires is decided by the code of the beat
    itself.

    Parameters:
        start: ISO 8601 text such as ``"2026-03-29 00:00"``, or a datetime; one without a zone is
            read in ``tz``.
        tz: the zone in which times are read and shown; by default the app's. Which zone a schedule
            runs in is the app's and the entry's affair, as ever.
        app: whose ``beat_schedule`` runs; by default the current app.
        entries: more entries, as :class:`redbeat_lite.Entry` or in the form of ``beat_schedule``;
            one with the name of an entry of the app takes its place.

    Raises:
        InvalidEntry: an entry is wrong; a beat would log that and go on without it.
    """
    app = current_app._get_current_object() if app is None else app
    # As a beat does: periodic tasks may be added as the app is finalized.
    app.loader.import_default_modules()
    app.finalize()
    zone = app.timezone if tz is None else zone_of(tz)
    return ScheduleClock(_instant("start", start, zone), zone, _entries(app, entries), app.timezone)


class ScheduleClock:
    """What :func:`schedule_clock` makes.

    As a context manager it freezes the time of the process, by freezegun: ``datetime.now(tz)`` and
    ``time.time()`` say what the clock says, and a naive ``datetime.now()`` says it in UTC.
    """

    def __init__(
        self, start: datetime, zone: tzinfo, entries: Mapping[str, Entry], app_zone: tzinfo
    ) -> None:
        self._zone = zone
        self._now = start
        self._entries = entries
        for entry in entries.values():
            _begin(entry, to_ms(start), app_zone)
        due = sorted(
            (each for each in entries.values() if each.due is not None), key=attrgetter("due")
        )
        self._stream = walk(due, now=to_ms(start), zone=app_zone)
        self._ahead = next(self._stream, None)
        self._freezer: Any = None
        self._frozen: Any = None

    @property
    def now(self) -> datetime:
        """What the clock says, in its zone."""
        return self._now.astimezone(self._zone)

    def run(self, until: str | datetime | Duration = timedelta(days=1)) -> list[Fired]:
        """Move on to ``until``, and list what fired on the way: from the present instant on, before
        ``until``.

        Parameters:
            until: ISO 8601 text or a datetime as for ``start``, or how far to go in real time:
                seconds, a timedelta or a text such as ``"1h30m"``. A day is 24 hours, which is not
                from midnight to midnight where the clocks change: there, name the end.
        """
        return list(self.walk(until))

    def walk(self, until: str | datetime | Duration = timedelta(days=1)) -> Iterator[Fired]:
        """As :meth:`run`, occurrence by occurrence: in the body of a loop over it, it is the time
        at which each fires.

        The clock has reached ``until`` when the loop is through.
        """
        far = (
            None if isinstance(until, str) and until.isdecimal() else seconds_of(until)
        )  # 20261201 is a day
        end = (
            _instant("until", until, self._zone)
            if far is None
            else self._now + timedelta(seconds=far)
        )
        if end < self._now:
            raise ValueError(
                f"until: expected an instant that is still to come, got {until!r} at {self.now}"
            )
        while self._ahead is not None and self._ahead.at < end:
            upcoming, self._ahead = self._ahead, next(self._stream, None)
            self._stand_at(upcoming.at)
            yield self._fired(upcoming)
        self._stand_at(end)

    def __enter__(self) -> ScheduleClock:
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
        self._freezer = self._frozen = None

    def _stand_at(self, instant: datetime) -> None:
        self._now = instant
        if self._frozen is not None:
            self._frozen.move_to(instant)

    def _fired(self, upcoming: Upcoming) -> Fired:
        entry = self._entries[upcoming.name]
        return Fired(
            entry.name,
            entry.task,
            upcoming.nominal.astimezone(self._zone),
            *evaluated(entry),
            upcoming.at.astimezone(self._zone),
        )


def _entries(
    app: Celery, more: Iterable[Entry] | Mapping[str, Mapping[str, Any]]
) -> dict[str, Entry]:
    settings = Settings.from_app(app, url=NO_SERVER)
    added = more.items() if isinstance(more, Mapping) else ((entry.name, entry) for entry in more)
    given = {**as_written(app.conf.beat_schedule or {}), **as_written(dict(added))}
    # A copy: an Entry of the caller's gets no state from here.
    return {
        name: copy(config_entry(settings, name, fields, app=app)) for name, fields in given.items()
    }


def _begin(entry: Entry, start: int, zone: tzinfo) -> None:
    lifecycle.check(entry, start, zone)
    state = lifecycle.created(entry, start, zone)
    # A new entry waits for what is later than its creation. A day that begins at midnight has its
    # midnight's runs.
    at_start = next_ms(entry.rule(zone), start - 1) == start
    if at_start and (entry.start_ms is None or entry.start_ms <= start):
        state = replace(state, nominal=start)
    entry.state, entry.due = state, lifecycle.due_time(entry, state, zone)


def _instant(field: str, value: object, zone: tzinfo) -> datetime:
    instant = datetime.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(instant, datetime):
        raise TypeError(f"{field}: expected ISO 8601 text or a datetime, got {value!r}")
    return (instant if instant.tzinfo is not None else instant.replace(tzinfo=zone)).astimezone(UTC)
