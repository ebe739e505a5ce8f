"""Checks of the doctor for run times: calendars, clock changes, and crowded hours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta, tzinfo

from .._base.clock import wall_ms
from .._base.times import from_ms
from ..entries.clock_change_words import moves
from ..entries.entry import Entry
from ..entries.lifecycle import within
from ..entries.words import counted, listed
from ..rules import Every, Rule, next_ms
from ..rules.clock_changes import ZonedRule
from ..rules.cron import either_day_words
from ..rules.zones import zone_name
from .examination import Finding, Subject

#: A calendar that ends within this time is worth a finding.
_SOON = timedelta(days=60)

#: Days from now in which clock changes are searched.
DAYS = 30

#: Count of entries at one full hour that is worth a finding.
CROWD = 20

_MINUTE = 60_000  # ms
_QUARTER = 900_000  # ms
_DAY = 86_400_000  # ms


def calendars(subject: Subject) -> Iterator[Finding]:
    """Find calendars in use that end soon, and entries with an old revision of a calendar."""
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
    """Return the count and the names of entries, in words."""
    names = [entry.name for entry in entries]
    return f"{counted(len(names), 'entry', 'entries')}: {listed(names)}"


def clock_changes(subject: Subject) -> Iterator[Finding]:
    """Find runs that a clock change of the next month moves, or merges with other runs."""
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
    """Find cron entries with both day fields, because many users expect that both must match."""
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
    crowds = _find_crowds(subject.entries, zone)
    if not crowds:
        return
    times = []
    all_names: list[str] = []
    for hour, names in crowds:
        times.append(f"{len(names)} at {from_ms(hour).astimezone(zone):%H:%M}")
        all_names += names
    more = f" and at {len(times) - 5} more" if len(times) > 5 else ""
    entries = tuple(dict.fromkeys(all_names))
    yield Finding(
        "hot-spot",
        "note",
        f"{counted(len(entries), 'entry runs', 'entries run')} at the same full hours, without "
        f"jitter: {', '.join(times[:5])}{more}",
        "Workers, databases and whatever the tasks call get all of it at once.",
        "Give entries that need not be so exact a jitter, such as jitter=300, or minutes of their "
        "own: H in cron.",
        entries,
    )


def _find_crowds(entries: Iterable[Entry], zone: tzinfo) -> list[tuple[int, list[str]]]:
    """Return the full hours of the next day, in epoch ms, with the entries that run then.

    Only hours with a crowd of entries are returned, the largest crowd first.
    """
    now = wall_ms()
    hours_by_zone: dict[str, list[int]] = {}
    names_at: dict[int, list[str]] = defaultdict(list)
    for entry in entries:
        if entry.due is None or entry.jitter:
            continue
        rule = entry.rule(zone)
        own_zone = rule.zone if isinstance(rule, ZonedRule) else zone
        name = zone_name(own_zone)
        if name not in hours_by_zone:
            hours_by_zone[name] = _full_hours(own_zone, now)
        for hour in _hours_of(entry, rule, hours_by_zone[name]):
            names_at[hour].append(entry.name)
    crowds = [(hour, names) for hour, names in names_at.items() if len(names) >= CROWD]
    return sorted(crowds, key=lambda crowd: (-len(crowd[1]), crowd[0]))


def _hours_of(entry: Entry, rule: Rule, full_hours: Iterable[int]) -> Iterator[int]:
    """Yield the full hours at which an entry runs by its rule.

    An entry that runs every minute yields nothing, because it causes no more load at a full hour
    than at any other minute. The next run of the rule is calculated at most twice per hour.
    """
    if not isinstance(rule, ZonedRule | Every):
        # Other rules have one instant, follow the sun, or are slow classes of users.
        return
    run = entry.due
    for hour in full_hours:
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
    """Return the full hours of the next day in a time zone, in epoch ms."""
    # All time zones in use have offsets of whole quarters of an hour.
    first = (now // _QUARTER + 1) * _QUARTER
    quarters = range(first, first + _DAY, _QUARTER)
    return [quarter for quarter in quarters if not from_ms(quarter).astimezone(zone).minute]
