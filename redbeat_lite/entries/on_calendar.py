"""Calendars of entries: look a calendar up by its name, check it, and plan an entry with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from datetime import timedelta

from .._base.errors import InvalidEntry
from .._base.text import nearest_hint
from ..rules import encode_schedule
from ..rules.calendars import Calendar, CalendarRule
from . import lifecycle
from .entry import Entry
from .state import EntryState

#: Function that reads the stored calendars, by name.
ReadCalendars = Callable[[], Mapping[str, Calendar]]


def give_calendar(
    entry: Entry,
    read_calendars: ReadCalendars,
    now: int,
    replaced: Callable[[], Entry | None] = lambda: None,
) -> None:
    """Look up the calendar that an entry names, if it names one, and attach it to the entry.

    Parameters:
        read_calendars: reads the stored calendars.
        now: epoch milliseconds.
        replaced: returns the entry that this one replaces; ``None`` if there is none. If that entry
            has the same calendar, it is no error that the calendar has ended or leaves no run.

    Raises:
        InvalidEntry: there is no such calendar, it has ended, or it leaves the entry no run.
    """
    if entry.calendar is None:
        return
    rule = assign_calendar(entry, read_calendars())
    fault = _fault(rule, now)
    if fault is None:
        return
    # An entry that is stored again may keep a calendar that has ended since.
    before = replaced()
    if before is None or before.calendar_name != rule.calendar.name:
        expected, value = fault
        raise InvalidEntry("calendar", expected, value, entry=entry.name)


def assign_calendar(entry: Entry, calendars: Mapping[str, Calendar]) -> CalendarRule:
    """Give an entry the calendar that it names, and return the entry's rule.

    Raises:
        InvalidEntry: there is no such calendar, or the schedule does not go by days.
    """
    name = entry.calendar_name
    if name not in calendars:
        hint = nearest_hint(name, calendars) or "store it: schedules.calendars[name] = ..."
        raise InvalidEntry(
            "calendar", "the name of a stored calendar", name, entry=entry.name, hint=hint
        )
    # This only checks: it raises InvalidEntry for a schedule that cannot be stored. The schedule
    # must be stored, because a change of the calendar plans the entry again from what is stored.
    encode_schedule(entry.schedule)
    entry._put(calendar=calendars[name])
    rule = entry.rule
    if not isinstance(rule, CalendarRule):
        hint = "an interval counts from run to run, and has no days"
        raise InvalidEntry(
            "schedule", "cron, crontab or rrule beside a calendar", entry.schedule, hint=hint
        )
    return rule


def _fault(rule: CalendarRule, now: int) -> tuple[str, str] | None:
    """Return the expected and the actual value in the error about an unusable calendar.

    ``None`` if the rule can use its calendar.
    """
    calendar = rule.calendar
    end = rule.begin(calendar.until + timedelta(days=1))
    if end <= now:
        return "one that has not ended", f"{calendar}, which knows until {calendar.until}"
    first = rule.rule.next_ms(now)  # without the calendar
    first_kept = rule.next_ms(now)
    has_run = first is not None and first < end
    keeps_run = first_kept is not None and first_kept < end
    if has_run and not keeps_run:  # The calendar leaves out all runs until its end.
        return f"one with a run of the entry until {calendar.until}", str(calendar)
    return None


def with_calendar(entry: Entry, calendar: Calendar | str | None) -> Entry:
    """Return a copy of an entry with another calendar."""
    twin = copy(entry)
    twin._put(calendar=calendar)
    return twin


def replanned(entry: Entry, state: EntryState, now: int) -> EntryState:
    """Return the state of an entry that has got a new revision of its calendar.

    An occurrence that is due stays due unless the new revision leaves it out.

    Parameters:
        now: epoch ms.
    """
    if lifecycle.used_up(entry, state.count):
        # There is no run to plan, so only the version changes.
        return state.edited()
    # A rule gives the occurrences after an instant. So search from a millisecond before the planned
    # occurrence if that is due, because it stays due.
    since = now if state.nominal is None else min(now, state.nominal - 1)
    # An occurrence that was sent must not be planned again.
    return state.edited(nominal=lifecycle.first(entry, max(since, state.last or since)))
