"""Checks of the doctor for run times: calendars, clock changes, and crowded hours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta, tzinfo

from .._base.clock import wall_ms
from .._base.times import from_ms
from ..entries.clock_change_words import moves
from ..entries.entry import Entry
from ..entries.lifecycle import within
from ..entries.rule_words import either_day_words
from ..entries.words import counted, listed
from ..rules import Every, next_ms
from ..rules.clock_changes import ZonedRule
from ..rules.zones import zone_name
from .examination import Finding, Subject

#: A calendar that ends within this time is worth a finding.
_SOON = timedelta(days=60)

#: How far ahead clock changes are looked for, in days.
DAYS = 30

#: Entries at one full hour that are worth a finding.
CROWD = 20

_MINUTE = 60_000  # ms
_QUARTER = 900_000  # ms
_DAY = 86_400_000  # ms


def calendars(subject: Subject) -> Iterator[Finding]:
    """Find calendars in use that end soon, and entries that have missed a revision of theirs."""
    soon = from_ms(wall_ms()).date() + _SOON
    for name, calendar in subject.store.calendars().items():
        users = [entry for entry in subject.entries if entry.calendar_name == name]
        command = f"celery -A ... redbeat calendars set {name} …"
        if users and calendar.until < soon:
            yield Finding(
                "calendar-ends",
                "warning",
                f"calendar {calendar} has days until {calendar.until}, and is used by {_of(users)}",
                "After that they run every day.",
                f"Store it with later days: {command}",
                tuple(entry.name for entry in users),
            )
        behind = [entry for entry in users if entry.calendar != calendar]
        if behind:
            yield Finding(
                "calendar-behind",
                "warning",
                f"calendar {calendar} is stored, and another revision is used by {_of(behind)}",
                "They may leave out other days than the calendar says.",
                f"Store it again: {command}",
                tuple(entry.name for entry in behind),
            )


def _of(entries: Sequence[Entry]) -> str:
    names = [entry.name for entry in entries]
    return f"{counted(len(names), 'entry', 'entries')}: {listed(names)}"


def clock_changes(subject: Subject) -> Iterator[Finding]:
    """Find runs that a clock change within the next month moves, or merges with others."""
    now = wall_ms() // 1000
    for sentence, names in moves(subject.entries, subject.app.timezone, now, now + DAYS * 86_400):
        yield Finding(
            "clock-change",
            "note",
            sentence,
            "The wall times in between do not exist on that day.",
            "Nothing, if you accept that. Otherwise choose a time that exists every day, or a zone "
            "without clock changes.",
            names,
        )


def either_day(subject: Subject) -> Iterator[Finding]:
    """Find cron entries with both day fields: many users expect that both must match."""
    rules: dict[str, str] = {}
    for entry in subject.entries:
        words = either_day_words(entry.schedule)
        if words is not None:
            rules[entry.name] = words
    if rules:
        yield Finding(
            "either-day",
            "warning",
            f"{counted(len(rules), 'entry runs', 'entries run')} if day of month or day of week "
            f"matches: {listed(rules)}",
            "In cron either day is enough, so they may run far more often than you expect.",
            "Nothing, if you intend this; two entries are clearer. The first one: "
            f"{next(iter(rules.values()))}.",
            tuple(rules),
        )


def hot_spots(subject: Subject) -> Iterator[Finding]:
    """Find full hours of the next day, in the zone of the app, at which many entries run."""
    zone = subject.app.timezone
    now = wall_ms()
    names_at: dict[int, list[str]] = defaultdict(list)
    hours_of_zone: dict[str, list[int]] = {}
    for entry in subject.entries:
        if entry.due is None or entry.jitter:
            continue
        for hour in _hours_of(entry, zone, now, hours_of_zone):
            names_at[hour].append(entry.name)
    crowded = [hour for hour, names in names_at.items() if len(names) >= CROWD]
    if not crowded:
        return
    crowded.sort(key=lambda hour: (-len(names_at[hour]), hour))
    times = []
    for hour in crowded[:5]:
        times.append(f"{len(names_at[hour])} at {from_ms(hour).astimezone(zone):%H:%M}")
    more = f" and at {len(crowded) - 5} more" if len(crowded) > 5 else ""
    names = tuple(dict.fromkeys(name for hour in crowded for name in names_at[hour]))
    yield Finding(
        "hot-spot",
        "note",
        f"{counted(len(names), 'entry runs', 'entries run')} at the same full hours, without "
        f"jitter: {', '.join(times)}{more}",
        "Workers, databases and whatever the tasks call get all of it at once.",
        "Give entries that need not be so exact a jitter, such as jitter=300, or minutes of their "
        "own: H in cron.",
        names,
    )


def _hours_of(
    entry: Entry,
    zone: tzinfo,
    now: int,
    hours_of_zone: dict[str, list[int]],
) -> Iterator[int]:
    """Yield the full hours of the next day, in epoch ms, at which an entry runs.

    The rule is asked at most twice per hour. An entry that runs every minute yields nothing,
    because it is no heavier at a full hour than at any other minute.

    Parameters:
        hours_of_zone: cache of the full hours of each zone by its name.
    """
    rule = entry.rule(zone)
    if isinstance(rule, ZonedRule):
        zone = rule.zone
    elif not isinstance(rule, Every):  # one instant, the sun, or a slow class of users
        return
    name = zone_name(zone)
    if name not in hours_of_zone:
        hours_of_zone[name] = _full_hours(zone, now)
    run = entry.due
    for hour in hours_of_zone[name]:
        if run is not None and run < hour:
            last = rule.last_ms(run, hour - 1) if isinstance(rule, Every) else hour - 1
            run = next_ms(rule, last)
        if run is None:
            return
        if run == hour and within(entry, from_ms(hour)):
            run = next_ms(rule, hour)
            if run is None or run - hour > _MINUTE:
                yield hour


def _full_hours(zone: tzinfo, now: int) -> list[int]:
    """Return the full hours of the next day in a zone, in epoch ms."""
    # All zones in use have offsets of whole quarters of an hour.
    first = (now // _QUARTER + 1) * _QUARTER
    quarters = range(first, first + _DAY, _QUARTER)
    return [quarter for quarter in quarters if not from_ms(quarter).astimezone(zone).minute]
