"""From an entry of another scheduler to one of ours, with the state that lets it go on where it was. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import tzinfo
from typing import Any, NamedTuple

from celery import Celery
from celery.schedules import solar

from ...entries import lifecycle
from ...entries.configured import config_entry, entry_with_defaults, short_name
from ...entries.definition import encode
from ...entries.entry import Entry
from ...entries.fields import check_destination
from ...entries.sendable import check_arguments, serializer_of
from ...entries.state import MAX_COUNT, EntryState
from ...errors import InvalidEntry
from ...instants import to_ms
from ...schedules import At, first_ms, next_ms
from ...settings import Settings
from .source import Found, Left

#: Two programs compute one sunset some fractions of a second apart, and no two of them are closer than an hour. What
#: the old beat has sent must not be taken for still to come.
_SAME_EVENT_MS = 60_000


class Carried(NamedTuple):
    """One entry as it is to be stored: with its state, its stored form, and what a person should know about it."""

    entry: Entry
    definition: str
    notes: tuple[str, ...] = ()


class Carrier:
    """Makes entries of what was found, for one app, whose ``beat_schedule`` owns the definitions of its entries."""

    def __init__(self, app: Celery, settings: Settings, configured: dict[str, Any], zone: tzinfo) -> None:
        self._app = app
        self._settings = settings
        self._configured = configured
        self._zone = zone

    def carry(self, found: Found | Left, now: int) -> Carried | Left:
        """The entry that goes on where ``found`` was at ``now`` (epoch milliseconds), or why there is none."""
        if isinstance(found, Left):
            return found
        if (name := short_name(found.name)) in self._configured:
            found = found._replace(name=name)
        if not 0 <= found.runs < MAX_COUNT:
            return Left(found.name, f"the number of its runs is none from 0 to {MAX_COUNT - 1:,}")
        is_ours = found.name in self._configured
        if found.of_config and not is_ours:
            return Left(found.name, "it comes from a beat_schedule, and that of this app does not have it")
        try:
            carried = (self._of_config if is_ours else self._of_runtime)(found, now)
            check_destination(carried.entry.options, self._settings.key_prefix)
        except InvalidEntry as exc:
            return Left(found.name, str(exc).removeprefix(f"entry {found.name!r}: "))
        carried.entry.due = lifecycle.due_time(carried.entry, carried.entry.known_state, self._zone)
        return carried

    def _of_runtime(self, found: Found, now: int) -> Carried:
        entry = entry_with_defaults(self._settings, found.name, dict(found.fields), app=self._app)
        check_arguments(entry, serializer_of(entry, self._app))
        carried = self._carried(found, entry, now)
        if self._app.finalized and entry.task not in self._app.tasks:
            return carried._replace(notes=(*found.notes, f"no task {entry.task!r} is registered in this app"))
        return carried

    def _of_config(self, found: Found, now: int) -> Carried:
        """The definition is the configuration's, the history that of the old beat."""
        entry = config_entry(self._settings, found.name, self._configured[found.name], app=self._app)
        entry.owner = self._settings.owner
        carried = self._carried(found, entry, now)
        if entry.enabled and found.fields.get("enabled") is False:
            entry.state = replace(entry.known_state, paused=True, note="was disabled when it was moved in")
            return carried._replace(notes=(*found.notes, "disabled there, so it is paused here"))
        return carried

    def _carried(self, found: Found, entry: Entry, now: int) -> Carried:
        lifecycle.check(entry, now, self._zone)
        definition = encode(entry, placeholders=entry.owner is not None)
        entry.state = carried_state(found, entry, now, self._zone)
        return Carried(entry, definition, found.notes)


def carried_state(found: Found, entry: Entry, now: int, zone: tzinfo) -> EntryState:
    """The state with which ``entry`` goes on where ``found`` was.

    An occurrence that came due since the old beat last ran is the next one, in the past: it is for the misfire policy,
    as after any outage.
    """
    state = lifecycle.created(entry, now, zone)
    last = None if found.since is None else to_ms(found.since)
    nominal = state.nominal
    if isinstance(entry.rule(zone), At):
        nominal = nominal if not found.runs else None
    elif found.at_once:
        nominal = now
    elif last is not None:
        nominal = _following(entry, last, zone)
    if lifecycle.used_up(entry, found.runs) or lifecycle.beyond(entry, nominal):
        nominal = None
    return replace(state, nominal=nominal, count=found.runs, last=last if found.runs or found.ran else None)


def _following(entry: Entry, last: int, zone: tzinfo) -> int | None:
    rule, start = entry.rule(zone), entry.start_ms
    if start is not None and start > last:
        return first_ms(rule, last, start)
    return next_ms(rule, last + _SAME_EVENT_MS if type(entry.schedule) is solar else last)
