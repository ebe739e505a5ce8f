"""Checks of the doctor for run times: calendars, clock changes, and crowded hours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta, tzinfo
from itertools import chain

from .._base.clock import wall_ms
from .._base.times import from_ms
from ..entries.clock_change_words import moves
from ..entries.entry import Entry
from ..entries.words import counted, listed
from ..rules import Every, next_ms
from ..rules.clock_changes import ZonedRule
from ..rules.cron import either_day_words
from .examination import Finding, Subject

#: A calendar that ends within this time is worth a finding.
_SOON = timedelta(days=60)

#: Days from now in which clock changes are searched.
DAYS = 30

#: Count of entries at one instant that is worth a finding.
CROWD = 20

_MINUTE = 60_000  # ms


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
    """Find instants at which many entries run next."""
    zone = subject.app.timezone
    names_at: dict[int, list[str]] = defaultdict(list)
    for entry in subject.entries:
        if entry.due is not None and not entry.jitter and not _runs_each_minute(entry, zone):
            names_at[entry.due].append(entry.name)
    crowds = [(instant, names) for instant, names in names_at.items() if len(names) >= CROWD]
    if not crowds:
        return
    crowds.sort(key=lambda crowd: (-len(crowd[1]), crowd[0]))
    times = [f"{len(names)} at {from_ms(at).astimezone(zone):%H:%M}" for at, names in crowds]
    entries = tuple(chain.from_iterable(names for _, names in crowds))
    more = f" and at {len(times) - 5} more" if len(times) > 5 else ""
    yield Finding(
        "hot-spot",
        "note",
        f"{counted(len(entries), 'entry runs', 'entries run')} next at the same times, without "
        f"jitter: {', '.join(times[:5])}{more}",
        "Workers, databases and whatever the tasks call get all of it at once.",
        "Give entries that need not be so exact a jitter, such as jitter=300, or minutes of their "
        "own: H in cron.",
        entries,
    )


def _runs_each_minute(entry: Entry, zone: tzinfo) -> bool:
    """Return whether an entry is due again within a minute after it is due.

    Such an entry causes no more load at one time than at any other.
    """
    rule = entry.rule(zone)
    if entry.due is None or not isinstance(rule, ZonedRule | Every):
        # Other rules have one instant, follow the sun, or are slow classes of users.
        return False
    following = next_ms(rule, entry.due)
    return following is not None and following - entry.due <= _MINUTE
