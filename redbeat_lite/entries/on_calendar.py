"""An entry and its calendar: given it by name, checked against it, planned by it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from datetime import timedelta, tzinfo

from ..errors import InvalidEntry
from ..instants import from_ms
from ..schedules import next_ms
from ..schedules.calendars import Calendar, CalendarRule
from ..schedules.misfire import Plan, Range
from .entry import Entry
from .state import EntryState


def give_calendar(
    entry: Entry, find: Callable[[str], Calendar], now: int, zone: tzinfo, replaced: Callable[[], Entry | None]
) -> None:
    """Give an entry that names a calendar what is stored of it now.

    Parameters:
        find: gives the stored calendar of a name, and raises InvalidEntry where there is none.
        now: epoch milliseconds.
        replaced: finds the entry that this one takes the place of; one that is on this calendar already may stay.

    Raises:
        InvalidEntry: there is no such calendar, it has ended, or it leaves the entry no run.
    """
    if entry.calendar is None:
        return
    try:
        entry.calendar, entry._rule = find(calendar_name(entry)), None
        rule, before = entry.rule(zone), replaced()
        assert isinstance(rule, CalendarRule)
        if before is None or calendar_name(before) != rule.calendar.name:
            _check(rule, rule.calendar, now)
    except InvalidEntry as exc:
        raise exc.of(entry.name) from None


def _check(rule: CalendarRule, calendar: Calendar, now: int) -> None:
    end = rule.begin(calendar.until + timedelta(days=1))
    if end <= now:
        raise InvalidEntry("calendar", "one that has not ended", f"{calendar}, which knows until {calendar.until}")
    first, kept = rule.rule.next_ms(now), rule.next_ms(now)
    if first is not None and first < end and (kept is None or kept >= end):
        raise InvalidEntry("calendar", f"one with a run of the entry until {calendar.until}", str(calendar))


def calendar_name(entry: Entry) -> str:
    """The name of the calendar of an entry; empty for none."""
    return entry.calendar.name if isinstance(entry.calendar, Calendar) else entry.calendar or ""


def on(entry: Entry, calendar: Calendar | str | None) -> Entry:
    """The same entry on another calendar."""
    twin = copy(entry)
    twin.calendar, twin._rule = calendar, None
    return twin


def moved(entry: Entry, state: EntryState, now: int, zone: tzinfo) -> EntryState:
    """The state of an entry whose calendar has a new revision: what is due stays due, unless it is left out now.

    Parameters:
        entry: on the new revision.
        now: epoch milliseconds.
    """
    nominal = state.nominal
    if nominal is not None:
        since = min(now, nominal - 1) if entry.start_ms is None else max(min(now, nominal - 1), entry.start_ms - 1)
        nominal = next_ms(entry.rule(zone), since if state.last is None else max(since, state.last))
    if nominal is not None and entry.end_ms is not None and nominal > entry.end_ms:
        nominal = None
    return state.edited(nominal=nominal)


def with_left_out(entry: Entry, state: EntryState, plan: Plan, zone: tzinfo) -> Plan:
    """A plan with what the calendar has left out since the last run, for the record."""
    if entry.calendar is None or not plan.emit or state.last is None:
        return plan
    rule = entry.rule(zone)
    assert isinstance(rule, CalendarRule)
    found = [Range(*each) for each in rule.left_out(state.last, plan.emit[-1])]
    skipped = plan.skipped + sum(each.number for each in found)
    return plan._replace(skipped=skipped, ranges=(*plan.ranges, *found))


def left_out_words(entry: Entry, begin: int, end: int, zone: tzinfo) -> str | None:
    """That the calendar of an entry leaves a run out in a span of time (epoch milliseconds); ``None`` where not."""
    rule = entry.rule(zone) if entry.calendar is not None else None
    if not isinstance(rule, CalendarRule):
        return None
    for first, *_ in rule.left_out(begin - 1, end):
        return f"Its calendar {rule.calendar} leaves out {from_ms(first).astimezone(rule.zone):%Y-%m-%d}."
    return None
