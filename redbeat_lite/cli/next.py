"""``next``: what will fire, as the beat itself will plan it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..entries import lifecycle
from ..entries.clock_change_words import hazard
from ..entries.preview import walk
from ..entries.selection import Selection
from ..instants import to_ms
from ..schedules import Manual, Question
from ..schedules.missed import WalkOn
from ..schedules.zones import portable, zone_name, zone_of
from ..storage.patience import briefly
from .command import Command, entry_names, json_option, schedules_of
from .entry_options import until_of
from .exit_codes import Failure
from .output import echo_json, in_json, say, table, terminal_width, when
from .selected import names_of, selected, selecting

if TYPE_CHECKING:
    from ..entries.entry import Entry
    from ..entries.freezes import Freezes

#: How far to look if nobody says: a day of everything, or as far as an entry's next runs may lie.
_DAY, _AGE = timedelta(days=1), timedelta(days=3653)


class _Run(NamedTuple):
    name: str
    at: datetime
    nominal: datetime
    zone: tzinfo
    hazard: str | None


@click.command("next", cls=Command)
@click.argument("name", required=False, shell_complete=entry_names)
@selecting
@click.option("--from", "start", metavar="INSTANT", help="The first instant, or how long from now: 2h. [default: now]")
@click.option("--until", metavar="INSTANT", help="The last one. [default: a day later; for one entry 10 years]")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many runs at most.")
@click.option("--tz", metavar="ZONE", help="Show all times in this zone. [default: each entry's own]")
@json_option
def next_(
    ctx: click.Context, /, start: str | None, until: str | None, limit: int, tz: str | None, **meant: Any
) -> None:
    """Preview the runs of all entries, of several or of one, as the beat itself will plan them.

    An instant without an offset is read in --tz, or else in the app's zone. A run that a clock change moves, merges or
    doubles is marked.

    \b
    Examples:
      celery -A proj redbeat next
      celery -A proj redbeat next nightly --limit 5
      celery -A proj redbeat next 'report-*' --tag billing --until 1h
      celery -A proj redbeat next --from "2027-03-28" --until "2027-03-29"
    """
    schedules, zone = schedules_of(ctx), portable(ctx.obj.app.timezone)
    shown = None if tz is None else zone_of(tz)
    now = datetime.now(UTC)
    first = now if start is None else until_of("from", start, shown or zone)
    entries, name = selected(ctx, **meant), meant["name"]
    one = schedules[name] if name is not None and entries.selection == Selection.one(name) else None
    last = first + (_DAY if one is None else _AGE) if until is None else until_of("until", until, shown or zone)
    if start is not None and first < now:
        raise Failure(f"--from: expected an instant still to come, got {start}")
    if last < first:
        raise Failure(f"--until: expected an instant not before {first.isoformat()}, got {until}")
    found: Iterable[Entry] = entries if one is None else [one]
    runs = [*islice(runs_between(found, first, last, zone, shown, schedules.freezes.known()), limit + 1)]
    if in_json():
        echo_json([_json(run) for run in runs[:limit]])
    elif runs:
        _echo(runs[:limit])
        if len(runs) > limit:
            say(f"There are more: --limit {2 * limit}")
    elif one is not None and isinstance(one.schedule, Manual):
        say(f"{name!r} is run by hand only.")
    else:
        if not entries.selection.is_all:
            names_of(entries, name)  # a Failure, where there is none
        end = to_ms(last)
        due = takewhile(lambda entry: entry.due is not None and entry.due <= end, found)
        unknown = any(isinstance(entry.known_state.nominal, Question) for entry in due)
        but = ", but for what schedules say that are asked when the time has come" if unknown else ""
        say(f"Nothing runs until {when(last, shown or zone)}{but}.")


def runs_between(
    entries: Iterable[Entry], first: datetime, last: datetime, zone: tzinfo, shown: tzinfo | None, freezes: Freezes
) -> Iterator[_Run]:
    """The runs of these entries between two instants, in order.

    Parameters:
        entries: in the order of their due times.
        shown: the zone in which they are told; ``None``: each in its entry's own.
    """
    start, walk_on = to_ms(first), briefly()
    ready: dict[str, Entry] = {}

    def ahead(entry: Entry) -> Entry:
        ready[entry.name] = found = _ahead(entry, start, zone, walk_on)
        return found

    now = to_ms(datetime.now(UTC))
    for run in walk(entries, now=now, zone=zone, walk_on=walk_on, freezes=freezes, ahead=ahead):
        if run.at > last:
            return
        if run.at >= first:
            rule = ready[run.name].rule(zone)
            own = ready[run.name].zone(zone)
            yield _Run(run.name, run.at, run.nominal, shown or own, hazard(rule, to_ms(run.nominal)))


def next_runs(entry: Entry, zone: tzinfo, freezes: Freezes, limit: int) -> list[_Run]:
    """Return the next runs of one entry within ten years."""
    now = datetime.now(UTC)
    return [*islice(runs_between([entry], now, now + _AGE, zone, None, freezes), limit)]


def _ahead(entry: Entry, start: int, zone: tzinfo, walk_on: WalkOn) -> Entry:
    """The entry as it will be shortly before ``start``, so that nobody has to walk there run by run.

    One that counts its runs has to be walked all the same.
    """
    if entry.due is None or entry.max_runs is not None:
        return entry
    state = entry.known_state
    from_ = start - entry.jitter_ms - 1
    if state.nominal is None or state.nominal >= from_:
        return entry
    twin = copy(entry)
    twin.state = replace(state, nominal=lifecycle.ahead(entry, state, from_, zone, walk_on))
    twin.due = lifecycle.due_time(twin, twin.state, zone)
    return twin


def _echo(runs: list[_Run]) -> None:
    rows = [(when(run.at, run.zone), zone_name(run.zone), run.name) for run in runs]
    header, *lines = table(("AT", "ZONE", "ENTRY"), rows, width=terminal_width(), rigid=("AT",))
    say(header)
    for run, line in zip(runs, lines, strict=True):
        say(line)
        if run.hazard:
            say(f"  ! {run.hazard}")


def _json(run: _Run) -> dict[str, Any]:
    return {**run._asdict(), "local": run.at.astimezone(run.zone).isoformat(), "zone": zone_name(run.zone)}
