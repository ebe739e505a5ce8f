"""``next``: the runs to come, as the beat itself will plan them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, takewhile
from typing import TYPE_CHECKING, NamedTuple

import click

from ..entries import lifecycle
from ..entries.clock_change_words import hazard
from ..entries.preview import walk
from ..entries.selection import Selection
from ..instants import to_ms
from ..schedules import Manual, Question
from ..schedules.misfire import WalkOn
from ..schedules.zones import portable, zone_name, zone_of
from ..storage.time_limits import brief_walk
from .command import (
    Failure,
    bare_app,
    command,
    entry_names,
    json_option,
    limit_option,
    load_schedules,
    option,
)
from .options import coming_instant, names_of, selected, selecting
from .output import echo_json, in_json, say, say_more, table, terminal_width, when

if TYPE_CHECKING:
    from ..entries.entry import Entry
    from ..entries.freezes import Freezes

#: Time to look ahead by default: for all or several entries, and for one.
_DAY = timedelta(days=1)
_TEN_YEARS = timedelta(days=3653)


class ComingRun(NamedTuple):
    """A run to come.

    Parameters:
        name: of its entry.
        at: when it is sent.
        nominal: the instant of the schedule.
        zone: the zone to show it in.
        hazard: what a clock change does to it.
    """

    name: str
    at: datetime
    nominal: datetime
    zone: tzinfo
    hazard: str | None


@command("next")
@click.argument("name", required=False, shell_complete=entry_names)
@selecting
@option("--from start INSTANT", "The first instant, or how long from now: 2h. [default: now]")
@option("--until INSTANT", "The last one. [default: a day later; for one entry 10 years]")
@limit_option(20, "runs")
@option("--tz ZONE", "Show all times in this zone. [default: each entry's own]")
@json_option
def next_(
    name: str | None,
    start: str | None,
    until: str | None,
    limit: int,
    tz: str | None,
    **_selection: str | None,
) -> None:
    """Preview the runs of all entries, of several or of one, as the beat itself will plan them.

    An instant without an offset is read in --tz, or else in the app's zone. A run that a clock
    change moves, merges or doubles is marked.

    \b
    Examples:
      celery -A proj redbeat next
      celery -A proj redbeat next nightly --limit 5
      celery -A proj redbeat next 'report-*' --tag billing --until 1h
      celery -A proj redbeat next --from "2027-03-28" --until "2027-03-29"
    """
    schedules = load_schedules()
    app_zone = portable(bare_app().timezone)
    shown_zone = None if tz is None else zone_of(tz)
    zone = shown_zone or app_zone
    selection = selected()
    entries: Iterable[Entry] = selection
    one = None
    if name is not None and selection.selection == Selection.one(name):
        one = schedules[name]
        entries = [one]
    now = datetime.now(UTC)
    first = now if start is None else coming_instant("from", start, zone)
    if first < now:
        raise Failure(f"--from: expected an instant still to come, got {start}")
    if until is None:
        last = first + (_DAY if one is None else _TEN_YEARS)
    else:
        last = coming_instant("until", until, zone)
    if last < first:
        raise Failure(f"--until: expected an instant not before {first.isoformat()}, got {until}")
    freezes = schedules.freezes.known()
    coming = runs_between(entries, first, last, app_zone, freezes, shown_zone)
    runs = [*islice(coming, limit + 1)]
    if in_json():
        echo_json([_as_data(run) for run in runs[:limit]])
    elif runs:
        _echo(runs[:limit])
        if len(runs) > limit:
            say_more(limit)
    elif one is not None and isinstance(one.schedule, Manual):
        say(f"{name!r} is run by hand only.")
    else:
        if not selection.selection.is_all:
            # This raises Failure if no entry is selected.
            names_of(selection)
        except_for = _unknown_runs(entries, to_ms(last))
        say(f"Nothing runs until {when(last, zone)}{except_for}.")


def _unknown_runs(entries: Iterable[Entry], end: int) -> str:
    """Return the exception for entries whose schedules are asked when the time has come."""
    due = takewhile(lambda entry: entry.due is not None and entry.due <= end, entries)
    if any(isinstance(entry.known_state.nominal, Question) for entry in due):
        return ", except for runs of schedules that are asked when the time has come"
    return ""


def next_runs(entry: Entry, zone: tzinfo, freezes: Freezes, limit: int) -> list[ComingRun]:
    """Return the next runs of one entry within ten years."""
    now = datetime.now(UTC)
    runs = runs_between([entry], now, now + _TEN_YEARS, zone, freezes)
    return [*islice(runs, limit)]


def runs_between(
    entries: Iterable[Entry],
    first: datetime,
    last: datetime,
    zone: tzinfo,
    freezes: Freezes,
    shown_zone: tzinfo | None = None,
) -> Iterator[ComingRun]:
    """Yield the runs of entries between two instants, in order.

    Parameters:
        entries: in the order of their due times.
        zone: of the app.
        shown_zone: the zone to show all runs in; by default the zone of each entry.
    """
    start = to_ms(first)
    walk_on = brief_walk()
    moved: dict[str, Entry] = {}

    def move(entry: Entry) -> Entry:
        moved[entry.name] = _moved(entry, start, zone, walk_on)
        return moved[entry.name]

    now = to_ms(datetime.now(UTC))
    runs = walk(entries, now=now, zone=zone, walk_on=walk_on, freezes=freezes, ahead=move)
    for run in runs:
        if run.at > last:
            return
        if run.at >= first:
            entry = moved[run.name]
            change = hazard(entry.rule(zone), to_ms(run.nominal))
            own_zone = entry.zone(zone)
            yield ComingRun(run.name, run.at, run.nominal, shown_zone or own_zone, change)


def _moved(entry: Entry, start: int, zone: tzinfo, walk_on: WalkOn) -> Entry:
    """Return the entry as it will be shortly before ``start`` (epoch ms).

    This spares the walk through all runs before. An entry that counts its runs needs that walk.
    """
    if entry.due is None or entry.max_runs is not None:
        return entry
    state = entry.known_state
    before = start - entry.jitter_ms - 1
    if state.nominal is None or state.nominal >= before:
        return entry
    nominal = lifecycle.ahead(entry, state, before, zone, walk_on)
    twin = copy(entry)
    twin.state = replace(state, nominal=nominal)
    twin.due = lifecycle.due_time(twin, twin.state, zone)
    return twin


def _echo(runs: list[ComingRun]) -> None:
    rows = [(when(run.at, run.zone), zone_name(run.zone), run.name) for run in runs]
    header, *lines = table(("AT", "ZONE", "ENTRY"), rows, width=terminal_width())
    say(header)
    for run, line in zip(runs, lines, strict=True):
        say(line)
        if run.hazard:
            say(f"  ! {run.hazard}")


def _as_data(run: ComingRun) -> dict[str, object]:
    local = run.at.astimezone(run.zone).isoformat()
    return {**run._asdict(), "local": local, "zone": zone_name(run.zone)}
