"""An entry and its calendar: given it by name, checked against it, planned by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from datetime import timedelta, tzinfo

from .._base.errors import InvalidEntry
from .._base.text import nearest_hint
from .._base.times import from_ms
from ..rules import encode_schedule
from ..rules.calendars import Calendar, CalendarRule
from ..rules.misfire import Plan, Range
from . import lifecycle
from .entry import Entry
from .state import EntryState

#: Reads the stored calendars, by name.
Known = Callable[[], Mapping[str, Calendar]]


def give_calendar(
    entry: Entry,
    known: Known,
    now: int,
    zone: tzinfo,
    replaced: Callable[[], Entry | None] = lambda: None,
) -> None:
    """Give an entry that names a calendar what is stored of it now.

    Parameters:
        now: epoch milliseconds.
        replaced: finds the entry that this one takes the place of; one that is on this calendar
            already may stay.

    Raises:
        InvalidEntry: there is no such calendar, it has ended, or it leaves the entry no run.
    """
    if entry.calendar is None:
        return
    rule = given(entry, known(), zone)
    fault = _fault(rule, rule.calendar, now)
    if fault and ((before := replaced()) is None or before.calendar_name != rule.calendar.name):
        raise InvalidEntry("calendar", *fault, entry=entry.name)


def given(entry: Entry, known: Mapping[str, Calendar], zone: tzinfo) -> CalendarRule:
    """Give an entry the calendar that it names; returns its rule.

    Raises InvalidEntry: there is none, or the schedule has no days.
    """
    name = entry.calendar_name
    if name not in known:
        hint = nearest_hint(name, known) or "store it: schedules.calendars[name] = ..."
        raise InvalidEntry(
            "calendar", "the name of a stored calendar", name, entry=entry.name, hint=hint
        )
    encode_schedule(entry.schedule)  # or a new revision could not plan it
    entry._put(calendar=known[name])
    if not isinstance(rule := entry.rule(zone), CalendarRule):
        hint = "an interval counts from run to run, and has no days"
        raise InvalidEntry(
            "schedule", "cron, crontab or rrule beside a calendar", entry.schedule, hint=hint
        )
    return rule


def _fault(rule: CalendarRule, calendar: Calendar, now: int) -> tuple[str, str] | None:
    end = rule.begin(calendar.until + timedelta(days=1))
    if end <= now:
        return "one that has not ended", f"{calendar}, which knows until {calendar.until}"
    first, kept = rule.rule.next_ms(now), rule.next_ms(now)
    if first is not None and first < end and (kept is None or kept >= end):
        return f"one with a run of the entry until {calendar.until}", str(calendar)
    return None


def on(entry: Entry, calendar: Calendar | str | None) -> Entry:
    """The same entry on another calendar."""
    twin = copy(entry)
    twin._put(calendar=calendar)
    return twin


def moved(entry: Entry, state: EntryState, now: int, zone: tzinfo) -> EntryState:
    """The state of an entry whose calendar has a new revision, which it is on already, at ``now``
    (epoch ms).

    What is due stays due, unless it is left out now.
    """
    if lifecycle.used_up(entry, state.count):
        return state.edited()
    since = now if state.nominal is None else min(now, state.nominal - 1)
    return state.edited(nominal=lifecycle.first(entry, max(since, state.last or since), zone))


def with_left_out(entry: Entry, state: EntryState, plan: Plan, zone: tzinfo) -> Plan:
    """A plan with what the calendar has left out since the last run, for the record."""
    rule = entry.rule(zone) if entry.calendar is not None and plan.emit else None
    if state.last is None or not isinstance(rule, CalendarRule):
        return plan
    found = [Range(*each) for each in rule.left_out(state.last, plan.emit[-1])]
    skipped = plan.skipped + sum(each.number for each in found)
    return plan._replace(skipped=skipped, ranges=(*plan.ranges, *found))


def left_out_words(entry: Entry, begin: int, end: int, zone: tzinfo) -> str | None:
    """That the calendar of an entry leaves a run out in a span of time (epoch milliseconds);
    ``None`` where not.
    """
    if not isinstance(rule := entry.rule(zone), CalendarRule):
        return None
    for first, *_ in rule.left_out(begin - 1, end):
        return (
            f"Its calendar {rule.calendar} leaves out "
            f"{from_ms(first).astimezone(rule.zone):%Y-%m-%d}."
        )
    return None
