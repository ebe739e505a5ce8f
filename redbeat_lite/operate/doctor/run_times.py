"""The doctor's look at when entries run: moved or merged by a clock change, crowded at full hours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import tzinfo

from ...clock import wall_ms
from ...entries.clock_change_words import moves
from ...entries.entry import Entry
from ...entries.lifecycle import within
from ...entries.rule_words import either_day_words
from ...entries.words import counted, listed
from ...instants import from_ms
from ...schedules import Every, next_ms
from ...schedules.clock_changes import ZonedRule
from ...schedules.zones import zone_name
from .finding import Finding

#: How far ahead clock changes are looked for, in days.
DAYS = 30

#: Entries at one moment that are worth a word.
CROWD = 20

_MINUTE, _QUARTER, _DAY = 60_000, 900_000, 86_400_000  # in milliseconds


def clock_changes(zone: tzinfo, entries: Iterable[Entry]) -> Iterator[Finding]:
    """Runs that a clock change within the next month moves, or merges with others."""
    now = wall_ms() // 1000
    for sentence, names in moves(entries, zone, now, now + DAYS * 86_400):
        yield Finding(
            "clock-change",
            "note",
            sentence,
            "The wall times in between do not exist on that day.",
            "Nothing, if that is all right. Else choose a time that exists every day, or a zone without clock changes.",
            names,
        )


def either_day(entries: Iterable[Entry]) -> Iterator[Finding]:
    """Cron entries that restrict day of month and day of week, which many take for "both must match"."""
    rules = {entry.name: either_day_words(entry.schedule) for entry in entries}
    words = {name: text for name, text in rules.items() if text is not None}
    if words:
        yield Finding(
            "either-day",
            "warning",
            f"{counted(len(words), 'entry runs', 'entries run')} if day of month or day of week matches: "
            + listed(words),
            "In cron either day is enough, so they may run far more often than they look.",
            f"Nothing, if meant so; two entries are clearer. The first one: {next(iter(words.values()))}.",
            tuple(words),
        )


def hot_spots(zone: tzinfo, entries: Iterable[Entry]) -> Iterator[Finding]:
    """Full hours of the next day, by the zone of the app, at which many entries run, midnight above all."""
    now = wall_ms()
    crowds: dict[int, list[str]] = defaultdict(list)
    hours: dict[str, list[int]] = {}
    for entry in entries:
        if entry.due is None or entry.jitter:
            continue
        for instant in _runs_at(entry, zone, now, hours):
            crowds[instant].append(entry.name)
    crowded = sorted((at for at in crowds if len(crowds[at]) >= CROWD), key=lambda at: (-len(crowds[at]), at))
    if not crowded:
        return
    times = [f"{len(crowds[at])} at {from_ms(at).astimezone(zone):%H:%M}" for at in crowded[:5]]
    names = tuple(dict.fromkeys(name for at in crowded for name in crowds[at]))
    yield Finding(
        "hot-spot",
        "note",
        f"{counted(len(names), 'entry runs', 'entries run')} at the same full hours, without jitter: "
        + ", ".join(times)
        + (f" and at {len(crowded) - 5} more" if len(crowded) > 5 else ""),
        "Workers, databases and whatever the tasks call get all of it at once.",
        "Give entries that need not be so exact a jitter, such as jitter=300, or minutes of their own: H in cron.",
        names,
    )


def _full_hours(zone: tzinfo, now: int) -> list[int]:
    """The full hours of the next day by the clocks of a zone; all in milliseconds since 1970."""
    # The offsets of all zones that are in use are whole quarters of an hour.
    first = now // _QUARTER + 1
    quarters = ((first + number) * _QUARTER for number in range(_DAY // _QUARTER))
    return [at for at in quarters if not from_ms(at).astimezone(zone).minute]


def _runs_at(entry: Entry, zone: tzinfo, now: int, hours: dict[str, list[int]]) -> Iterator[int]:
    """Full hours at which an entry runs: two questions to its rule for each hour at most.

    ``hours`` caches the full hours of a zone by its name, for the entries that follow.

    One that runs every minute is left out: it is no more of a load at a full hour than at any other time.
    """
    rule = entry.rule(zone)
    if isinstance(rule, ZonedRule):
        zone = rule.zone
    elif not isinstance(rule, Every):  # one-offs, the sun, and schedules of users, which may take any time
        return
    name = zone_name(zone)
    if name not in hours:
        hours[name] = _full_hours(zone, now)
    at = entry.due
    for hour in hours[name]:
        if at is not None and at < hour:
            at = next_ms(rule, rule.last_ms(at, hour - 1) if isinstance(rule, Every) else hour - 1)
        if at is None:
            return
        if at == hour and within(entry, from_ms(hour)):
            at = next_ms(rule, hour)
            if at is None or at - hour > _MINUTE:
                yield hour
